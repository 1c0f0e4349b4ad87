"""Processes that replay runs of a sweep: one load of the trace each, one run at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from malletrain.sim.sweep import Run, Store

#: An interpreter of its own each: nothing is inherited but what is handed over.
_CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Failure:
    run: Run
    why: str


class _Worker:
    """A process, and the run that it is at."""

    def __init__(self, store: Store, run: Run) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(theirs, store), daemon=True)
        with _deaf_children():
            self.process.start()
        theirs.close()
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
            self.process.join()
            return _death(self.process), False

    def dismiss(self) -> None:
        self.connection.close()
        self.process.join()


def run_all(
    store: Store, runs: Sequence[Run], num_workers: int, on_done: Callable[[int], None]
) -> list[Failure]:
    """Replay the runs, and return those that failed; whatever happens, no process is left.

    A worker that dies fails the run that it was at; another takes its place.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # each has one core
    waiting = deque(runs)
    failures: list[Failure] = []
    busy: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < num_workers:
                busy.append(_Worker(store, waiting.popleft()))
            ready = wait([worker.connection for worker in busy])
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


def _death(process: BaseProcess) -> str:
    code = process.exitcode or 0
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
    hint = " (was there too little memory? --workers N starts fewer)" if code == -9 else ""
    return f"its worker, process {process.pid}, ended {how}{hint}"


def _serve(connection: Connection[Any, Any], store: Store) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    trace = store.trace()
    while True:
        try:
            run = connection.recv()
        except EOFError:
            return
        connection.send(attempt(store, run, trace))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def attempt(store: Store, run: Run, trace: Any) -> str:
    """Replay a run; return why it failed, "" if it did not."""
    try:
        store.execute(run, trace)
    except Exception as error:  # whatever it is, the other runs go on
        return f"{type(error).__name__}: {error}"
    return ""
