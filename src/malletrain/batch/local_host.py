"""The process that plays a machine with nodes: `python -m malletrain.batch.local_host`.

It lends nodes by a trace or by hand, and takes them back as a batch system does. It outlives the
controller, so that workers train on while a controller is restarted, and ends with everything that
it started when it is told to, on SIGTERM, or when no controller has called for too long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from malletrain.batch.machine import Machine
from malletrain.clock import Clock, WallClock
from malletrain.errors import BatchError, MalleTrainError, WireError
from malletrain.frames import frame, read_frame
from malletrain.traces import intervals

MAX_MESSAGE_BYTES = 64 * 1024

_logger = logging.getLogger(__name__)


class Attach(Struct, frozen=True, tag=True):
    """Say which controller the agents shall call; it is there as long as the connection is."""

    controller_url: str
    token_file: str


class AddNodes(Struct, frozen=True, tag=True):
    count: int


class RemoveNode(Struct, frozen=True, tag=True):
    node_id: str
    is_abrupt: bool


class Shutdown(Struct, frozen=True, tag=True):
    """End everything; answered once only this process is left."""


class Done(Struct, frozen=True, tag=True):
    """The answer to a request; answers come in the order of the requests."""

    #: Of this process.
    pid: int


class Refused(Struct, frozen=True, tag=True):
    reason: str
    is_transient: bool = False


class NodeGone(Struct, frozen=True, tag=True):
    """Told to attached controllers unasked: nothing of the node runs any more."""

    node_id: str


class Malformed(Struct, frozen=True, tag=True):
    """Told to attached controllers unasked: connections closed for what came, since the start."""

    connections: int


Request = Attach | AddNodes | RemoveNode | Shutdown
Reply = Done | Refused
FromHost = Reply | NodeGone | Malformed

_decode = msgspec.msgpack.Decoder[Request](Request).decode


class HostFile(Struct, frozen=True):
    """What `host.json` says of the running host."""

    pid: int
    #: Private to it; its socket lies there, whose path must be short.
    run_dir: str

    @property
    def socket_path(self) -> Path:
        return Path(self.run_dir, "host.sock")


def read_host_file(host_dir: Path) -> HostFile | None:
    """Return what the newest host wrote; it may have ended since."""
    try:
        return msgspec.json.decode((host_dir / "host.json").read_bytes(), type=HostFile)
    except (OSError, msgspec.DecodeError):
        return None


class Host:
    """Serves controllers, one after another, and plays the trace from the first one on."""

    def __init__(
        self,
        host_dir: Path,
        machine: Machine,
        *,
        clock: Clock,
        max_nodes: int,
        away_limit_s: float,
        trace_path: Path | None,
        speed: float,
    ) -> None:
        self._host_dir = host_dir
        self._clock = clock
        self._machine = machine
        self._max_nodes = max_nodes
        self._away_limit_s = away_limit_s
        #: None leaves the nodes to be added and removed by hand.
        self._trace_path = trace_path
        self._speed = speed
        self._token_file = ""
        self._controllers: set[asyncio.StreamWriter] = set()
        #: Nodes that were lost while no controller was there.
        self._untold: list[str] = []
        self._malformed = 0
        #: Waits for the limit to pass.
        self._away: asyncio.Task[None] | None = None
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    async def run(self, socket_path: Path, on_ready: Callable[[], None]) -> None:
        """Serve until told to end; when this returns, everything else has ended."""
        self._machine.open(self._host_dir / "zygote.log", self._cleared)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._over.set)
        server = await asyncio.start_unix_server(self._serve, socket_path)
        self._watch_controllers()
        on_ready()
        await self._over.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._machine.close()

    # -- requests ---------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (data := await read_frame(reader, MAX_MESSAGE_BYTES)) is not None:
                request = _decode(data)
                _say(writer, self._answer(request))
                if isinstance(request, Attach):
                    self._welcome(writer)
        except (WireError, msgspec.DecodeError) as error:
            self._malformed += 1
            _logger.warning("closed a connection (no. %d): %s", self._malformed, error)
            for controller in self._controllers:
                _say(controller, Malformed(self._malformed))
        except asyncio.CancelledError:
            pass  # this process ends; before Python 3.12 this would be reported as an error
        finally:
            self._controllers.discard(writer)
            self._watch_controllers()
            writer.close()

    def _welcome(self, controller: asyncio.StreamWriter) -> None:
        self._controllers.add(controller)
        self._watch_controllers()
        untold, self._untold = self._untold, []
        for node_id in untold:
            if node_id not in self._machine:
                _say(controller, NodeGone(node_id))
        if self._malformed:
            _say(controller, Malformed(self._malformed))

    def _cleared(self, node_id: str) -> None:
        for controller in self._controllers:
            _say(controller, NodeGone(node_id))
        if not self._controllers:
            self._untold.append(node_id)

    def _answer(self, request: Request) -> Reply:
        try:
            match request:
                case Attach():
                    self._attach(request)
                case AddNodes():
                    self._add(request.count)
                case RemoveNode():
                    self._remove(request)
                case Shutdown():
                    self._over.set()
        except BatchError as error:
            return Refused(str(error), error.is_transient)
        except OSError as error:
            return Refused(str(error))
        return Done(os.getpid())

    def _attach(self, request: Attach) -> None:
        is_first = not self._token_file
        self._token_file = request.token_file
        # Agents read it whenever they connect: a restarted controller may have another port.
        _write_whole(self._endpoint, msgspec.json.encode({"url": request.controller_url}))
        if is_first and self._trace_path:
            self._run(self._play(self._trace_path))

    def _add(self, nodes: int) -> None:
        if not self._token_file:
            raise BatchError("no controller has attached yet", is_transient=True)
        if nodes < 1 or len(self._machine) + nodes > self._max_nodes:
            raise BatchError(
                f"cannot add {nodes} nodes to the {len(self._machine)} there are: the limit of "
                f"this machine is {self._max_nodes} (local.max_nodes)",
                is_transient=nodes <= self._max_nodes,
            )
        for _ in range(nodes):
            number = next(
                number for number in self._numbers if f"local-{number}" not in self._machine
            )
            self._start(f"local-{number}", "")

    def _remove(self, request: RemoveNode) -> None:
        if request.node_id not in self._machine:
            raise BatchError(f"there is no node {request.node_id} now", is_transient=False)
        self._run(self._machine.end(request.node_id, is_abrupt=request.is_abrupt))

    # -- nodes ------------------------------------------------------------------------------------

    async def _play(self, path: Path) -> None:
        began_at_s = self._clock.now_s()
        with path.open(newline="", encoding="utf-8") as lines:
            for interval in intervals.read(lines, path.name):
                await self._sleep_until(began_at_s + interval.from_s / self._speed)
                self._run(self._lend(interval, began_at_s + interval.to_s / self._speed))

    async def _lend(self, interval: intervals.IdleInterval, until_s: float) -> None:
        # Its last grace period may reach into this interval.
        await self._machine.cleared(interval.node)
        self._start(interval.node, interval.group)
        await self._sleep_until(until_s)
        is_abrupt = interval.end is intervals.IntervalEnd.KILL
        await self._machine.end(interval.node, is_abrupt=is_abrupt)

    async def _sleep_until(self, at_s: float) -> None:
        await self._clock.sleep(max(0.0, at_s - self._clock.now_s()))

    def _start(self, node_id: str, group: str) -> None:
        log_dir = self._host_dir / "nodes"
        log_dir.mkdir(exist_ok=True)
        options = ["--controller", str(self._endpoint), "--token-file", self._token_file]
        self._machine.start(node_id, group, log_dir / f"{node_id}.log", options)

    @property
    def _endpoint(self) -> Path:
        return self._host_dir / "endpoint.json"

    # -- the end ----------------------------------------------------------------------------------

    def _watch_controllers(self) -> None:
        """End when there has been no controller for the limit."""
        if self._away:
            self._away.cancel()
            self._away = None
        if not self._controllers:
            self._away = asyncio.create_task(self._give_up())

    async def _give_up(self) -> None:
        await self._clock.sleep(self._away_limit_s)
        _logger.error("no controller for %g s: ending all nodes", self._away_limit_s)
        self._over.set()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _logger.error("a node's course was broken off", exc_info=error)


def _say(peer: asyncio.StreamWriter, message: FromHost) -> None:
    peer.write(frame(msgspec.msgpack.encode(message)))


def _write_whole(path: Path, content: bytes) -> None:
    """Write aside and rename: a reader sees all of it or what was there before."""
    aside = path.with_suffix(".new")
    aside.write_bytes(content)
    aside.replace(path)


@contextlib.contextmanager
def _claim(host_dir: Path) -> Iterator[HostFile]:
    """Be the one host of this directory, with a run directory of its own."""
    host_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (host_dir / "host.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BatchError(f"another host runs in {host_dir}", is_transient=True) from None
        if killed := read_host_file(host_dir):
            shutil.rmtree(killed.run_dir, ignore_errors=True)
        run_dir = tempfile.mkdtemp(prefix="malletrain-")
        mine = HostFile(os.getpid(), run_dir)
        _write_whole(host_dir / "host.json", msgspec.json.encode(mine))
        try:
            yield mine
        finally:
            (host_dir / "host.json").unlink(missing_ok=True)
            shutil.rmtree(run_dir, ignore_errors=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="malletrain.batch.local_host", description=__doc__)
    add = parser.add_argument
    add("--dir", type=Path, required=True, help="where the host is found, and logs")
    add("--max-nodes", type=int, required=True)
    add("--grace-s", type=float, required=True, help="from SIGTERM to SIGKILL")
    add("--trace", type=Path, help="idle intervals to play; default: nodes by hand")
    add("--speed", type=float, default=1.0, help="seconds of the trace in one second")
    add("--preload", default="", help="modules that all workers will need, by comma")
    add("--controller-away-limit-s", type=float, default=600.0)
    add("--ready-fd", type=int, help="a line is written there once requests are taken")
    add("agent_options", nargs="*", help="after --: more options for every agent")
    return parser.parse_args(arguments)


async def _serve(options: argparse.Namespace, mine: HostFile) -> None:
    clock = WallClock()
    away_limit_s = options.controller_away_limit_s
    machine = Machine(
        Path(mine.run_dir),
        ["--controller-away-limit-s", str(away_limit_s), *options.agent_options],
        [name for name in options.preload.split(",") if name],
        options.grace_s,
        clock=clock,
    )
    host = Host(
        options.dir,
        machine,
        clock=clock,
        max_nodes=options.max_nodes,
        away_limit_s=away_limit_s,
        trace_path=options.trace,
        speed=options.speed,
    )

    def tell() -> None:
        if options.ready_fd is not None:
            os.write(options.ready_fd, b"ready\n")
            os.close(options.ready_fd)

    await host.run(mine.socket_path, tell)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s host: %(message)s")
    try:
        with _claim(options.dir) as mine:
            asyncio.run(_serve(options, mine))
    except (MalleTrainError, OSError) as error:
        sys.stderr.write(f"host: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
