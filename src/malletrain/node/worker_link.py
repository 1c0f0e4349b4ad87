"""The agent's end of its workers' connections: a Unix socket that only their user may reach."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from malletrain.clock import Clock, within
from malletrain.errors import UserError, WireError
from malletrain.frames import frame, read_frame
from malletrain.wire import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    FromWorker,
    Message,
    WorkerHello,
    WorkerWelcome,
    decode,
    encode,
)

#: What the kernel leaves for a socket's path.
_MAX_PATH_BYTES = 107
#: A connection that has not said who it is by then is closed.
_HELLO_LIMIT_S = 10.0

_logger = logging.getLogger(__name__)


class LinkOwner(Protocol):
    """Who is told of what workers say."""

    def welcome(self, hello: WorkerHello) -> WorkerWelcome | None:
        """Return what the worker must know, None for a worker that is not expected."""
        ...

    def worker_said(self, worker_id: str, message: FromWorker) -> None:
        """Take a message; raises `WireError` where it is not this worker's to say."""
        ...

    def malformed(self, connections: int) -> None:
        """So many connections were closed by now for what they said."""
        ...


class WorkerLink:
    """Accepts workers, checks that they are who they say, and carries messages both ways."""

    def __init__(
        self, socket_path: Path, clock: Clock, secrets: Mapping[str, str], owner: LinkOwner
    ) -> None:
        self.socket_path = socket_path
        self._clock = clock
        #: Connections closed for what they said.
        self._malformed = 0
        self._secrets = secrets
        self._owner = owner
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._closed: dict[str, asyncio.Event] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        length = len(os.fsencode(self.socket_path))
        if length > _MAX_PATH_BYTES:
            raise UserError(
                f"the socket's path {self.socket_path} has {length} bytes, the limit is "
                f"{_MAX_PATH_BYTES}: choose a shorter run directory"
            )
        self.socket_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.socket_path.parent.chmod(0o700)
        self.socket_path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self.socket_path)

    async def close(self) -> None:
        if self._server:
            self._server.close()
        for writer in self._writers.values():
            writer.close()
        self.socket_path.unlink(missing_ok=True)

    def send(self, worker_id: str, message: Message) -> None:
        """Send to a worker; one that is not attached, or not any more, gets nothing."""
        if writer := self._writers.get(worker_id):
            writer.write(frame(encode(message)))

    async def closed(self, worker_id: str) -> None:
        """Return when all that the worker has said was taken and its connection is closed."""
        if closed := self._closed.get(worker_id):
            await closed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker_id = ""
        try:
            hello = await within(self._clock, _HELLO_LIMIT_S, self._receive(reader))
            if hello is None:
                return
            worker_id = self._admit(hello, writer)
            while message := await self._receive(reader):
                self._owner.worker_said(worker_id, message)
        except (WireError, TimeoutError) as error:
            self._malformed += 1
            who = worker_id or "a stranger"
            _logger.warning("closed a connection of %s (no. %d): %s", who, self._malformed, error)
            self._owner.malformed(self._malformed)
        except asyncio.CancelledError:
            # The agent ends. Before Python 3.12 a cancelled handler is reported as an error.
            pass
        finally:
            if worker_id:
                del self._writers[worker_id]
                self._closed.pop(worker_id).set()
            with contextlib.suppress(OSError):
                writer.close()

    async def _receive(self, reader: asyncio.StreamReader) -> Any:
        data = await read_frame(reader, MAX_MESSAGE_BYTES)
        return None if data is None else decode(data, FromWorker)

    def _admit(self, hello: Any, writer: asyncio.StreamWriter) -> str:
        if not isinstance(hello, WorkerHello):
            raise WireError("the first message must be WorkerHello")
        if hello.protocol != PROTOCOL:
            raise WireError(
                f"{hello.worker_id} speaks protocol {hello.protocol}, this agent {PROTOCOL}: "
                f"install the same malletrain version for both"
            )
        secret = self._secrets.get(hello.worker_id, "")
        if not secret or not hmac.compare_digest(secret.encode(), hello.secret.encode()):
            raise WireError(f"wrong secret for {hello.worker_id}")
        if hello.worker_id in self._writers:
            raise WireError(f"{hello.worker_id} is attached already")
        welcome = self._owner.welcome(hello)
        if welcome is None:
            raise WireError(f"{hello.worker_id} is not expected any more")
        self._writers[hello.worker_id] = writer
        self._closed[hello.worker_id] = asyncio.Event()
        writer.write(frame(encode(welcome)))
        return hello.worker_id
