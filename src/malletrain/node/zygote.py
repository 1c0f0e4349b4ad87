"""The warm parent of workers: it has imported what they will need, and forks them.

Starting a worker is importing, 2.5 s for PyTorch; a fork of a process that has imported it
takes tens of milliseconds and shares its memory. Two uses of one mechanism:

- ``--fd N``: an agent's own zygote, which speaks over an inherited socket.
- ``--listen-fd N``: the zygote of a machine with several agents. Each connection to that
  socket gets a forked zygote of its own, which joins the agent's process group.

A zygote that serves an agent ends everything below itself, then itself, as soon as the
connection closes, and the kernel kills its workers if it is killed. So no worker outlives its
agent, however that ends. It is the adopter of orphans below itself: what outlives the worker
that started it is killed.

It must stay single-threaded, import only (a threaded PyTorch operation before the fork leaves
children hanging), and never fail for what a worker does.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from malletrain import processes
from malletrain.errors import WireError
from malletrain.frames import Unframer, frame
from malletrain.node import worker_start

MAX_REQUEST_BYTES = 4 * 1024 * 1024
#: SIGKILL works at once but for a process in a driver: then there is no more to do.
_END_LIMIT_S = 5.0
#: A batch system signals all processes of a node: what to do about it is the agent's to say.
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Spawn(Struct, frozen=True, tag=True, kw_only=True):
    """Start a worker; answered by `Spawned` and, in the end, `Exited`."""

    worker_id: str
    command: tuple[str, ...]
    cwd: str
    #: All of it: nothing is inherited.
    env: dict[str, str]
    log_path: str


class Signal(Struct, frozen=True, tag=True, kw_only=True):
    """Signal a worker; one that has ended is no error."""

    worker_id: str
    signum: int


class Spawned(Struct, frozen=True, tag=True, kw_only=True):
    worker_id: str
    pid: int


class Exited(Struct, frozen=True, tag=True, kw_only=True):
    worker_id: str
    #: Exit status; negative: killed by that signal.
    status: int


ToZygote = Spawn | Signal
FromZygote = Spawned | Exited

_decode = msgspec.msgpack.Decoder[ToZygote](ToZygote).decode


class Zygote:
    """Serves one agent over a connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waker = _Waker()
        self._unframer = Unframer(MAX_REQUEST_BYTES)
        self._pids: dict[str, int] = {}

    def serve(self) -> Spawn | None:
        """Serve until the connection closes; in a forked worker, return what it is to run."""
        sources: list[socket.socket | int] = [self._connection, self._waker.fd]
        while True:
            readable, _, _ = select.select(sources, [], [])
            try:
                if self._waker.fd in readable:
                    self._waker.drain()
                    self._report_ended()
                if self._connection in readable:
                    data = self._connection.recv(65536)
                    if not data:
                        break
                    for message in self._unframer.feed(data):
                        if spawn := self._handle(_decode(message)):
                            return spawn
            except (OSError, WireError, msgspec.DecodeError) as error:
                _log(f"the agent's connection is of no use any more: {error}")
                break
        self._end_all()
        return None

    def _handle(self, request: ToZygote) -> Spawn | None:
        if isinstance(request, Signal):
            if pid := self._pids.get(request.worker_id):
                processes.signal_process(pid, request.signum)
            return None
        zygote_pid = os.getpid()
        pid = processes.fork(self._become_worker)
        if pid == 0:
            processes.die_with_parent(zygote_pid)
            return request
        self._pids[request.worker_id] = pid
        self._send(Spawned(worker_id=request.worker_id, pid=pid))
        return None

    def _become_worker(self) -> None:
        self._connection.close()
        self._waker.close()
        for signum in _IGNORED:
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _report_ended(self) -> None:
        ended = dict(processes.reap())
        workers = {worker_id: pid for worker_id, pid in self._pids.items() if pid in ended}
        if workers:
            self._end_orphans()
        for worker_id, pid in workers.items():
            del self._pids[worker_id]
            self._send(Exited(worker_id=worker_id, status=ended[pid]))

    def _end_orphans(self) -> None:
        """Kill what ended workers have left behind; it was handed to this process."""
        for pid in processes.children().difference(self._pids.values()):
            processes.signal_process(pid, signal.SIGKILL)

    def _end_all(self) -> None:
        """Kill everything below this process: by and by it is the parent of all of it."""
        give_up_at = time.monotonic() + _END_LIMIT_S
        while (below := processes.children()) and time.monotonic() < give_up_at:
            for pid in below:
                processes.signal_process(pid, signal.SIGKILL)
            select.select([self._waker.fd], [], [], 0.1)
            self._waker.drain()
            processes.reap()

    def _send(self, reply: FromZygote) -> None:
        self._connection.sendall(frame(msgspec.msgpack.encode(reply)))


class _Waker:
    """A descriptor that becomes readable when a child ends."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        # Only a signal that has a handler wakes.
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 4096):
                pass

    def close(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.close(self.fd)
        os.close(self._write_fd)


def serve_machine(listener: socket.socket) -> socket.socket:
    """Fork a zygote for every agent that connects; return the connection, in the fork only."""
    waker = _Waker()
    sources: list[socket.socket | int] = [listener, waker.fd]
    while True:
        readable, _, _ = select.select(sources, [], [])
        if waker.fd in readable:
            waker.drain()
            processes.reap()
        if listener not in readable:
            continue
        connection, _ = listener.accept()
        if processes.fork(waker.close) == 0:
            listener.close()
            _join_group_of(connection)
            return connection
        connection.close()


def _join_group_of(connection: socket.socket) -> None:
    """Move to the process group of the agent at the other end: who ends it ends this too."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    agent_pid, _, _ = struct.unpack("iII", credentials)
    try:
        os.setpgid(0, os.getpgid(agent_pid))
    except OSError as error:
        # Closing the connection tells the agent, which then starts a zygote of its own.
        _log(f"cannot join the process group of agent {agent_pid}: {error}")
        sys.exit(1)


def _log(text: str) -> None:
    sys.stderr.write(f"zygote {os.getpid()}: {text}\n")
    sys.stderr.flush()


def preload(names: Sequence[str]) -> None:
    """Import what there is of these modules; one that is missing or broken is no error."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            _log(f"not preloaded: {error}")
        except Exception as error:  # a stranger's module may raise anything
            _log(f"{name} raised while it was preloaded: {error!r}")
    # What is there now stays: collecting it would touch, and so copy, every shared page.
    gc.collect()
    gc.freeze()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="malletrain.node.zygote", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--fd", type=int, help="connected socket of the one agent to serve")
    where.add_argument("--listen-fd", type=int, help="listening socket of a whole machine")
    parser.add_argument("--preload", default="", help="modules to import, by comma")
    options = parser.parse_args(arguments)
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    preload([name for name in options.preload.split(",") if name])
    if options.fd is not None:
        connection = socket.socket(fileno=options.fd)
    else:
        connection = serve_machine(socket.socket(fileno=options.listen_fd))
    connection.set_inheritable(False)
    processes.adopt_orphans()
    spawn = Zygote(connection).serve()
    if spawn is None:
        # Nothing is below any more; taking everything imported down properly takes a while.
        os._exit(0)
    worker_start.run(spawn.command, spawn.cwd, spawn.env, spawn.log_path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
