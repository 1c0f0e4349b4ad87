"""A private directory for as long as an agent runs, and nothing left behind at its end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - we only remove what dead workers of ours left
#: PyTorch names shared tensors by the process that made them.
_SEGMENT = re.compile(r"torch_(\d+)_")
_DIRECTORY = re.compile(r"malletrain-(\d+)-")


@contextlib.contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """Give a new directory that only we can enter; `TMPDIR` names it for all that we start.

    At the end it is removed, and so is the shared memory that processes of ours left when they were
    killed. So are directories of agents that were killed before.
    """
    for abandoned in _abandoned(parent):
        shutil.rmtree(abandoned, ignore_errors=True)
    run_dir = Path(tempfile.mkdtemp(prefix=f"malletrain-{os.getpid()}-", dir=parent))
    os.environ["TMPDIR"] = str(run_dir)
    try:
        yield run_dir
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
        for path in orphaned_shared_memory():
            path.unlink(missing_ok=True)


def _abandoned(parent: Path) -> list[Path]:
    """Return directories of this user's that name an agent which is no more."""
    try:
        entries = list(parent.iterdir())
    except OSError:
        return []  # told by the making of our own
    return [path for path in entries if _is_orphaned(path, _DIRECTORY)]


def orphaned_shared_memory() -> list[Path]:
    """Return the segments of this user's that name a process which is no more."""
    try:
        entries = list(_SHARED_MEMORY.iterdir())
    except OSError:
        return []
    return [path for path in entries if _is_orphaned(path, _SEGMENT)]


def _is_orphaned(path: Path, named_by_pid: re.Pattern[str]) -> bool:
    match = named_by_pid.match(path.name)
    if match is None or Path("/proc", match[1]).exists():
        return False
    try:
        return path.stat().st_uid == os.getuid()
    except OSError:
        return False  # somebody else was quicker
