"""The local batch system: virtual nodes on this machine, kept by a host process of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from malletrain import processes
from malletrain.batch.base import BatchListener
from malletrain.batch.local_host import (
    AddNodes,
    Attach,
    Refused,
    RemoveNode,
    Request,
    Shutdown,
    read_host_file,
)
from malletrain.batch.local_link import HostLink
from malletrain.core.model import Cluster
from malletrain.errors import BatchError, TraceError
from malletrain.traces import intervals

#: What a training script imports, as far as it is installed.
PRELOAD = ("numpy", "torch", "torch._dynamo", "torch.distributed", "malletrain.train")


class LocalBatch:
    """Speaks with the host process of a state directory, and starts it where there is none."""

    def __init__(
        self,
        state_dir: Path,
        *,
        max_nodes: int,
        grace_s: float,
        trace_path: Path | None = None,
        speed: float = 1.0,
        away_limit_s: float = 600.0,
        preload: Sequence[str] = PRELOAD,
        agent_options: Sequence[str] = (),
    ) -> None:
        """Read the trace, if there is one, which says how many nodes there are.

        Raises:
            TraceError: it cannot be read.
        """
        self._host_dir = state_dir / "local"
        self._max_nodes = _count_nodes(trace_path) if trace_path else max_nodes
        self._command = [*processes.PYTHON, "-m", "malletrain.batch.local_host"]
        self._command += ["--dir", str(self._host_dir), "--max-nodes", str(self._max_nodes)]
        self._command += ["--grace-s", str(grace_s), "--preload", ",".join(preload)]
        self._command += ["--controller-away-limit-s", str(away_limit_s)]
        if trace_path:
            self._command += ["--trace", str(trace_path.absolute()), "--speed", str(speed)]
        self._agent_options = ["--", *agent_options] if agent_options else []
        self._listener: BatchListener | None = None
        self._link: HostLink | None = None
        self._host_pid = 0
        #: Its end is what was asked for.
        self._is_stopping = False

    @property
    def max_nodes(self) -> int:
        return self._max_nodes

    async def start(self, controller_url: str, token_file: Path, listener: BatchListener) -> None:
        self._listener = listener
        self._link = await self._connect()
        if self._link is None:
            await self._start_host()
            self._link = await self._connect()
            listener.nodes_ended("the process that kept it has ended")
        try:
            await self._ask(_attach(controller_url, token_file))
        except BatchError:
            await self.detach()
            raise

    def heed(self, cluster: Cluster) -> None:
        """Do nothing: nodes come and go by a trace or by hand, whatever jobs there are."""

    async def add_nodes(self, count: int) -> None:
        await self._ask(AddNodes(count))

    async def remove_node(self, node_id: str, *, is_abrupt: bool) -> None:
        await self._ask(RemoveNode(node_id, is_abrupt))

    async def lend_no_more(self) -> None:
        """Do nothing: what a trace brings until the end is released like the rest."""

    async def detach(self) -> None:
        if self._link:
            link, self._link = self._link, None
            await link.close()

    async def stop(self) -> None:
        if self._link is None:
            return
        self._is_stopping = True
        with contextlib.suppress(BatchError):
            await self._ask(Shutdown())
        await _ended(self._host_pid)
        await self.detach()

    async def _ask(self, request: Request) -> None:
        reply = await self._link.ask(request) if self._link else None
        if reply is None:
            raise BatchError(self._end_in_words, is_transient=False)
        if isinstance(reply, Refused):
            raise BatchError(reply.reason, is_transient=reply.is_transient)
        self._host_pid = reply.pid

    # -- what the host says unasked (`local_link.Notices`) -----------------------------------------

    def node_gone(self, node_id: str) -> None:
        if self._listener:
            self._listener.node_lost(node_id, "nothing of it runs any more")

    def host_abused(self, times: int) -> None:
        if self._listener:
            self._listener.batch_port_abused(times)

    def host_ended(self) -> None:
        if self._listener and not self._is_stopping:
            self._listener.batch_ended(self._end_in_words)

    # -- the host ----------------------------------------------------------------------------------

    async def _connect(self) -> HostLink | None:
        """Return None where there is no host, or it was killed."""
        host = read_host_file(self._host_dir)
        if host is None:
            return None
        return await HostLink.open(host.socket_path, self)

    async def _start_host(self) -> None:
        self._host_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        read_fd, write_fd = os.pipe()
        command = [*self._command, "--ready-fd", str(write_fd), *self._agent_options]
        self._host_pid = _spawn(command, self._log, write_fd)
        reader = asyncio.StreamReader()
        with os.fdopen(read_fd, "rb") as pipe:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), pipe
            )
            is_ready = await reader.readline()
            transport.close()
        if not is_ready:
            raise BatchError(
                f"the process that keeps the local nodes did not start: see {self._log}",
                is_transient=False,
            )

    @property
    def _end_in_words(self) -> str:
        return (
            # What to do comes first: screens are narrow.
            f"the local nodes' host has ended: malletrain down, then malletrain up; jobs go on "
            f"from their newest checkpoints; why it ended may be in {self._log}"
        )

    @property
    def _log(self) -> Path:
        return self._host_dir / "host.log"


def _attach(controller_url: str, token_file: Path) -> Attach:
    return Attach(controller_url, str(token_file.absolute()))


def _count_nodes(path: Path) -> int:
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            return len({interval.node for interval in intervals.read(lines, str(path))})
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"the trace {path} is no UTF-8 text: {error}") from error


def _spawn(command: Sequence[str], log_path: Path, inherited_fd: int) -> int:
    """Start a process in a session of its own, so that it outlives this one and its terminal."""
    append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    os.set_inheritable(inherited_fd, True)
    try:
        return os.posix_spawn(
            command[0],
            list(command),
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log_path), append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(inherited_fd)


async def _ended(pid: int) -> None:
    """Return once the process has ended, whose child it may be."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    _reap(pid)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
