"""Find processes that a test has started and left, however they have moved away from it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

_MARK = "MALLETRAIN_TEST_MARK"
_LIMIT_S = 10.0


@contextmanager
def no_process_left() -> Iterator[None]:
    """Mark the environment; fail where a marked process outlives the test."""
    mark, outer = uuid.uuid4().hex, os.environ.get(_MARK)
    os.environ[_MARK] = mark
    try:
        yield
        wait_until(lambda: not _marked(mark), lambda: f"processes are left: {_marked(mark)}")
    finally:
        del os.environ[_MARK]
        if outer is not None:
            os.environ[_MARK] = outer
        for process in _marked(mark):
            process.kill()


def _marked(mark: str) -> list[psutil.Process]:
    """Return live processes whose environment at their start (or their parent's fork) has it."""
    found = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get(_MARK) == mark and process.pid != os.getpid()
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that nobody has reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(
    is_so: Callable[[], object], what: Callable[[], str], limit_s: float = _LIMIT_S
) -> None:
    """Wait for a condition; `what` says what is wrong where it does not come."""
    give_up_at = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < give_up_at, what()
        time.sleep(0.01)
