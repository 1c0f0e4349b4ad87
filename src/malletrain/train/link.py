"""The worker's connection to its node's agent: one thread that reads, answers and keeps alive."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from malletrain.errors import TrainError, WireError
from malletrain.live.wire import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    DumpStacks,
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
_LENGTH = struct.Struct(">I")
#: Exit status of a worker whose agent is gone.
AGENT_LOST_STATUS = 70
_PR_SET_PDEATHSIG = 1


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
        path = variables.get("MALLETRAIN_AGENT_SOCKET")
        if not path:
            return None
        audit = variables.get("MALLETRAIN_AUDIT")
        try:
            return cls(
                socket_path=path,
                worker_id=variables["MALLETRAIN_WORKER_ID"],
                job_id=variables["MALLETRAIN_JOB_ID"],
                secret=variables["MALLETRAIN_SECRET"],
                audit_dir=Path(audit) if audit else None,
            )
        except KeyError as error:
            raise TrainError(
                f"MALLETRAIN_AGENT_SOCKET is set but {error.args[0]} is not: start workers by an "
                "agent, or unset it to train alone"
            ) from None


class AgentLink:
    """Frames to and from the agent. The worker does not outlive it."""

    def __init__(self, environment: Environment, on_message: Callable[[Any], None]) -> None:
        self._environment = environment
        self._on_message = on_message
        self._sending = threading.Lock()
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
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def start(self) -> None:
        threading.Thread(target=self._listen, name="malletrain-link", daemon=True).start()
        threading.Thread(target=self._keep_alive, name="malletrain-heart", daemon=True).start()

    def send(self, message: Message) -> None:
        data = encode(message)
        # A lost agent is noticed by the thread that reads.
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def _listen(self) -> None:
        while True:
            try:
                message = self._read()
            except WireError as error:
                _exit(f"the agent sent nonsense ({error})")
            except OSError as error:
                _exit(f"the node's agent is gone ({error})")
            if isinstance(message, DumpStacks):
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            else:
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
        (length,) = _LENGTH.unpack(self._read_exactly(_LENGTH.size))
        if length > MAX_MESSAGE_BYTES:
            raise WireError(f"a message of {length} bytes, the limit is {MAX_MESSAGE_BYTES}")
        return decode(self._read_exactly(length), ToWorker)

    def _read_exactly(self, count: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < count:
            chunk = self._socket.recv(count - len(chunks))
            if not chunk:
                raise ConnectionError("connection closed")
            chunks += chunk
        return bytes(chunks)


def _exit(reason: str) -> None:
    """End at once: without its agent nobody would stop or count this process."""
    with contextlib.suppress(OSError, ValueError):
        print(f"malletrain: {reason}; this worker ends", file=sys.stderr, flush=True)  # noqa: T201 - the log of the job is the worker's stderr
    os._exit(AGENT_LOST_STATUS)
