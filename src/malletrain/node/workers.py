"""The workers of one node: started, listened to, watched, ended, and their end reported."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from malletrain.clock import Clock, within
from malletrain.errors import WireError
from malletrain.node.launcher import Launcher
from malletrain.node.worker_link import WorkerLink
from malletrain.node.worker_start import NOT_RUNNABLE
from malletrain.node.zygote import Spawn
from malletrain.wire import (
    JOB_ID_ENV,
    SECRET_ENV,
    SOCKET_ENV,
    STACK_SIGNAL,
    WORKER_ID_ENV,
    AbortGroup,
    FromWorker,
    Heartbeat,
    Malformed,
    Message,
    PrepareGroup,
    StartWorkers,
    StoreAdd,
    StoreGet,
    StoreValue,
    Switch,
    Switched,
    WorkDone,
    WorkerExited,
    WorkerHello,
    WorkerInfo,
    WorkerSettings,
    WorkerStart,
    WorkerWarm,
    WorkerWelcome,
)

_TAIL_LINES = 20
_TAIL_BYTES = 64 * 1024
#: Python writes all stacks within milliseconds, unless the process cannot be helped any more.
_STACKS_TAKE_S = 0.5
#: What a worker said before it ended is in its socket; a child of it may hold that open.
_LAST_WORDS_LIMIT_S = 1.0


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """When a worker counts as hung."""

    #: A worker's own thread speaks every second; a stopped process does not.
    heartbeat_limit_s: float = 10.0
    #: No new step for this long, waiting for others left out.
    hang_limit_s: float = 120.0

    @property
    def check_every_s(self) -> float:
        return min(1.0, self.heartbeat_limit_s / 4, self.hang_limit_s / 4)


@dataclass(slots=True)
class _Worker:
    job_id: str
    slot: int
    settings: WorkerSettings
    log_path: Path
    generation: int = 0
    is_warm: bool = False
    has_attached: bool = False
    #: Neither steps nor heartbeats are expected any more.
    is_ending: bool = False
    step: int = -1
    heard_at_s: float = 0.0
    stepped_at_s: float = 0.0
    #: Why the agent ends it, where it has a reason of its own.
    verdict: str = ""


class Workers:
    """Owns the worker link and the launcher. `say` takes what the controller must hear."""

    def __init__(
        self,
        node_id: str,
        run_dir: Path,
        watch: WatchSettings,
        *,
        base_env: Mapping[str, str],
        clock: Clock,
        launcher: Launcher,
        new_secret: Callable[[], str],
        say: Callable[[Message], None],
        forget: Callable[[int], None],
    ) -> None:
        self._node_id = node_id
        self._watch_settings = watch
        self._base_env = base_env
        self._clock = clock
        self._launcher = launcher
        self._new_secret = new_secret
        self._say = say
        self._forget = forget
        self._workers: dict[str, _Worker] = {}
        #: Each id is started once: the order comes again where it may have been lost.
        self._started: set[str] = set()
        self._secrets: dict[str, str] = {}
        self.link = WorkerLink(run_dir / "workers.sock", clock, self._secrets, self)
        self._requests = count(1)
        #: Our request number -> whose it is, and theirs.
        self._asked: dict[int, tuple[str, int]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self.none_left = asyncio.Event()
        self.none_left.set()

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Listen and watch; what has to wait for something runs in the given tasks."""
        self._tasks = tasks
        await self.link.start()
        await self._launcher.start(self._on_exit)
        self._run(self._watch())

    async def close(self) -> None:
        await self._launcher.close()
        await self.link.close()

    @property
    def infos(self) -> tuple[WorkerInfo, ...]:
        return tuple(
            WorkerInfo(
                worker_id=worker_id,
                job_id=worker.job_id,
                node_id=self._node_id,
                slot=worker.slot,
                generation=worker.generation,
                is_warm=worker.is_warm,
            )
            for worker_id, worker in self._workers.items()
        )

    # -- what the controller wants ----------------------------------------------------------------

    async def start_workers(self, order: StartWorkers) -> None:
        for start in order.workers:
            if start.worker_id not in self._started:
                self._started.add(start.worker_id)
                await self._start(start, order)

    async def _start(self, start: WorkerStart, order: StartWorkers) -> None:
        log_path = Path(order.log_dir, f"{start.worker_id}.log")
        # One worker a GPU: the GPU's index is the worker's place on the node.
        worker = _Worker(order.job_id, start.gpu or 0, order.settings, log_path)
        self._workers[start.worker_id] = worker
        self._secrets[start.worker_id] = self._new_secret()
        self.none_left.clear()
        try:
            _make_log(log_path)
            await self._launcher.spawn(
                Spawn(
                    worker_id=start.worker_id,
                    command=order.command,
                    cwd=order.cwd,
                    env=self._env(start, order),
                    log_path=str(log_path),
                )
            )
        except OSError as error:
            worker.verdict = f"could not be started: {error}"
            self._ended(start.worker_id, NOT_RUNNABLE)

    def _env(self, start: WorkerStart, order: StartWorkers) -> dict[str, str]:
        env = {**self._base_env, **dict(order.env)}
        env[SOCKET_ENV] = str(self.link.socket_path)
        env[JOB_ID_ENV] = order.job_id
        env[WORKER_ID_ENV] = start.worker_id
        env[SECRET_ENV] = self._secrets[start.worker_id]
        if start.gpu is not None:
            env["CUDA_VISIBLE_DEVICES"] = str(start.gpu)
        return env

    def stop(self, worker_ids: Iterable[str], grace_s: float) -> None:
        """End workers: SIGTERM, the grace period, SIGKILL."""
        for worker_id in worker_ids:
            if worker := self._workers.get(worker_id):
                self._run(self._stop(worker_id, worker, grace_s))

    def kill_all(self, verdict: str) -> None:
        for worker_id, worker in self._workers.items():
            worker.verdict = worker.verdict or verdict
            self._launcher.signal(worker_id, signal.SIGKILL)

    async def _stop(self, worker_id: str, worker: _Worker, grace_s: float) -> None:
        if grace_s > 0:
            self._launcher.signal(worker_id, signal.SIGTERM)
            worker.is_ending = True
            await self._clock.sleep(grace_s)
        if self._workers.get(worker_id) is worker:
            self._launcher.signal(worker_id, signal.SIGKILL)

    def pass_on(self, message: PrepareGroup | Switch | AbortGroup) -> None:
        for worker_id in message.to:
            self.link.send(worker_id, message)

    def answer(self, value: StoreValue) -> None:
        if asked := self._asked.pop(value.request, None):
            worker_id, request = asked
            self.link.send(worker_id, StoreValue(request=request, value=value.value))

    # -- what workers say -------------------------------------------------------------------------

    def welcome(self, hello: WorkerHello) -> WorkerWelcome | None:
        worker = self._workers.get(hello.worker_id)
        if worker is None:
            return None
        worker.has_attached = True
        worker.heard_at_s = worker.stepped_at_s = self._clock.now_s()
        return WorkerWelcome(settings=worker.settings)

    def worker_said(self, worker_id: str, message: FromWorker) -> None:
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        if isinstance(message, WorkerHello):
            raise WireError(f"{worker_id} says hello twice")
        if getattr(message, "worker_id", worker_id) != worker_id:
            raise WireError(f"{worker_id} speaks for another worker")
        if isinstance(message, Heartbeat):
            self._heard(worker, message)
            return
        if message.job_id != worker.job_id:
            raise WireError(f"{worker_id} of job {worker.job_id} speaks for job {message.job_id}")
        if isinstance(message, WorkerWarm):
            worker.is_warm = True
        elif isinstance(message, Switched):
            worker.generation = message.generation
        elif isinstance(message, WorkDone):
            worker.is_ending = True
        elif isinstance(message, StoreGet | StoreAdd):
            request = next(self._requests)
            self._asked[request] = (worker_id, message.request)
            message = msgspec.structs.replace(message, request=request)
        self._say(message)

    def malformed(self, connections: int) -> None:
        self._say(Malformed(connections=connections))

    def _heard(self, worker: _Worker, heartbeat: Heartbeat) -> None:
        worker.heard_at_s = self._clock.now_s()
        if heartbeat.is_waiting or heartbeat.step != worker.step:
            worker.step = heartbeat.step
            worker.stepped_at_s = worker.heard_at_s

    # -- hangs ------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Give up workers that hang; the whole job stands still for them."""
        every_s = self._watch_settings.check_every_s
        checked_at_s = self._clock.now_s()
        while True:
            await self._clock.sleep(every_s)
            now_s = self._clock.now_s()
            # If this very process was stopped, what it should have heard has yet to be read.
            if now_s - checked_at_s < every_s + self._watch_settings.heartbeat_limit_s / 2:
                for worker_id, worker in self._workers.items():
                    if (verdict := self._hang(worker, now_s)) and not worker.verdict:
                        worker.verdict = verdict
                        self._run(self._end_hung(worker_id, worker))
            checked_at_s = now_s

    def _hang(self, worker: _Worker, now_s: float) -> str:
        if not worker.has_attached or worker.is_ending:
            return ""
        limits = self._watch_settings
        if now_s - worker.heard_at_s > limits.heartbeat_limit_s:
            return f"hung: no heartbeat for {limits.heartbeat_limit_s:g} s"
        if now_s - worker.stepped_at_s > limits.hang_limit_s:
            return f"hung: no step for {limits.hang_limit_s:g} s"
        return ""

    async def _end_hung(self, worker_id: str, worker: _Worker) -> None:
        self._launcher.signal(worker_id, STACK_SIGNAL)
        # A stopped process acts upon the signal only once it goes on.
        self._launcher.signal(worker_id, signal.SIGCONT)
        await self._clock.sleep(_STACKS_TAKE_S)
        if self._workers.get(worker_id) is worker:
            self._launcher.signal(worker_id, signal.SIGKILL)

    # -- ends -------------------------------------------------------------------------------------

    def _on_exit(self, worker_id: str, status: int) -> None:
        if worker_id in self._workers:
            self._run(self._hear_out(worker_id, status))

    async def _hear_out(self, worker_id: str, status: int) -> None:
        """Report the end behind everything that the worker said itself."""
        with contextlib.suppress(TimeoutError):
            await within(self._clock, _LAST_WORDS_LIMIT_S, self.link.closed(worker_id))
        self._ended(worker_id, status)

    def _ended(self, worker_id: str, status: int) -> None:
        worker = self._workers.pop(worker_id)
        del self._secrets[worker_id]
        for request in [r for r, (asker, _) in self._asked.items() if asker == worker_id]:
            del self._asked[request]
            self._forget(request)
        self._say(
            WorkerExited(
                worker_id=worker_id,
                job_id=worker.job_id,
                status=status,
                reason=worker.verdict or _in_words(status),
                log_path=str(worker.log_path),
                log_tail=_tail(worker.log_path) if status else "",
                had_attached=worker.has_attached,
            )
        )
        if not self._workers:
            self.none_left.set()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._tasks is not None
        self._tasks.create_task(work)


def _make_log(path: Path) -> None:
    """Fail here, where the controller can be told, not in the worker, which could only exit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def _in_words(status: int) -> str:
    if status >= 0:
        return f"exited with {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _tail(path: Path) -> str:
    """Return the last lines of a log that may be huge or gone."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError as error:
        return f"(the log cannot be read: {error})"
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
