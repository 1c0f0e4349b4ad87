"""Agents that answer as real ones do, with workers that are only pretended.

Also driven by `bench/controller.py`, thousands in one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from malletrain.core.model import Node
from malletrain.wire import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    AbortGroup,
    AgentHello,
    AgentLeaving,
    GroupReady,
    Message,
    PrepareGroup,
    Progress,
    ReleaseNode,
    StartWorkers,
    StopWorkers,
    Switch,
    Switched,
    ToAgent,
    Welcome,
    WorkerExited,
    WorkerInfo,
    WorkerWarm,
    decode,
    encode,
)

_incarnations = itertools.count(1)


@dataclass
class FakeWorker:
    job_id: str
    slot: int = 0
    generation: int = 0
    prepared: PrepareGroup | None = None


@dataclass
class FakeAgent:
    node: Node
    url: str
    token: str
    incarnation: str = field(default_factory=lambda: f"incarnation-{next(_incarnations)}")
    workers: dict[str, FakeWorker] = field(default_factory=dict)
    samples: float = 0.0
    #: Messages that the controller sent, oldest first.
    heard: list[Message] = field(default_factory=list)
    #: Called with each message before it is answered; True: it is not answered at all.
    ignores: Callable[[Message], bool] = lambda _message: False
    #: Its workers exit with this status instead of getting warm.
    dies_with: int | None = None
    welcome: Welcome | None = None
    connection: ClientConnection | None = None
    is_released: bool = False
    _started: set[str] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> FakeAgent:
        await self.call()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.hang_up()

    async def call(self) -> None:
        """Connect, and answer from now on."""
        await self.connect()
        self._task = asyncio.create_task(self._answer())

    async def connect(self) -> None:
        self.connection = await connect(
            self.url.replace("http", "ws", 1) + "/v1/agent",
            additional_headers={"Authorization": f"Bearer {self.token}"},
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            ping_interval=None,
            close_timeout=1.0,
            proxy=None,
        )
        await self.say(self.hello())
        welcome = decode(await self.connection.recv(), ToAgent)
        assert isinstance(welcome, Welcome)
        self.welcome = welcome
        for worker_id in welcome.stop_worker_ids:
            await self.end(worker_id, -9)

    def hello(self) -> AgentHello:
        infos = tuple(
            WorkerInfo(
                worker_id=worker_id,
                job_id=worker.job_id,
                node_id=self.node.id,
                slot=worker.slot,
                generation=worker.generation,
                is_warm=True,
            )
            for worker_id, worker in self.workers.items()
        )
        return AgentHello(
            protocol=PROTOCOL, node=self.node, incarnation=self.incarnation, pid=1, workers=infos
        )

    async def hang_up(self) -> None:
        if self.connection:
            await self.connection.close()
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self.connection = None

    async def say(self, message: Message) -> None:
        assert self.connection is not None
        await self.connection.send(encode(message))

    async def leave(
        self,
        grace_s: float = 5.0,
        *,
        shrink_within_s: float | None = None,
        save_within_s: float | None = None,
    ) -> None:
        await self.say(
            AgentLeaving(
                node_id=self.node.id,
                grace_s=grace_s,
                shrink_within_s=shrink_within_s,
                save_within_s=save_within_s,
            )
        )

    async def until(self, is_so: Callable[[FakeAgent], bool]) -> None:
        while not is_so(self):
            self._changed.clear()
            await self._changed.wait()

    async def progress(
        self, worker_id: str, workers: int, samples: float, loss: float | None = None
    ) -> None:
        worker = self.workers[worker_id]
        await self.say(
            Progress(
                worker_id=worker_id,
                job_id=worker.job_id,
                generation=worker.generation,
                workers=workers,
                step=int(samples),
                epoch=0,
                samples=samples,
                steps=20,
                samples_per_s=100.0 * workers**0.8,
                variance=1.0,
                loss=loss,
            )
        )

    async def end(self, worker_id: str, status: int) -> None:
        worker = self.workers.pop(worker_id, None)
        if worker:
            await self.say(
                WorkerExited(
                    worker_id=worker_id,
                    job_id=worker.job_id,
                    status=status,
                    reason=f"exited with {status}",
                    log_path=f"/logs/{worker_id}.log",
                )
            )

    async def _answer(self) -> None:
        assert self.connection is not None
        with contextlib.suppress(ConnectionClosed):
            async for data in self.connection:
                message = decode(data, ToAgent)
                self.heard.append(message)
                if not self.ignores(message):
                    await self.obey(message)
                self._changed.set()
        self._changed.set()

    async def obey(self, message: Message) -> None:
        match message:
            case StartWorkers():
                await self._start(message)
            case PrepareGroup():
                await self._prepare(message)
            case Switch():
                for worker_id in self._mine(message.to):
                    await self._switch(worker_id, message.generation)
            case AbortGroup():
                for worker_id in self._mine(message.to):
                    self.workers[worker_id].prepared = None
            case StopWorkers():
                for worker_id in message.worker_ids:
                    await self.end(worker_id, -15)
            case ReleaseNode():
                self.is_released = True
                assert self.connection is not None
                await self.connection.close()

    async def _start(self, message: StartWorkers) -> None:
        for slot, start in enumerate(message.workers):
            if start.worker_id in self._started:
                continue
            self._started.add(start.worker_id)
            self.workers[start.worker_id] = FakeWorker(message.job_id, start.gpu or slot)
            if self.dies_with is None:
                await self.say(WorkerWarm(worker_id=start.worker_id, job_id=message.job_id))
            else:
                await self.end(start.worker_id, self.dies_with)

    def _mine(self, worker_ids: tuple[str, ...]) -> list[str]:
        return [worker_id for worker_id in worker_ids if worker_id in self.workers]

    async def _prepare(self, message: PrepareGroup) -> None:
        for worker_id in self._mine(message.to):
            worker = self.workers[worker_id]
            if message.generation <= worker.generation:
                continue
            worker.prepared = message
            if message.is_immediate:
                await self._switch(worker_id, message.generation)
            elif worker_id in message.members:
                await self.say(
                    GroupReady(
                        worker_id=worker_id, job_id=worker.job_id, generation=message.generation
                    )
                )

    async def _switch(self, worker_id: str, generation: int) -> None:
        worker = self.workers[worker_id]
        prepared, worker.prepared = worker.prepared, None
        if prepared is None or prepared.generation != generation:
            return
        if worker_id not in prepared.members:
            await self.end(worker_id, 0)
            return
        worker.generation = generation
        await self.say(
            Switched(
                worker_id=worker_id,
                job_id=worker.job_id,
                generation=generation,
                step=int(self.samples),
                samples=self.samples,
                stall_s=0.01,
            )
        )
