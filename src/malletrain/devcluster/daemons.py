"""Processes that outlive what started them, known by pid files of our own."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from malletrain.errors import DevClusterError
from malletrain.processes import signal_process

_POLL_EVERY_S = 0.02
_END_WITHIN_S = 10.0
#: A zombie has ended, although process 1 of a container may never collect it.
_ENDED = "Z"


@dataclass(frozen=True, slots=True)
class Daemon:
    name: str
    #: The program, by its full path, and its arguments.
    command: tuple[str, ...]
    run_dir: Path
    log_dir: Path

    @property
    def pid_file(self) -> Path:
        return self.run_dir / f"{self.name}.pid"

    @property
    def log(self) -> Path:
        """What it writes to its standard streams."""
        return self.log_dir / f"{self.name}.out"

    def pid(self) -> int | None:
        """Return its process id while it runs; another process that bears the id is not it."""
        try:
            pid, began_at = map(int, self.pid_file.read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        state, beginning = _state(pid)
        if beginning != began_at:
            return None
        if state == _ENDED:
            # Where it is a child of ours, nobody else collects it.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            return None
        # For a moment at its start a process has no command line.
        return pid if program(pid) in ("", Path(self.command[0]).name) else None

    def start(self, environment: Mapping[str, str]) -> bool:
        """Start it in a session of its own; say whether it did not run before."""
        if self.pid() is not None:
            return False
        append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        pid = os.posix_spawn(
            self.command[0],
            self.command,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM),
        )
        self.pid_file.write_text(f"{pid} {_state(pid)[1]}\n")
        return True

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """End it, by SIGKILL where it takes too long; one that does not run is no error."""
        end_at_s = time.monotonic() + _END_WITHIN_S
        while (pid := self.pid()) is not None:
            signal_process(pid, signum)
            while self.pid() is not None and time.monotonic() < end_at_s:
                time.sleep(_POLL_EVERY_S)
            signum = signal.SIGKILL
            end_at_s += _END_WITHIN_S
        self.pid_file.unlink(missing_ok=True)

    def last_words(self) -> str:
        """Return the last line that it has written, and where more is to be found."""
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"{said[-1] if said else 'it said nothing'} (see {self.log_dir})"


def wait_for(
    daemons: Sequence[Daemon], is_so: Callable[[], bool], what: str, limit_s: float = 60.0
) -> None:
    """Wait until daemons are as they should be.

    Raises:
        DevClusterError: one ended, or the limit passed; names the log and its last line.
    """
    end_at_s = time.monotonic() + limit_s
    while not is_so():
        for daemon in daemons:
            if daemon.pid() is None:
                raise DevClusterError(f"{daemon.name} ended at once: {daemon.last_words()}")
        if time.monotonic() > end_at_s:
            raise DevClusterError(
                f"{what} did not come within {limit_s:g} s: {daemons[-1].last_words()}"
            )
        time.sleep(_POLL_EVERY_S)


def stop_all(daemons: Sequence[Daemon]) -> None:
    """End daemons of a kind at the same time."""
    for daemon in daemons:
        if (pid := daemon.pid()) is not None:
            signal_process(pid, signal.SIGTERM)
    for daemon in daemons:
        daemon.stop()


def belonging(conf: Path, programs: frozenset[str]) -> list[int]:
    """Return what runs for the cluster of this slurm.conf: these programs, steps, descendants.

    Slurm names the file in the environment of whatever it starts. A shell of somebody who works
    with the cluster has it there too, but not a node's name.
    """
    mark = f"SLURM_CONF={conf}".encode()
    parents: dict[int, int] = {}
    found: set[int] = set()
    for pid in _live():
        with contextlib.suppress(OSError):
            parents[pid] = int(_stat(pid)[1])
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            is_step = any(variable.startswith(b"SLURMD_NODENAME=") for variable in variables)
            if mark in variables and (is_step or program(pid) in programs):
                found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {os.getpid()})


def _live() -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and _state(int(entry.name))[0] not in ("", _ENDED):
            yield int(entry.name)


def program(pid: int) -> str:
    """Return the name of the program that a process says to run, "" where there is none."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    # A step's process calls itself "slurmstepd: [12.0]".
    return Path(words[0].decode(errors="replace").partition(":")[0]).name


def _state(pid: int) -> tuple[str, int]:
    """Return a process's state and when it began, in the kernel's ticks; ("", 0) for none."""
    try:
        stat = _stat(pid)
    except OSError:
        return "", 0
    return stat[0], int(stat[19])


def _stat(pid: int) -> list[str]:
    """Return the fields behind the name: state, parent, ..., beginning (the 20th)."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text[text.rindex(")") + 2 :].split()
