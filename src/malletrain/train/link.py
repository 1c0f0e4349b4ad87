"""The worker's connection to its node's agent: one thread that reads, answers and keeps alive."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from malletrain.errors import TrainError, WireError
from malletrain.frames import Unframer, frame
from malletrain.processes import die_with_parent
from malletrain.wire import (
    JOB_ID_ENV,
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    SECRET_ENV,
    SOCKET_ENV,
    WORKER_ID_ENV,
    Heartbeat,
    Message,
    ToWorker,
    WorkerHello,
    WorkerSettings,
    WorkerWelcome,
    decode,
    encode,
)

_HEARTBEAT_S = 1.0
_WELCOME_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 16
#: Optional: the directory of `audit.Recorder`.
_AUDIT_ENV = "MALLETRAIN_AUDIT"
#: Exit status of a worker whose agent is gone.
AGENT_LOST_STATUS = 70


@dataclass(frozen=True, slots=True)
class Environment:
    """What the agent tells a worker that it starts."""

    socket_path: str
    worker_id: str
    job_id: str
    secret: str
    #: Where to write which samples were consumed; None for not at all.
    audit_dir: Path | None

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Environment | None:
        """Return None where no agent started this process."""
        path = variables.get(SOCKET_ENV)
        if not path:
            return None
        audit = variables.get(_AUDIT_ENV)
        try:
            return cls(
                socket_path=path,
                worker_id=variables[WORKER_ID_ENV],
                job_id=variables[JOB_ID_ENV],
                secret=variables[SECRET_ENV],
                audit_dir=Path(audit) if audit else None,
            )
        except KeyError as error:
            raise TrainError(
                f"{SOCKET_ENV} is set but {error.args[0]} is not: start workers by an "
                "agent, or unset it to train alone"
            ) from None


class AgentLink:
    """Frames to and from the agent. The worker does not outlive it."""

    def __init__(self, environment: Environment, on_message: Callable[[Any], None]) -> None:
        self._environment = environment
        self._on_message = on_message
        self._sending = threading.Lock()
        self._unframer = Unframer(MAX_MESSAGE_BYTES)
        self._arrived: deque[bytes] = deque()
        self.step = 0
        self.is_waiting = False
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_WELCOME_TIMEOUT_S)
        try:
            self._socket.connect(environment.socket_path)
            self.settings = self._greet()
        except (OSError, WireError) as error:
            raise TrainError(
                f"cannot talk to the node's agent at {environment.socket_path}: {error}"
            ) from error
        self._socket.settimeout(None)
        self._die_with_the_launcher()

    def _greet(self) -> WorkerSettings:
        self.send(
            WorkerHello(
                protocol=PROTOCOL,
                worker_id=self._environment.worker_id,
                secret=self._environment.secret,
                pid=os.getpid(),
            )
        )
        welcome = self._read()
        if not isinstance(welcome, WorkerWelcome):
            raise WireError("its first message is no welcome")
        return welcome.settings

    def _die_with_the_launcher(self) -> None:
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        agent_pid = struct.unpack("3i", credentials)[0]
        if agent_pid == os.getppid():
            die_with_parent(agent_pid)

    def start(self) -> None:
        threading.Thread(target=self._listen, name="malletrain-link", daemon=True).start()
        threading.Thread(target=self._keep_alive, name="malletrain-heart", daemon=True).start()

    def send(self, message: Message) -> None:
        data = frame(encode(message))
        # A lost agent is noticed by the thread that reads.
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(data)

    def _listen(self) -> None:
        while True:
            try:
                message = self._read()
            except WireError as error:
                _exit(f"the agent sent nonsense ({error})")
            except OSError as error:
                _exit(f"the node's agent is gone ({error})")
            self._on_message(message)

    def _keep_alive(self) -> None:
        while True:
            self.send(
                Heartbeat(
                    worker_id=self._environment.worker_id,
                    step=self.step,
                    is_waiting=self.is_waiting,
                )
            )
            time.sleep(_HEARTBEAT_S)

    def _read(self) -> Any:
        while not self._arrived:
            data = self._socket.recv(_CHUNK_BYTES)
            if not data:
                raise ConnectionError("connection closed")
            self._arrived.extend(self._unframer.feed(data))
        return decode(self._arrived.popleft(), ToWorker)


def _exit(reason: str) -> None:
    """End at once: without its agent nobody would stop or count this process."""
    with contextlib.suppress(OSError, ValueError):
        print(f"malletrain: {reason}; this worker ends", file=sys.stderr, flush=True)  # noqa: T201 - the log of the job is the worker's stderr
    os._exit(AGENT_LOST_STATUS)
