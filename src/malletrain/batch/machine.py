"""Nodes on this machine: process groups that this process starts, ends and leaves nothing of."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from malletrain import processes
from malletrain.clock import Clock, within

#: SIGKILL works within milliseconds but for a process in a driver.
_CLEAR_LIMIT_S = 5.0

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Node:
    pid: int
    run_dir: Path
    #: Its agent has ended, by itself or by force.
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    #: Nothing is left of it.
    cleared: asyncio.Event = field(default_factory=asyncio.Event)


class Machine:
    """Starts agents and the zygote that they share; all of it dies with this process."""

    def __init__(
        self,
        run_dir: Path,
        agent_options: Sequence[str],
        preload: Sequence[str],
        grace_s: float,
        *,
        clock: Clock,
    ) -> None:
        self._clock = clock
        #: Private, and short enough for sockets to lie below it.
        self._run_dir = run_dir
        self._agent_options = (*agent_options, "--grace-s", str(grace_s))
        self._preload = tuple(preload)
        self._grace_s = grace_s
        self._on_cleared: Callable[[str], None] | None = None
        self._log_path = run_dir / "zygote.log"
        self._listener = socket.socket(socket.AF_UNIX)
        self._zygote_pid = 0
        self._serials = count(1)
        self._nodes: dict[str, _Node] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._nodes

    def __len__(self) -> int:
        """Return how many nodes are there or not yet cleared away."""
        return len(self._nodes)

    async def cleared(self, node_id: str) -> None:
        """Return once nothing is left of the node."""
        if node := self._nodes.get(node_id):
            await node.cleared.wait()

    def open(self, log_path: Path, on_cleared: Callable[[str], None]) -> None:
        """Start the zygote, which logs to this file; call back for each node that is no more."""
        self._log_path = log_path
        self._on_cleared = on_cleared
        processes.adopt_orphans()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        self._listener.bind(str(self._zygote_socket))
        self._listener.listen(1024)
        self._start_zygote()

    async def close(self) -> None:
        """End every node at once, and the zygote."""
        await asyncio.gather(*(self.end(n, is_abrupt=True) for n in self._nodes))
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        self._listener.close()
        zygote_pid, self._zygote_pid = self._zygote_pid, 0
        await self._clear(zygote_pid)

    def start(self, node_id: str, group: str, log_path: Path, options: Sequence[str]) -> None:
        """Start a node's agent as the leader of a process group."""
        run_dir = self._run_dir / str(next(self._serials))
        run_dir.mkdir(mode=0o700)
        command = [*processes.PYTHON, "-m", "malletrain.node.agent", "--node-id", node_id]
        command += ["--group", group, "--run-dir", str(run_dir)]
        command += ["--zygote", str(self._zygote_socket), *self._agent_options, *options]
        pid = processes.start_bound(command, log_path=log_path, is_group_leader=True)
        self._nodes[node_id] = _Node(pid, run_dir)

    async def end(self, node_id: str, *, is_abrupt: bool) -> None:
        """End a node: SIGTERM to its agent, the grace period, SIGKILL to its group; return then.

        Abrupt: SIGKILL at once.
        """
        node = self._nodes.get(node_id)
        if node is None:
            return
        if not is_abrupt:
            processes.signal_process(node.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await within(self._clock, self._grace_s, node.ended.wait())
        if not node.ended.is_set():
            processes.signal_group(node.pid, signal.SIGKILL)
        await node.cleared.wait()

    @property
    def _zygote_socket(self) -> Path:
        return self._run_dir / "zygote.sock"

    def _start_zygote(self) -> None:
        fd = self._listener.fileno()
        command = [*processes.PYTHON, "-m", "malletrain.node.zygote", "--listen-fd", str(fd)]
        self._zygote_pid = processes.start_bound(
            [*command, "--preload", ",".join(self._preload)],
            log_path=self._log_path,
            is_group_leader=True,
            pass_fds=[fd],
        )

    def _reap(self) -> None:
        ended = dict(processes.reap())
        for node_id, node in self._nodes.items():
            if node.pid in ended and not node.ended.is_set():
                _logger.info("agent of %s ended with %d", node_id, ended[node.pid])
                node.ended.set()
                task = asyncio.create_task(self._clear_node(node_id, node))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if self._zygote_pid in ended:
            # Agents that it served have their own forks of it, which live on.
            _logger.error("the zygote ended with %d; starting another", ended[self._zygote_pid])
            self._start_zygote()

    async def _clear_node(self, node_id: str, node: _Node) -> None:
        await self._clear(node.pid)
        shutil.rmtree(node.run_dir, ignore_errors=True)
        del self._nodes[node_id]
        # Before anybody can start another node of this name.
        assert self._on_cleared is not None
        self._on_cleared(node_id)
        node.cleared.set()

    async def _clear(self, group: int) -> None:
        """Kill what is left of a group, and what has left it, until nothing is."""
        give_up_at_s = self._clock.now_s() + _CLEAR_LIMIT_S
        pause_s = 0.002
        while not processes.is_group_empty(group) or self._strays():
            if self._clock.now_s() > give_up_at_s:
                _logger.error("processes of group %d are left after SIGKILL", group)
                return
            processes.signal_group(group, signal.SIGKILL)
            for pid in self._strays():
                processes.signal_process(pid, signal.SIGKILL)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.1)
            self._reap()

    def _strays(self) -> set[int]:
        """Return adopted children that belong to no living node."""
        own = {self._zygote_pid, *(node.pid for node in self._nodes.values())}
        living = {node.pid for node in self._nodes.values() if not node.ended.is_set()}
        # A living node's fork of a zygote that was killed is adopted too, and needed.
        return {pid for pid in processes.children() - own if _group_of(pid) not in living}


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
