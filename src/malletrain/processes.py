"""Linux process primitives: what the kernel can promise about orphans, and process groups."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

#: -P: no file of the directory that we happen to be in is mistaken for a module.
PYTHON = (sys.executable, "-P")

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process as soon as the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        # It ended before the line above; its signal will never come.
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, in place of process 1."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}): {os.strerror(errno)}")


def children() -> set[int]:
    """Return the children of this process, zombies included.

    Read from every process's stat: the kernel's own list of children is optional and may be
    incomplete while they come and go.
    """
    me = os.getpid()
    found = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and _parent_of(entry.name) == me:
            found.add(int(entry.name))
    return found


def _parent_of(pid: str) -> int | None:
    try:
        stat = Path("/proc", pid, "stat").read_bytes()
    except OSError:
        return None  # it ended meanwhile
    # The name in parentheses may hold anything, even parentheses: look behind the last one.
    return int(stat[stat.rindex(b")") + 2 :].split()[1])


def reap() -> list[tuple[int, int]]:
    """Collect every ended child: (pid, exit status; negative for a signal's number)."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, os.waitstatus_to_exitcode(wait_status)))
    return ended


def signal_process(pid: int, signum: int) -> None:
    """Send a signal; a process that has ended is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def signal_group(group: int, signum: int) -> None:
    """Send a signal to a process group; an empty one is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signum)


def is_group_empty(group: int) -> bool:
    """Tell whether no process is left in the group; one that is not reaped yet still counts."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def fork(in_child: Callable[[], None]) -> int:
    """Fork with signals held back in the child until it has its own way with them.

    Without, a signal meant for the child could reach the parent through the descriptor that
    wakes its event loop, which both have until then.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            in_child()
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def start_bound(
    command: Sequence[str], *, log_path: Path, is_group_leader: bool, pass_fds: Sequence[int] = ()
) -> int:
    """Start a program that the kernel kills when this process ends; return its pid.

    To be called from single-threaded processes: between fork and exec this runs Python. Not
    `subprocess`, whose own reaping would compete with `reap`.
    """
    parent_pid = os.getpid()
    pid = fork(_forget_handlers)
    if pid:
        if is_group_leader:
            # Here and in the child: whoever comes first, the group is there for both.
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(pid, pid)
        return pid
    try:
        die_with_parent(parent_pid)
        if is_group_leader:
            os.setpgid(0, 0)
        redirect_standard_streams(log_path)
        for fd in pass_fds:
            os.set_inheritable(fd, True)
        os.execvp(command[0], list(command))  # noqa: S606 - a list, never a shell
    except OSError as error:
        os.write(2, f"malletrain: cannot start {command[0]}: {error}\n".encode())
    finally:
        # Nothing of the parent's may run here, whatever went wrong.
        os._exit(127)


def _forget_handlers() -> None:
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)


def redirect_standard_streams(log_path: Path) -> None:
    """Read nothing, and append output and errors to the log."""
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(null)
    os.close(log)
