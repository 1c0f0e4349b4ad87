"""Processes that replay runs of a sweep: one load of the trace each, one run at a time."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from malletrain.replay.sweep import Run, Store

#: How often `on_done` is called though nothing is done: it may break the work off.
_POLL_EVERY_S = 0.2

_MAIN = "import sys; from malletrain.replay.workers import serve; serve(int(sys.argv[1]))"


@dataclass(frozen=True, slots=True)
class Failure:
    run: Run
    why: str


class _Worker:
    """A process, and the run that it is at."""

    def __init__(self, store: Store, run: Run) -> None:
        self.connection, theirs = Pipe()
        with _deaf_children():
            self.process = subprocess.Popen(
                # -P: no file of the working directory is mistaken for a module.
                [sys.executable, "-P", "-c", _MAIN, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1"},  # each has one core
            )
        theirs.close()
        with suppress(BrokenPipeError):
            self.connection.send(store)
        self.give(run)

    def give(self, run: Run) -> None:
        self.run = run
        # One that died is heard of where its answer is awaited.
        with suppress(BrokenPipeError):
            self.connection.send(run)

    def answer(self) -> tuple[str, bool]:
        """Return why the run failed, "" if it did not, and whether the worker is still there."""
        try:
            return self.connection.recv(), True
        except (EOFError, ConnectionResetError):
            self.process.wait()
            return _death(self.process), False

    def dismiss(self) -> None:
        self.connection.close()
        self.process.wait()


def run_all(
    store: Store, runs: Sequence[Run], num_workers: int, on_done: Callable[[int], None]
) -> list[Failure]:
    """Replay the runs, and return those that failed; whatever happens, no process is left.

    A worker that dies fails the run that it was at; another takes its place.
    """
    waiting = deque(runs)
    failures: list[Failure] = []
    busy: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < num_workers:
                busy.append(_Worker(store, waiting.popleft()))
            ready = wait([worker.connection for worker in busy], timeout=_POLL_EVERY_S)
            if not ready:
                on_done(0)
            for worker in [worker for worker in busy if worker.connection in ready]:
                why, is_there = worker.answer()
                if why:
                    failures.append(Failure(worker.run, why))
                on_done(1)
                if waiting and is_there:
                    worker.give(waiting.popleft())
                else:
                    busy.remove(worker)
                    worker.dismiss()
    finally:
        for worker in busy:
            worker.process.kill()
        for worker in busy:
            worker.dismiss()
    return failures


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Let children hear no Ctrl-C, from their first moment on: it is their parent's matter."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _death(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
    hint = " (was there too little memory? --workers N starts fewer)" if code == -9 else ""
    return f"its worker, process {process.pid}, ended {how}{hint}"


def serve(file_descriptor: int) -> None:
    """Replay what comes over the connection; this is all that a worker does."""
    connection: Connection[Any, Any] = Connection(file_descriptor)
    store: Store = connection.recv()
    trace = store.trace()
    runs: queue.Queue[Run] = queue.Queue()
    threading.Thread(target=_receive, args=(connection, runs), daemon=True).start()
    while True:
        connection.send(attempt(store, runs.get(), trace))


def _receive(connection: Connection[Any, Any], runs: queue.Queue[Run]) -> None:
    """Take runs until the other side is gone, by intention or not; then so is this process."""
    with suppress(EOFError, ConnectionResetError):
        while True:
            runs.put(connection.recv())
    os._exit(0)


def attempt(store: Store, run: Run, trace: Any) -> str:
    """Replay a run; return why it failed, "" if it did not."""
    try:
        store.execute(run, trace)
    except Exception as error:  # whatever it is, the other runs go on
        return f"{type(error).__name__}: {error}"
    return ""
