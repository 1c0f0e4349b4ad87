"""The agents' part of a local job: every worker runs on a made-up node of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from malletrain import processes
from malletrain.errors import WireError
from malletrain.frames import Unframer, frame
from malletrain.node.zygote import Exited, FromZygote, Signal, Spawn, Spawned, ToZygote
from malletrain.wire import (
    JOB_ID_ENV,
    MAX_MESSAGE_BYTES,
    SECRET_ENV,
    SOCKET_ENV,
    WORKER_ID_ENV,
    FromWorker,
    Message,
    WorkerExited,
    WorkerHello,
    WorkerSettings,
    WorkerWelcome,
    decode,
    encode,
)

#: What workers need and take long to import.
PRELOAD = ("numpy", "torch", "torch._dynamo", "torch.distributed", "malletrain.train")
_TICK_S = 0.1
_LOG_LINES = 20
_CHUNK_BYTES = 1 << 16


class WarmParent:
    """A machine's zygote: jobs fork their workers from it, with everything imported."""

    def __init__(self, preload: Sequence[str] = PRELOAD) -> None:
        #: What workers must be given to be forked and not started anew.
        self.environment = dict(os.environ)
        self._directory = tempfile.TemporaryDirectory(prefix="warm-")
        path = Path(self._directory.name, "zygote.sock")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            command = [*processes.PYTHON, "-m", "malletrain.node.zygote", "--listen-fd"]
            self._process = subprocess.Popen(
                [*command, str(listener.fileno()), "--preload", ",".join(preload)],
                pass_fds=[listener.fileno()],
            )
        self._path = path

    def connect(self) -> socket.socket:
        """Return a connection to a zygote of one's own."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self._path))
        return connection

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._directory.cleanup()

    def __enter__(self) -> WarmParent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Connection:
    """An agent's end of its connection with a worker."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.unframer = Unframer(MAX_MESSAGE_BYTES)

    def send(self, message: Message) -> None:
        # One that is gone is noticed by its process's end.
        with contextlib.suppress(OSError):
            self.stream.sendall(frame(encode(message)))


@dataclass(slots=True)
class Process:
    """A worker that was started and has not ended."""

    worker_id: str
    node_id: str
    pid: int = 0
    connection: Connection | None = None


