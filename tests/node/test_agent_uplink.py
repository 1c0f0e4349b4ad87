"""What the agent keeps for a controller that is away, on connections and a clock of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from malletrain.core.model import Node
from malletrain.node.uplink import Uplink
from malletrain.wire import (
    PROTOCOL,
    AgentHello,
    FromAgent,
    GroupReady,
    Message,
    Noted,
    Progress,
    StoreGet,
    StoreSet,
    StoreValue,
    Welcome,
    decode,
    encode,
)
from tests.live.manual_clock import ManualClock, settle

pytestmark = pytest.mark.anyio

WELCOME = Welcome(protocol=PROTOCOL, controller="a test")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class FakeConnection:
    """Its peer hears what is sent, and proves it when the test says so."""

    def __init__(self, welcome: Message = WELCOME) -> None:
        self.heard: list[Message] = []
        self.is_closed = False
        self._proofs = asyncio.Semaphore(0)
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.say(welcome)

    def say(self, message: Message) -> None:
        self._inbox.put_nowait(encode(message))

    def say_raw(self, data: bytes) -> None:
        self._inbox.put_nowait(data)

    def lose(self) -> None:
        self._inbox.put_nowait(None)

    def prove(self, round_trips: int = 100) -> None:
        """Let this many round trips come to their end."""
        for _ in range(round_trips):
            self._proofs.release()

    async def send(self, data: bytes) -> None:
        self.heard.append(decode(data, FromAgent))

    async def receive(self) -> bytes:
        data = await self._inbox.get()
        if data is None:
            raise ConnectionError("lost")
        return data

    async def flush(self) -> None:
        await self._proofs.acquire()

    async def close(self) -> None:
        self.is_closed = True

    @property
    def without_hello(self) -> list[Message]:
        assert isinstance(self.heard[0], AgentHello)
        return self.heard[1:]


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.received: list[Any] = []
        #: The connections that the next attempts find; none: the controller is away.
        self.next: list[FakeConnection] = []
        self.uplink = Uplink(
            self._connect,
            self.clock,
            lambda: 0.5,
            hello=lambda: AgentHello(
                protocol=PROTOCOL, node=Node("n1", 0.0), incarnation="i", pid=1
            ),
            receive=self.received.append,
            away_limit_s=60.0,
        )

    async def _connect(self) -> FakeConnection:
        if not self.next:
            raise ConnectionRefusedError("away")
        return self.next.pop(0)

    async def connected(self, connection: FakeConnection) -> FakeConnection:
        """Have the uplink find this connection at its next attempt."""
        self.next.append(connection)
        await self.clock.advance(10)
        assert not self.next
        return connection


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    a_world = World()
    running = asyncio.create_task(a_world.uplink.run())
    try:
        yield a_world
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def ready(generation: int) -> GroupReady:
    return GroupReady(worker_id="w", job_id="j", generation=generation)


def progress(step: int, worker_id: str = "w") -> Progress:
    return Progress(
        worker_id=worker_id,
        job_id="j",
        generation=1,
        workers=1,
        step=step,
        epoch=0,
        samples=float(step),
        steps=1,
        samples_per_s=1.0,
        variance=0.0,
    )


async def test_what_was_said_while_away_is_said_in_order_but_only_the_newest_progress() -> None:
    async with world() as w:
        for step in range(3):
            w.uplink.send(ready(step))
            w.uplink.send(progress(step))
            w.uplink.send(progress(step, "other"))
        connection = await w.connected(FakeConnection())
        said = [m for m in connection.without_hello if isinstance(m, GroupReady)]
        assert said == [ready(step) for step in range(3)]
        rest = [m for m in connection.without_hello if isinstance(m, Progress)]
        assert sorted(m.worker_id for m in rest) == ["other", "w"]
        assert {m.step for m in rest} == {2}


async def test_what_may_not_have_arrived_is_said_again() -> None:
    async with world() as w:
        first = await w.connected(FakeConnection())
        w.uplink.send(ready(1))
        w.uplink.send(progress(1))
        await settle()
        assert first.without_hello == [ready(1), progress(1)]
        first.lose()
        second = await w.connected(FakeConnection())
        assert first.is_closed
        assert second.without_hello == [ready(1)]
        second.prove()
        await settle()
        second.lose()
        third = await w.connected(FakeConnection())
        assert third.without_hello == []


async def test_a_proof_covers_only_what_was_sent_before_it_was_asked_for() -> None:
    async with world() as w:
        first = await w.connected(FakeConnection())
        w.uplink.send(ready(1))
        await settle()
        w.uplink.send(ready(2))
        await settle()
        first.prove(1)  # the round trip that began between the two
        await settle()
        first.lose()
        second = await w.connected(FakeConnection())
        assert second.without_hello == [ready(2)]


async def test_questions_are_asked_again_until_they_are_answered() -> None:
    async with world() as w:
        first = await w.connected(FakeConnection())
        first.prove()
        key = StoreSet(job_id="j", generation=1, key="k", value=b"v")
        questions = [StoreGet(job_id="j", generation=1, key="k", request=r) for r in (1, 2, 3)]
        for message in (key, *questions):
            w.uplink.send(message)
        first.say(StoreValue(request=1, value=b"v"))
        await settle()
        w.uplink.forget(3)
        first.lose()
        second = await w.connected(FakeConnection())
        assert second.without_hello == [questions[1]]
        assert w.received == [WELCOME, StoreValue(request=1, value=b"v"), WELCOME]


async def test_flushing_waits_for_the_proof_but_not_for_a_controller_that_is_away() -> None:
    async with world() as w:
        w.uplink.send(ready(1))
        await w.uplink.flush()
        connection = await w.connected(FakeConnection())
        flushing = asyncio.ensure_future(w.uplink.flush())
        await settle()
        assert not flushing.done()
        connection.prove()
        await flushing


async def test_attempts_become_rare_and_end_at_the_limit() -> None:
    a_world = World()
    running = asyncio.create_task(a_world.uplink.run())
    await a_world.clock.advance(61)
    await running
    pauses_s = a_world.clock.asked_s
    assert pauses_s[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(pauses_s) == 5.0
    assert len(pauses_s) < 25


@pytest.mark.parametrize(
    "welcome",
    [Welcome(protocol=PROTOCOL + 1, controller="newer"), StoreValue(request=1, value=b"")],
)
async def test_a_controller_that_begins_wrongly_is_left_and_counted(welcome: Message) -> None:
    async with world() as w:
        w.uplink.send(Noted(worker_id="w", job_id="j", note="kept"))
        connection = await w.connected(FakeConnection(welcome))
        assert connection.is_closed
        assert connection.without_hello == []
        assert w.received == []
        assert w.uplink.malformed == 1


async def test_nonsense_ends_the_connection_and_is_counted() -> None:
    async with world() as w:
        connection = await w.connected(FakeConnection())
        connection.say_raw(b"\xc1")
        await settle()
        assert connection.is_closed
        assert w.uplink.malformed == 1
        await w.connected(FakeConnection())
        assert w.received == [WELCOME, WELCOME]
