"""A worker without PyTorch: says what the training library would, in the way its argument names."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

from malletrain.frames import Unframer, frame
from malletrain.wire import (
    JOB_ID_ENV,
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    SECRET_ENV,
    SOCKET_ENV,
    WORKER_ID_ENV,
    GroupReady,
    Heartbeat,
    Message,
    Noted,
    PrepareGroup,
    Progress,
    StoreGet,
    StoreValue,
    Switched,
    ToWorker,
    WorkDone,
    WorkerHello,
    WorkerWarm,
    decode,
    encode,
)

ME = os.environ[WORKER_ID_ENV]
JOB = os.environ[JOB_ID_ENV]
agent = socket.socket(socket.AF_UNIX)


def say(message: Message) -> None:
    agent.sendall(frame(encode(message)))


def attach() -> None:
    agent.connect(os.environ[SOCKET_ENV])
    secret = os.environ[SECRET_ENV]
    say(WorkerHello(protocol=PROTOCOL, worker_id=ME, secret=secret, pid=os.getpid()))
    say(WorkerWarm(worker_id=ME, job_id=JOB))


def beat(*, is_stepping: bool) -> None:
    step = 0
    while True:
        step += is_stepping
        say(Heartbeat(worker_id=ME, step=step, is_waiting=False))
        time.sleep(0.05)


def train() -> None:
    """Step for ever."""
    attach()
    say(Switched(worker_id=ME, job_id=JOB, generation=3, step=0, samples=0.0, stall_s=0.0))
    beat(is_stepping=True)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    train()


def stuck_in_a_step() -> None:
    attach()
    threading.Thread(target=beat, kwargs={"is_stepping": False}, daemon=True).start()
    threading.Event().wait()


def end_well() -> None:
    attach()
    for step in range(1000):
        say(
            Progress(
                worker_id=ME,
                job_id=JOB,
                generation=1,
                workers=1,
                step=step,
                epoch=0,
                samples=step,
                steps=1,
                samples_per_s=1.0,
                variance=0.0,
            )
        )
    say(WorkDone(worker_id=ME, job_id=JOB, generation=1, step=1000, samples=1000.0))


def talk_nonsense() -> None:
    attach()
    agent.sendall(frame(b"\xc1 no message"))
    # The other end closes the connection, as for a worker of the library, which ends then.
    assert agent.recv(1 << 16)
    while agent.recv(1 << 16):
        pass
    sys.exit(70)


def leave_a_child() -> None:
    """Start a process that has left the group and the session."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    sys.stdout.write(f"{child.pid}\n")
    train()


def rendezvous() -> None:
    """Ask for a key once told to build a group, and say what came."""
    attach()
    threading.Thread(target=beat, kwargs={"is_stepping": True}, daemon=True).start()
    unframer = Unframer(MAX_MESSAGE_BYTES)
    while data := agent.recv(1 << 16):
        for message in map(_decoded, unframer.feed(data)):
            if isinstance(message, PrepareGroup):
                generation = message.generation
                key = f"key-of-{ME}"
                say(StoreGet(job_id=JOB, generation=generation, key=key, request=7))
            elif isinstance(message, StoreValue):
                assert message.request == 7
                say(GroupReady(worker_id=ME, job_id=JOB, generation=generation))
                say(Noted(worker_id=ME, job_id=JOB, note=f"{ME} got {message.value.decode()}"))


def _decoded(data: bytes) -> object:
    return decode(data, ToWorker)


{
    "train": train,
    "rendezvous": rendezvous,
    "ignore-sigterm": ignore_sigterm,
    "stuck": stuck_in_a_step,
    "end-well": end_well,
    "nonsense": talk_nonsense,
    "leave-a-child": leave_a_child,
}[sys.argv[1]]()
