"""Start the controller and its nodes as a user would, and leave nothing of them behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from demo.jobs import DemoJob
from malletrain.cli.client import Client, connect
from malletrain.errors import MalleTrainError, NoControllerError
from malletrain.live.state_dir import StateDir

MALLETRAIN = (sys.executable, "-m", "malletrain.cli")
_START_WITHIN_S = 30.0
_END_WITHIN_S = 40.0
_POLL_EVERY_S = 0.05


class Controller:
    """`malletrain up` in a process of its own."""

    def __init__(
        self,
        run_dir: Path,
        options: tuple[str, ...],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare it: its options, and its whole environment where that is not ours."""
        self.state_dir = StateDir(run_dir / "state")
        self.log_path = run_dir / "controller.log"
        self._run_dir = run_dir
        self._options = options
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        state_dir = ("--state-dir", str(self.state_dir.path))
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*MALLETRAIN, "up", *state_dir, *self._options],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is ours to handle: it must reach the controller as a request to end.
                start_new_session=True,
            )
        try:
            _wait_for(self._is_up, _START_WITHIN_S, "the controller did not start")
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def _is_up(self) -> bool:
        if self._process and self._process.poll() is not None:
            tail = self.log_path.read_text(errors="replace").strip().splitlines()[-1:]
            raise MalleTrainError(f"the controller ended at its start: {' '.join(tail)}")
        try:
            with self.client() as client:
                client.state()
        except NoControllerError:
            return False
        return True

    def client(self) -> Client:
        return connect(self.state_dir)

    def submit(self, job: DemoJob, audit_dir: Path) -> str:
        """Submit by the command line, and return the command as a user would type it."""
        bounds = f"--min-nodes {job.min_nodes} --max-nodes {job.max_nodes} --name {job.name}"
        command = [
            *MALLETRAIN,
            "submit",
            *bounds.split(),
            "--env",
            f"MALLETRAIN_AUDIT={audit_dir}",
        ]
        command += ["--state-dir", str(self.state_dir.path), "--", sys.executable, str(job.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise MalleTrainError(f"{job.name} was not accepted: {done.stderr.strip()}")
        return f"malletrain submit {bounds} -- python examples/{job.script}"

    def end(self) -> None:
        """Ask it to end, insist if it does not, and wait until it has."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        for signum in (signal.SIGTERM, signal.SIGKILL):
            process.send_signal(signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_WITHIN_S)
                return

    def leftovers(self) -> list[int]:
        """Return the processes that still know this run's directory, given a moment to go."""
        with contextlib.suppress(MalleTrainError):
            _wait_for(lambda: not processes_of(self._run_dir), 5.0, "")
        return processes_of(self._run_dir)


def finish(console: Console, run_dir: Path, *, holds: bool, is_kept: bool) -> int:
    """Keep what a failed demo left to look at; return the exit status."""
    if holds and not is_kept:
        shutil.rmtree(run_dir, ignore_errors=True)
    else:
        console.print(f"journal and logs: {run_dir}")
    return 0 if holds else 1


def interrupted(console: Console, run_dir: Path) -> int:
    """Say what a demo that was stopped has left running; return the exit status."""
    left = processes_of(run_dir)
    console.print(f"stopped; left running: {', '.join(map(str, left)) or 'nothing'}")
    shutil.rmtree(run_dir, ignore_errors=True)
    return 130


def processes_of(run_dir: Path) -> list[int]:
    """Find every process with the directory in its command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if os.fsencode(run_dir) in told:
                    found.append(int(entry.name))
    return found


def _wait_for(is_met: Callable[[], bool], within_s: float, what: str) -> None:
    gives_up_at_s = time.monotonic() + within_s
    while not is_met():
        if time.monotonic() > gives_up_at_s:
            raise MalleTrainError(f"{what} within {within_s:.0f} s")
        time.sleep(_POLL_EVERY_S)
