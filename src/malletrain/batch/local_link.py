"""The controller's connection to the process that keeps the local nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from malletrain.batch.local_host import MAX_MESSAGE_BYTES, FromHost, NodeGone, Reply, Request
from malletrain.errors import WireError
from malletrain.frames import frame, read_frame

_decode = msgspec.msgpack.Decoder[FromHost](FromHost).decode


class HostLink:
    """Asks, and hears: answers come in the order of the requests, notices at any time."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_gone: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._on_gone = on_gone
        self._on_end = on_end
        #: None: the host has ended.
        self._answers: deque[asyncio.Future[Reply | None]] = deque()
        self._is_open = True
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(
        cls, socket_path: Path, on_gone: Callable[[str], None], on_end: Callable[[], None]
    ) -> HostLink | None:
        """Connect; None where nobody listens. `on_end`: the host has ended, unless we hang up."""
        try:
            reader, writer = await asyncio.open_unix_connection(socket_path)
        except OSError:
            return None
        return cls(reader, writer, on_gone, on_end)

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
                while data := await read_frame(self._reader, MAX_MESSAGE_BYTES):
                    self._take(_decode(data))
        finally:
            self._is_open = False
            for answer in self._answers:
                if not answer.done():
                    answer.set_result(None)
        self._on_end()

    def _take(self, message: FromHost) -> None:
        if isinstance(message, NodeGone):
            self._on_gone(message.node_id)
            return
        if not self._answers:
            raise WireError("an answer that nobody asked for")
        answer = self._answers.popleft()
        if not answer.done():
            answer.set_result(message)
