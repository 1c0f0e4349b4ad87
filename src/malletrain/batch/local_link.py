"""The controller's connection to the process that keeps the local nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from pathlib import Path
from typing import Protocol

import msgspec

from malletrain.batch.local_host import (
    MAX_MESSAGE_BYTES,
    FromHost,
    Malformed,
    NodeGone,
    Reply,
    Request,
)
from malletrain.errors import WireError
from malletrain.frames import frame, read_frame

_decode = msgspec.msgpack.Decoder[FromHost](FromHost).decode


class Notices(Protocol):
    """Who is told what the host says unasked."""

    def node_gone(self, node_id: str) -> None: ...

    def host_abused(self, times: int) -> None:
        """So many more connections to it were closed for what came over them."""
        ...

    def host_ended(self) -> None:
        """Its end of the connection is closed; not told where ours is first."""
        ...


class HostLink:
    """Asks, and hears: answers come in the order of the requests, notices at any time."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        notices: Notices,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._notices = notices
        #: By the host's count.
        self._malformed = 0
        #: None: the host has ended.
        self._answers: deque[asyncio.Future[Reply | None]] = deque()
        self._is_open = True
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, socket_path: Path, notices: Notices) -> HostLink | None:
        """Connect; None where nobody listens."""
        try:
            reader, writer = await asyncio.open_unix_connection(socket_path)
        except OSError:
            return None
        return cls(reader, writer, notices)

    async def ask(self, request: Request) -> Reply | None:
        """Return the host's answer; None where it has ended."""
        if not self._is_open:
            return None
        answer: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._writer.write(frame(msgspec.msgpack.encode(request)))
        return await answer

    async def close(self) -> None:
        self._listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _listen(self) -> None:
        try:
            with contextlib.suppress(WireError, msgspec.DecodeError, OSError):
                while (data := await read_frame(self._reader, MAX_MESSAGE_BYTES)) is not None:
                    self._take(_decode(data))
        finally:
            self._is_open = False
            for answer in self._answers:
                if not answer.done():
                    answer.set_result(None)
        self._notices.host_ended()

    def _take(self, message: FromHost) -> None:
        if isinstance(message, NodeGone):
            self._notices.node_gone(message.node_id)
            return
        if isinstance(message, Malformed):
            self._notices.host_abused(message.connections - self._malformed)
            self._malformed = message.connections
            return
        if not self._answers:
            raise WireError("an answer that nobody asked for")
        answer = self._answers.popleft()
        if not answer.done():
            answer.set_result(message)
