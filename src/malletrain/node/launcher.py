"""How an agent starts processes: the protocol, and the one that asks a zygote."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from malletrain import processes
from malletrain.errors import WireError
from malletrain.frames import frame, read_frame
from malletrain.node.zygote import Exited, FromZygote, Signal, Spawn, Spawned, ToZygote

_MAX_REPLY_BYTES = 65536
_ZYGOTE_END_LIMIT_S = 5.0

#: Worker id and exit status (negative: killed by that signal).
OnExit = Callable[[str, int], None]


class Launcher(Protocol):
    """Starts workers; each ends in exactly one call of what `on_exit` was given."""

    async def start(self, on_exit: OnExit) -> None: ...

    async def spawn(self, spawn: Spawn) -> None: ...

    def signal(self, worker_id: str, signum: int) -> None:
        """Signal a worker; one that has ended is no error."""
        ...

    async def close(self) -> None:
        """End what is left, without calling back."""
        ...


class ZygoteLauncher:
    """Asks the machine's zygote where there is one, else a zygote of its own."""

    def __init__(self, machine_zygote: Path | None, preload: Sequence[str]) -> None:
        self._machine_zygote = machine_zygote
        self._preload = tuple(preload)
        self._on_exit: OnExit = lambda _worker_id, _status: None
        self._running: set[str] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._own: subprocess.Popen[bytes] | None = None
        #: It has ever said that it started a worker: before, it may still be importing.
        self._has_spawned = False

    async def start(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        await self._connect()

    async def spawn(self, spawn: Spawn) -> None:
        if self._writer is None:
            await self._connect()
        self._running.add(spawn.worker_id)
        self._send(spawn)

    def signal(self, worker_id: str, signum: int) -> None:
        self._send(Signal(worker_id=worker_id, signum=signum))

    async def close(self) -> None:
        self._running.clear()
        if self._reading:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        await self._disconnect()

    def _send(self, request: ToZygote) -> None:
        if self._writer:
            self._writer.write(frame(msgspec.msgpack.encode(request)))

    async def _connect(self) -> None:
        reader, self._writer = await self._connect_machine() or await self._start_own()
        self._reading = asyncio.create_task(self._read(reader))

    async def _connect_machine(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        if self._machine_zygote is None:
            return None
        try:
            return await asyncio.open_unix_connection(self._machine_zygote)
        except OSError:
            return None  # a machine without its zygote only starts workers more slowly

    async def _start_own(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, its = socket.socketpair()
        with its:
            self._own = _start_zygote(its, self._preload)
        return await asyncio.open_unix_connection(sock=ours)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(WireError, msgspec.DecodeError):
            while data := await read_frame(reader, _MAX_REPLY_BYTES):
                self._handle(msgspec.msgpack.decode(data, type=FromZygote))
        # The zygote is gone, and the kernel has killed its workers with it.
        self._machine_zygote = None
        await self._disconnect()
        for worker_id in sorted(self._running):
            self._handle(Exited(worker_id=worker_id, status=-signal.SIGKILL))

    def _handle(self, reply: Spawned | Exited) -> None:
        self._has_spawned = True
        if isinstance(reply, Exited) and reply.worker_id in self._running:
            self._running.discard(reply.worker_id)
            self._on_exit(reply.worker_id, reply.status)

    async def _disconnect(self) -> None:
        if self._writer:
            writer, self._writer = self._writer, None
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        if self._own:
            if not self._has_spawned:
                # It may be busy with imports for seconds, and has nothing below it.
                self._own.kill()
            # Else it ends by itself as soon as the connection is closed and its workers are gone.
            try:
                self._own.wait(_ZYGOTE_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                # A worker that hangs in a driver holds it, and must not hold the node's agent.
                self._own.kill()
            self._own = None


def _start_zygote(connection: socket.socket, preload: Sequence[str]) -> subprocess.Popen[bytes]:
    fd = str(connection.fileno())
    command = [*processes.PYTHON, "-m", "malletrain.node.zygote", "--fd", fd]
    return subprocess.Popen(
        [*command, "--preload", ",".join(preload)],
        stdin=subprocess.DEVNULL,
        pass_fds=[connection.fileno()],
    )
