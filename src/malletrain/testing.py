"""A job on this machine without controller and agents: for tests and benchmarks.

`LocalJob` plays the part of the controller (it drives the real `RescaleFlow`) and of every node's
agent (it starts the workers and speaks the real protocol with them), so that the training library
can be put through any sequence of rescales and deaths in one process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from malletrain.core.events import AnyEvent, JobFinished, RescaleDone, RescaleFailed, WorkersLost
from malletrain.errors import MalleTrainError, WireError
from malletrain.frames import Unframer, frame
from malletrain.live.rescale import FlowSettings, Output, RescaleFlow, Send, StartOn, StopNow
from malletrain.node.zygote import Exited, FromZygote, Signal, Spawn, Spawned, ToZygote
from malletrain.wire import (
    JOB_ID_ENV,
    MAX_MESSAGE_BYTES,
    SECRET_ENV,
    SOCKET_ENV,
    WORKER_ID_ENV,
    FromWorker,
    GroupFailed,
    GroupReady,
    Message,
    Progress,
    Saved,
    StoreAdd,
    StoreGet,
    StoreSet,
    StoreValue,
    Switched,
    WorkDone,
    WorkerExited,
    WorkerHello,
    WorkerSettings,
    WorkerWarm,
    WorkerWelcome,
    decode,
    encode,
)

#: What workers need and take long to import.
PRELOAD = ("numpy", "torch", "torch._dynamo", "torch.distributed", "malletrain.train")
_TICK_S = 0.1
_LOG_LINES = 20
_CHUNK_BYTES = 1 << 16

Found = TypeVar("Found")


class NeverHappenedError(MalleTrainError):
    """What a test waited for did not come."""


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
            command = [sys.executable, "-m", "malletrain.node.zygote", "--listen-fd"]
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


class _Connection:
    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.worker_id = ""
        self.unframer = Unframer(MAX_MESSAGE_BYTES)

    def send(self, message: Message) -> None:
        # One that is gone is noticed by its process's end.
        with contextlib.suppress(OSError):
            self.stream.sendall(frame(encode(message)))


@dataclass(slots=True)
class _Process:
    worker_id: str
    node_id: str
    pid: int = 0
    connection: _Connection | None = None


class _Rendezvous:
    """The keys of every generation, and who waits for which."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, str], bytes] = {}
        self._waiting: dict[tuple[int, str], list[tuple[_Connection, int]]] = {}

    def set(self, message: StoreSet) -> list[tuple[_Connection, StoreValue]]:
        key = (message.generation, message.key)
        self._values[key] = message.value
        waiting = self._waiting.pop(key, [])
        return [(to, StoreValue(request=r, value=message.value)) for to, r in waiting]

    def get(self, sender: _Connection, message: StoreGet) -> StoreValue | None:
        key = (message.generation, message.key)
        if key in self._values:
            return StoreValue(request=message.request, value=self._values[key])
        self._waiting.setdefault(key, []).append((sender, message.request))
        return None

    def add(self, message: StoreAdd) -> StoreValue:
        key = (message.generation, message.key)
        total = int(self._values.get(key, b"0")) + message.amount
        self._values[key] = str(total).encode()
        return StoreValue(request=message.request, value=self._values[key])


