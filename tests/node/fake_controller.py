"""The controller's end of agents' connections, driven by a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from malletrain.wire import (
    PROTOCOL,
    AgentHello,
    FromAgent,
    Message,
    Welcome,
    decode,
    encode,
)


@dataclass(frozen=True)
class HungUp:
    """A node's agent has closed its connection, or died."""

    node_id: str


@dataclass(frozen=True)
class NodeGone:
    """The batch system said that nothing of the node runs any more."""

    node_id: str


@dataclass(frozen=True)
class BatchEnded:
    """The batch system is no more."""

    reason: str


@dataclass(frozen=True)
class BatchAbused:
    """More connections to the batch system were closed for what came."""

    times: int


Heard = Message | HungUp | NodeGone | BatchEnded | BatchAbused
TOKEN = "a-test-token"
#: The script of workers that need no PyTorch.
FAKE_WORKER = Path(__file__).with_name("fake_worker.py")
_LIMIT_S = 15.0


class FakeController:
    """Welcomes agents, keeps what they say, and sends what the test wants."""

    def __init__(self, stop_worker_ids: tuple[str, ...] = ()) -> None:
        self.heard: list[Heard] = []
        self.tokens: list[str | None] = []
        self.connections: dict[str, ServerConnection] = {}
        self.welcome = Welcome(
            protocol=PROTOCOL, controller="a fake one", stop_worker_ids=stop_worker_ids
        )
        self.port = 0
        self._server: Any = None
        self._news = asyncio.Condition()
        self._telling: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeController:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Listen; again on the same port after a `close`."""
        self._server = await serve(self._talk, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def send(self, message: Message, node_id: str = "n1") -> None:
        await self.send_raw(encode(message), node_id)

    async def send_raw(self, data: bytes, node_id: str = "n1") -> None:
        await self.connections[node_id].send(data)

    async def hears(self, kind: type[Any], is_it: Callable[[Any], bool] = lambda _: True) -> Any:
        """Wait for a message, or find it among those heard; each is found once."""
        async with asyncio.timeout(_LIMIT_S), self._news:
            while True:
                for index, message in enumerate(self.heard):
                    if isinstance(message, kind) and is_it(message):
                        return self.heard.pop(index)
                await self._news.wait()

    async def _talk(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.tokens.append(connection.request.headers.get("Authorization"))
        assert connection.request.path == "/v1/agent"
        node_id = ""
        try:
            async for data in connection:
                assert isinstance(data, bytes)
                message = decode(data, FromAgent)
                if isinstance(message, AgentHello):
                    node_id = message.node.id
                    self.connections[node_id] = connection
                    await connection.send(encode(self.welcome))
                await self._hear(message)
        except ConnectionClosed:
            pass
        await self._hear(HungUp(node_id))

    def node_lost(self, node_id: str, _reason: str) -> None:
        """Hear what a batch system says (see `batch.base.BatchListener`)."""
        self._telling.append(asyncio.create_task(self._hear(NodeGone(node_id))))

    def nodes_ended(self, reason: str) -> None:
        """Nothing is known of nodes before this controller."""

    def batch_ended(self, reason: str) -> None:
        self._telling.append(asyncio.create_task(self._hear(BatchEnded(reason))))

    def batch_port_abused(self, times: int) -> None:
        self._telling.append(asyncio.create_task(self._hear(BatchAbused(times))))

    def batch_troubled(self, trouble: str) -> None:
        raise AssertionError(trouble)

    def pilots_wait(self, count: int) -> None:
        raise AssertionError(count)

    def nodes_to_leave(self, reasons: Mapping[str, str], within_s: float) -> None:
        raise AssertionError((reasons, within_s))

    def node_ends_foreseen(self, ends_at_s: Mapping[str, float | None]) -> None:
        raise AssertionError(ends_at_s)

    async def _hear(self, message: Heard) -> None:
        async with self._news:
            self.heard.append(message)
            self._news.notify_all()