class Nodes:
    """Start workers, and speak with them; for one thread at a time.

    Args:
        job_id: of the one job there is.
        command: starts a worker.
        directory: for the socket and the logs.
        parent: what workers are forked from.
        settings: for the workers.
        environment: added to the workers' own.
        on_message: is called with what a worker says, and its connection.
        on_exit: is called when a worker has ended.
    """

    def __init__(
        self,
        job_id: str,
        command: Sequence[str],
        directory: Path,
        parent: WarmParent,
        *,
        settings: WorkerSettings,
        environment: Mapping[str, str],
        on_message: Callable[[Connection, Any], None],
        on_exit: Callable[[WorkerExited], None],
    ) -> None:
        self._job_id = job_id
        self._command = tuple(command)
        self._directory = directory
        self._settings = settings
        self._secret = secrets.token_hex(8)
        socket_path = directory / "agent.sock"
        self._environment = {
            **parent.environment,
            **environment,
            SOCKET_ENV: str(socket_path),
            JOB_ID_ENV: job_id,
            SECRET_ENV: self._secret,
        }
        self._on_message = on_message
        self._on_exit = on_exit
        #: By worker id.
        self.processes: dict[str, Process] = {}
        #: Workers of nodes taken for lost, by node.
        self._strays: dict[str, Process] = {}
        self._connections: list[Connection] = []
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(socket_path))
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._zygote = parent.connect()
        self._zygote_unframer = Unframer(MAX_MESSAGE_BYTES)
        self._selector.register(self._zygote, selectors.EVENT_READ, self._hear_zygote)

    # -- workers ----------------------------------------------------------------------------------

    def start(self, worker_id: str, node_id: str) -> None:
        self.processes[worker_id] = Process(worker_id, node_id)
        self._ask(
            Spawn(
                worker_id=worker_id,
                command=self._command,
                cwd=str(self._directory),
                env={**self._environment, WORKER_ID_ENV: worker_id},
                log_path=str(self._log_path(worker_id)),
            )
        )

    def kill(self, worker_ids: Iterable[str]) -> None:
        for worker_id in worker_ids:
            if worker_id in self.processes:
                self._ask(Signal(worker_id=worker_id, signum=signal.SIGKILL))

    def signal(self, process: Process, signum: int) -> None:
        self._ask(Signal(worker_id=process.worker_id, signum=signum))

    def on(self, node_id: str) -> Process | None:
        """Return the node's worker."""
        found = (p for p in self.processes.values() if p.node_id == node_id)
        return next(found, None)

    def take_away(self, node_id: str) -> None:
        """Take the node for lost, though its worker may live."""
        if process := self.on(node_id):
            self._strays[node_id] = self.processes.pop(process.worker_id)

    def stray(self, node_id: str) -> Process:
        """Return the worker of a node that was taken for lost."""
        return self._strays[node_id]

    def log(self, worker_id: str) -> str:
        """Return what a worker wrote."""
        path = self._log_path(worker_id)
        # One that died early may have none.
        return path.read_text(errors="replace") if path.exists() else ""

    def _log_path(self, worker_id: str) -> Path:
        return self._directory / f"{worker_id}.log"

    def _ask(self, request: ToZygote) -> None:
        self._zygote.sendall(frame(msgspec.msgpack.encode(request)))

    def _hear_zygote(self) -> None:
        for data in self._zygote_unframer.feed(self._zygote.recv(_CHUNK_BYTES)):
            reply = msgspec.msgpack.decode(data, type=FromZygote)
            if isinstance(reply, Exited):
                self._reap(reply)
            elif isinstance(reply, Spawned) and reply.worker_id in self.processes:
                self.processes[reply.worker_id].pid = reply.pid

    def _reap(self, ended: Exited) -> None:
        process = self.processes.pop(ended.worker_id, None)
        if process is None:
            return
        if process.connection:
            # What it said before it ended comes first.
            self._read(process.connection)
        self._on_exit(
            WorkerExited(
                worker_id=process.worker_id,
                job_id=self._job_id,
                status=ended.status,
                reason=_in_words(ended.status),
                log_path=str(self._log_path(process.worker_id)),
                log_tail="\n".join(self.log(process.worker_id).splitlines()[-_LOG_LINES:]),
                had_attached=process.connection is not None,
            )
        )

    # -- connections ------------------------------------------------------------------------------

    def welcome(self, sender: Connection, hello: WorkerHello) -> None:
        """Answer a worker's greeting, or hang up."""
        process = self.processes.get(hello.worker_id)
        if process is None or hello.secret != self._secret:
            self.drop(sender)
            return
        process.connection = sender
        sender.send(WorkerWelcome(settings=self._settings))

    def send(self, worker_id: str, message: Message) -> None:
        process = self.processes.get(worker_id)
        if process and process.connection:
            process.connection.send(message)

    def drop(self, connection: Connection) -> None:
        if connection.stream.fileno() >= 0:
            self._selector.unregister(connection.stream)
            connection.stream.close()

    def arrived(self) -> list[Callable[[], None]]:
        """Wait a moment; return what takes in what has arrived."""
        return [key.data for key, _ in self._selector.select(_TICK_S)]

    def _accept(self) -> None:
        stream, _ = self._listener.accept()
        stream.setblocking(False)
        connection = Connection(stream)
        self._connections.append(connection)
        self._selector.register(stream, selectors.EVENT_READ, lambda: self._read(connection))

    def _read(self, connection: Connection) -> None:
        """Take everything that has arrived."""
        while messages := self._take(connection):
            for message in messages:
                self._on_message(connection, message)

    def _take(self, connection: Connection) -> list[Any]:
        try:
            data = connection.stream.recv(_CHUNK_BYTES)
            messages = [decode(f, FromWorker) for f in connection.unframer.feed(data)]
        except BlockingIOError:
            return []
        except (OSError, WireError):
            data, messages = b"", []
        if not data:
            self.drop(connection)
        return messages

    def close(self) -> None:
        """End every worker and what this object holds."""
        # The zygote ends all its workers, then itself.
        self._zygote.shutdown(socket.SHUT_WR)
        while self._zygote.recv(_CHUNK_BYTES):
            pass
        for connection in self._connections:
            connection.stream.close()
        self.processes.clear()
        self._selector.close()
        self._zygote.close()
        self._listener.close()


def _in_words(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exited with {status}"
