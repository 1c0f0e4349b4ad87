"""The controller's end of an agent's connection, driven by a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from malletrain.live.wire import (
    PROTOCOL,
    AgentHello,
    FromAgent,
    Message,
    Welcome,
    decode,
    encode,
)

TOKEN = "a-test-token"
_LIMIT_S = 15.0


class FakeController:
    """Welcomes one agent, keeps what it says, and sends what the test wants."""

    def __init__(self, stop_worker_ids: tuple[str, ...] = ()) -> None:
        self.heard: list[Message] = []
        self.tokens: list[str | None] = []
        self.connection: ServerConnection | None = None
        self.welcome = Welcome(
            protocol=PROTOCOL, controller="a fake one", stop_worker_ids=stop_worker_ids
        )
        self.port = 0
        self._server: Any = None
        self._news = asyncio.Condition()

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
        self.connection = None

    async def send(self, message: Message) -> None:
        assert self.connection is not None
        await self.connection.send(encode(message))

    async def send_raw(self, data: bytes) -> None:
        assert self.connection is not None
        await self.connection.send(data)

    async def hears(self, kind: type[Any], is_it: Callable[[Any], bool] = lambda _: True) -> Any:
        """Wait for a message, or find it among those heard; each is found once."""
        async with asyncio.timeout(_LIMIT_S), self._news:
            while True:
                for index, message in enumerate(self.heard):
                    if isinstance(message, kind) and is_it(message):
                        return self.heard.pop(index)
                await self._news.wait()

    async def is_left(self) -> None:
        """Wait until the agent has closed its connection."""
        assert self.connection is not None
        async with asyncio.timeout(_LIMIT_S):
            await self.connection.wait_closed()

    async def _talk(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.tokens.append(connection.request.headers.get("Authorization"))
        assert connection.request.path == "/v1/agent"
        try:
            async for data in connection:
                assert isinstance(data, bytes)
                message = decode(data, FromAgent)
                if isinstance(message, AgentHello):
                    self.connection = connection
                    await connection.send(encode(self.welcome))
                async with self._news:
                    self.heard.append(message)
                    self._news.notify_all()
        except ConnectionClosed:
            pass