class LocalJob:
    """One malleable job, each worker on a made-up node of its own.

    Args:
        command: starts a worker.
        directory: for sockets, logs and checkpoints.
        parent: what workers are forked from.
        settings: for the workers; `checkpoint_dir` is set here.
        environment: added to the workers' own.
        flow: the controller's deadlines.
        recovers: order the surviving nodes anew when workers die, as the controller would.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        parent: WarmParent,
        *,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        flow: FlowSettings | None = None,
        recovers: bool = True,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.job_id = "job"
        self.directory = directory
        self.checkpoint_dir = directory / "checkpoints"
        self.audit_dir = directory / "audit"
        self._command = list(command)
        self._settings = WorkerSettings(
            **{"checkpoint_dir": str(self.checkpoint_dir), **(settings or {})}
        )
        self._environment = {**parent.environment, **(environment or {})}
        self._recovers = recovers
        self._flow = RescaleFlow(self.job_id, flow or FlowSettings())
        self._rendezvous = _Rendezvous()
        self._secret = secrets.token_hex(8)
        self._processes: dict[str, _Process] = {}
        #: Workers of nodes taken for lost, by node.
        self._strays: dict[str, _Process] = {}
        self._connections: list[_Connection] = []
        self._generation = 0
        self._nodes: tuple[str, ...] = ()
        self._is_closing = False
        #: Everything that happened, oldest first.
        self.events: list[AnyEvent] = []
        self.messages: list[Any] = []
        self.exits: list[WorkerExited] = []
        self._changed = threading.Condition(threading.RLock())
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._socket_path))
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._zygote = parent.connect()
        self._zygote_unframer = Unframer(MAX_MESSAGE_BYTES)
        self._selector.register(self._zygote, selectors.EVENT_READ, self._hear_zygote)
        self._thread = threading.Thread(target=self._serve, name="local-job", daemon=True)
        self._thread.start()

    def __enter__(self) -> LocalJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _socket_path(self) -> Path:
        return self.directory / "agent.sock"

    # -- what a test does -------------------------------------------------------------------------

    def order(self, nodes: Sequence[str]) -> int:
        """Make the job's nodes these; returns the generation. None suspends it."""
        with self._changed:
            self._nodes = tuple(nodes)
            self._generation += 1
            self._carry_out(self._flow.order(self._generation, nodes, time.monotonic()))
            return self._generation

    def kill(self, node_id: str, signal_number: int = signal.SIGKILL) -> None:
        """Send the node's worker a signal."""
        with self._changed:
            for process in self._processes.values():
                if process.node_id == node_id:
                    self._ask(Signal(worker_id=process.worker_id, signum=signal_number))
                    return
        raise NeverHappenedError(f"no worker runs on {node_id}")

    def lose(self, node_id: str) -> int:
        """Take the node for lost, though its worker may live; returns the next generation."""
        with self._changed:
            for process in self._processes.values():
                if process.node_id == node_id:
                    self._strays[node_id] = process
            for process in self._strays.values():
                self._processes.pop(process.worker_id, None)
            self._nodes = tuple(n for n in self._nodes if n != node_id)
            self._carry_out(self._flow.nodes_lost([node_id], time.monotonic()))
            return self.order(self._nodes)

    def kill_stray(self, node_id: str, signal_number: int) -> None:
        """Send a signal to the worker of a node that was taken for lost."""
        with self._changed:
            stray = self._strays[node_id]
            self._ask(Signal(worker_id=stray.worker_id, signum=signal_number))

    def stop_recovering(self) -> None:
        """Leave it to the test what happens after a death from now on."""
        with self._changed:
            self._recovers = False

    @property
    def generation(self) -> int:
        """The newest that was ordered."""
        with self._changed:
            return self._generation

    @property
    def nodes_in_use(self) -> list[str]:
        """Nodes on which a worker runs."""
        with self._changed:
            return [process.node_id for process in self._processes.values()]

    @property
    def has_finished(self) -> bool:
        """Its script has ended well on every member."""
        with self._changed:
            return any(isinstance(event, JobFinished) for event in self.events)

    @property
    def is_idle(self) -> bool:
        """No worker trains, and none is about to."""
        with self._changed:
            return not self._flow.members and self._flow.deadline_at_s is None

    def wait_for(self, what: Callable[[], Found | None], timeout_s: float = 60.0) -> Found:
        """Return what the function finds, called whenever something has happened.

        Raises:
            NeverHappenedError: with what did happen.
        """
        with self._changed:
            self._changed.wait_for(lambda: what() or self._has_failed, timeout_s)
            found = what()
        if not found:
            raise NeverHappenedError(f"nothing found within {timeout_s:g} s; {self._history()}")
        return found

    def wait_rescaled(self, generation: int, timeout_s: float = 60.0) -> RescaleDone:
        """Wait until a generation, or a later one that took its place, is training."""
        return self.wait_for(
            lambda: next(
                (
                    e
                    for e in self.events
                    if isinstance(e, RescaleDone) and e.generation >= generation
                ),
                None,
            ),
            timeout_s,
        )

    def wait_step(self, step: int, timeout_s: float = 60.0) -> int:
        """Wait until some worker has committed that many steps."""
        return self.wait_for(lambda: self.step if self.step >= step else None, timeout_s)

    @property
    def step(self) -> int:
        """The newest step that any worker has told of."""
        with self._changed:
            return max((getattr(m, "step", 0) for m in self.messages), default=0)

    def sent(self, kind: type[Found]) -> list[Found]:
        """Return the messages of a kind that workers have sent."""
        with self._changed:
            return [m for m in self.messages if isinstance(m, kind)]

    def wait_ended(self, timeout_s: float = 60.0) -> None:
        """Wait until no worker is left."""
        self.wait_for(lambda: not self._processes, timeout_s)

    def send(self, node_id: str, data: bytes) -> None:
        """Send a frame of any content to the node's worker."""
        with self._changed:
            for process in self._processes.values():
                if process.node_id == node_id and process.connection:
                    process.connection.stream.sendall(frame(data))

    def hang_up(self, node_id: str) -> None:
        """Close the connection to the node's worker, as an agent that dies does."""
        with self._changed:
            for process in self._processes.values():
                if process.node_id == node_id and process.connection:
                    self._drop(process.connection)

    def log(self, worker_id: str) -> str:
        """Return what a worker wrote."""
        path = self._log_path(worker_id)
        # One that died early may have none.
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def pids(self) -> list[int]:
        with self._changed:
            return [process.pid for process in self._processes.values() if process.pid]

    def close(self) -> None:
        """End every worker and what this object holds."""
        with self._changed:
            self._is_closing = True
        self._thread.join()
        # The zygote ends all its workers, then itself.
        self._zygote.shutdown(socket.SHUT_WR)
        while self._zygote.recv(_CHUNK_BYTES):
            pass
        for connection in self._connections:
            connection.stream.close()
        self._processes.clear()
        self._selector.close()
        self._zygote.close()
        self._listener.close()

    @property
    def _has_failed(self) -> bool:
        """Nothing more will come."""
        last = self.events[-1] if self.events else None
        is_fault = isinstance(last, RescaleFailed) and last.is_job_fault
        return isinstance(last, JobFinished) or (is_fault and not self._processes)

    def _history(self) -> str:
        logs = [self.log(path.stem)[-2000:] for path in sorted(self.directory.glob("*.log"))]
        kinds = [type(m).__name__ for m in self.messages if not isinstance(m, StoreGet | StoreSet)]
        return "\n".join([f"events: {self.events}", f"messages: {kinds[-40:]}", *logs])

    # -- the controller's part --------------------------------------------------------------------

    def _carry_out(self, outputs: Iterable[Output]) -> None:
        is_broken = False
        for output in outputs:
            if isinstance(output, StartOn):
                for worker_id, node_id in output.workers.items():
                    self._start(worker_id, node_id)
            elif isinstance(output, StopNow):
                self._stop(output)
            elif isinstance(output, Send):
                for worker_id in output.message.to:
                    self._send_to(worker_id, output.message)
            else:
                self.events.append(output)
                is_broken |= self._breaks(output)
        self._changed.notify_all()
        if is_broken and self._recovers and self._nodes:
            self.order(self._nodes)

    def _breaks(self, event: AnyEvent) -> bool:
        """Whether the job needs another generation."""
        if isinstance(event, WorkersLost):
            self._nodes = tuple(n for n in self._nodes if n not in event.node_ids)
            return True
        return (
            isinstance(event, RescaleFailed)
            and event.is_group_dead
            # Another order is under way otherwise.
            and event.generation == self._generation
        )

    def _received(self, sender: _Connection, message: Any) -> None:
        if isinstance(message, StoreSet):
            for to, value in self._rendezvous.set(message):
                to.send(value)
        elif isinstance(message, StoreGet):
            if answer := self._rendezvous.get(sender, message):
                sender.send(answer)
        elif isinstance(message, StoreAdd):
            sender.send(self._rendezvous.add(message))
        elif isinstance(message, WorkerHello):
            self._welcome(sender, message)
        else:
            self._heard(message)

    def _heard(self, message: Any) -> None:
        now_s = time.monotonic()
        if isinstance(message, WorkerWarm):
            self._carry_out(self._flow.worker_warm(message, now_s))
        elif isinstance(message, GroupReady):
            self._carry_out(self._flow.group_ready(message, now_s))
        elif isinstance(message, GroupFailed):
            self._carry_out(self._flow.group_failed(message, now_s))
        elif isinstance(message, Switched):
            self._carry_out(self._flow.switched(message, now_s))
        elif isinstance(message, Progress | Saved):
            self._flow.trained(message)
        elif isinstance(message, WorkDone):
            self._carry_out(self._flow.work_done(message, now_s))

    # -- the agents' part -------------------------------------------------------------------------

    def _start(self, worker_id: str, node_id: str) -> None:
        env = {
            **self._environment,
            SOCKET_ENV: str(self._socket_path),
            WORKER_ID_ENV: worker_id,
            JOB_ID_ENV: self.job_id,
            SECRET_ENV: self._secret,
            "MALLETRAIN_AUDIT": str(self.audit_dir),
        }
        self._processes[worker_id] = _Process(worker_id, node_id)
        self._ask(
            Spawn(
                worker_id=worker_id,
                command=tuple(self._command),
                cwd=str(self.directory),
                env=env,
                log_path=str(self._log_path(worker_id)),
            )
        )

    def _stop(self, output: StopNow) -> None:
        for worker_id in output.worker_ids:
            if worker_id in self._processes:
                self._ask(Signal(worker_id=worker_id, signum=signal.SIGKILL))

    def _ask(self, request: ToZygote) -> None:
        self._zygote.sendall(frame(msgspec.msgpack.encode(request)))

    def _hear_zygote(self) -> None:
        for data in self._zygote_unframer.feed(self._zygote.recv(_CHUNK_BYTES)):
            reply = msgspec.msgpack.decode(data, type=FromZygote)
            if isinstance(reply, Exited):
                self._reap(reply)
            elif isinstance(reply, Spawned) and reply.worker_id in self._processes:
                self._processes[reply.worker_id].pid = reply.pid

    def _reap(self, ended: Exited) -> None:
        process = self._processes.pop(ended.worker_id, None)
        if process is None:
            return
        if process.connection:
            # What it said before it ended comes first.
            self._read(process.connection)
        exited = WorkerExited(
            worker_id=process.worker_id,
            job_id=self.job_id,
            status=ended.status,
            reason=_in_words(ended.status),
            log_path=str(self._log_path(process.worker_id)),
            log_tail="\n".join(self.log(process.worker_id).splitlines()[-_LOG_LINES:]),
            had_attached=process.connection is not None,
        )
        self.exits.append(exited)
        self._carry_out(self._flow.worker_exited(exited, time.monotonic()))

    def _log_path(self, worker_id: str) -> Path:
        return self.directory / f"{worker_id}.log"

    def _welcome(self, sender: _Connection, hello: WorkerHello) -> None:
        process = self._processes.get(hello.worker_id)
        if process is None or hello.secret != self._secret:
            self._drop(sender)
            return
        sender.worker_id = hello.worker_id
        process.connection = sender
        sender.send(WorkerWelcome(settings=self._settings))

    def _send_to(self, worker_id: str, message: Message) -> None:
        process = self._processes.get(worker_id)
        if process and process.connection:
            process.connection.send(message)

    # -- the thread -------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            ready = self._selector.select(_TICK_S)
            with self._changed:
                if self._is_closing:
                    return
                for key, _ in ready:
                    key.data()
                self._carry_out(self._flow.tick(time.monotonic()))

    def _accept(self) -> None:
        stream, _ = self._listener.accept()
        stream.setblocking(False)
        connection = _Connection(stream)
        self._connections.append(connection)
        self._selector.register(stream, selectors.EVENT_READ, lambda: self._read(connection))

    def _read(self, connection: _Connection) -> None:
        """Take everything that has arrived."""
        while messages := self._take(connection):
            for message in messages:
                self.messages.append(message)
                self._received(connection, message)
            self._changed.notify_all()

    def _take(self, connection: _Connection) -> list[Any]:
        try:
            data = connection.stream.recv(_CHUNK_BYTES)
            messages = [decode(f, FromWorker) for f in connection.unframer.feed(data)]
        except BlockingIOError:
            return []
        except (OSError, WireError):
            data, messages = b"", []
        if not data:
            self._drop(connection)
        return messages

    def _drop(self, connection: _Connection) -> None:
        if connection.stream.fileno() >= 0:
            self._selector.unregister(connection.stream)
            connection.stream.close()


def _in_words(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exited with {status}"
