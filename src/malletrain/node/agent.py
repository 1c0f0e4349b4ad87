"""A node's agent: the controller's hand on the node, and the first to hear that it must be left.

It connects outwards, so no port is open on a node. It ends at once when nobody needs the node any
more: the main scheduler's job waits for that, whatever grace period there is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import os
import random
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from malletrain.clock import Clock, WallClock, within
from malletrain.core.model import Node
from malletrain.errors import MalleTrainError
from malletrain.network import own_address
from malletrain.node.launcher import Launcher, ZygoteLauncher
from malletrain.node.scratch import scratch
from malletrain.node.uplink import Connect, Uplink
from malletrain.node.websocket import WebSocketConnector
from malletrain.node.workers import WatchSettings, Workers
from malletrain.wire import (
    PROTOCOL,
    AgentHello,
    AgentLeaving,
    ReleaseNode,
    StartWorkers,
    StopWorkers,
    StoreValue,
    ToAgent,
    Welcome,
)

#: The end must be over before the batch system's SIGKILL.
_MARGIN_S = 0.5
#: A controller that is there has had the workers of a node killed so long after it had to.
_INSISTS_WITHIN_S = 1.0
#: Reaping killed workers, then the last messages, may take this long each.
_END_LIMIT_S = 1.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    #: Private to the node's agent: its workers' socket lies there.
    run_dir: Path
    #: From the first signal to SIGKILL, by the batch system.
    grace_s: float = 30.0
    #: After a signal, workers have so long to leave their jobs (`wire.AgentLeaving`).
    shrink_within_s: float | None = None
    save_within_s: float | None = None
    #: The node is left so long before its expected end, which needs no signal.
    leave_ahead_s: float = 0.0
    away_limit_s: float = 600.0
    watch: WatchSettings = field(default_factory=WatchSettings)
    #: What workers get beside the environment that the job asks for.
    base_env: Mapping[str, str] = field(default_factory=dict)


class Agent:
    """Serves one node until it is released, its grace is over, or the controller stays away."""

    def __init__(
        self,
        node: Node,
        settings: AgentSettings,
        *,
        clock: Clock,
        connect: Connect,
        launcher: Launcher,
        jitter: Callable[[], float],
        new_secret: Callable[[], str],
    ) -> None:
        self._node = node
        self._settings = settings
        self._clock = clock
        self._incarnation = new_secret()
        self._uplink = Uplink(
            connect,
            clock,
            jitter,
            hello=self._hello,
            receive=self._receive,
            away_limit_s=settings.away_limit_s,
        )
        self._workers = Workers(
            node.id,
            settings.run_dir,
            settings.watch,
            base_env=settings.base_env,
            clock=clock,
            launcher=launcher,
            new_secret=new_secret,
            say=self._uplink.send,
            forget=self._uplink.forget,
        )
        #: Starting may have to wait for the launcher; all else goes on meanwhile.
        self._orders: asyncio.Queue[StartWorkers | StopWorkers] = asyncio.Queue()
        self._leaving = asyncio.Event()
        self._leave_reason = ""
        self._leaves_by_s = math.inf
        #: Somebody waits for the node.
        self._is_awaited = False
        self._over = asyncio.Event()
        self._over_reason = ""

    async def run(self) -> None:
        """Serve the node; when this returns, its workers are gone."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._workers.start(tasks)
                tasks.create_task(self._keep_up())
                tasks.create_task(self._carry_out())
                tasks.create_task(self._leave())
                tasks.create_task(self._foresee_end())
                tasks.create_task(self._until_over())
        except* _Over:
            _logger.info("node %s ended: %s", self._node.id, self._over_reason)
        finally:
            await self._workers.close()

    def leave(self, reason: str) -> None:
        """Somebody waits for the node: end once no worker needs it, and within limits anyway.

        The controller that should see to these may be away, and grace may be long.
        """
        self._is_awaited = True
        limits_s = [
            limit_s + _INSISTS_WITHIN_S
            for limit_s in (self._settings.shrink_within_s, self._settings.save_within_s)
            if limit_s is not None
        ]
        longest_s = max(limits_s, default=math.inf)
        self._leave_within(min(longest_s, self._settings.grace_s), reason)

    def _leave_within(self, limit_s: float, reason: str) -> None:
        self._leaves_by_s = min(self._leaves_by_s, self._clock.now_s() + limit_s)
        self._leave_reason = reason
        self._leaving.set()

    # -- the controller ---------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        await self._uplink.run()
        self._end("the controller stays away")

    def _hello(self) -> AgentHello:
        return AgentHello(
            protocol=PROTOCOL,
            node=self._node,
            incarnation=self._incarnation,
            pid=os.getpid(),
            workers=self._workers.infos,
        )

    def _receive(self, message: ToAgent) -> None:
        match message:
            case Welcome():
                _logger.info("connected to %s", message.controller)
                self._workers.stop(message.stop_worker_ids, grace_s=0)
                if self._node.leaving_at_s is not None:
                    self._say_leaving()
            case StartWorkers() | StopWorkers():
                self._orders.put_nowait(message)
            case StoreValue():
                self._workers.answer(message)
            case ReleaseNode():
                self._end(f"released: {message.reason}")
            case _:
                self._workers.pass_on(message)

    async def _carry_out(self) -> None:
        while True:
            order = await self._orders.get()
            if isinstance(order, StopWorkers):
                self._workers.stop(order.worker_ids, order.grace_s)
            elif self._node.leaving_at_s is not None:
                # The controller learns of the leave, or of the lost node, behind this order.
                _logger.info("starts nothing for %s: the node is leaving", order.job_id)
            else:
                await self._workers.start_workers(order)

    # -- the end ----------------------------------------------------------------------------------

    async def _foresee_end(self) -> None:
        """Leave ahead of the walltime's end, which the batch system does not announce."""
        if self._node.expected_end_at_s is None:
            return
        leave_at_s = self._node.expected_end_at_s - self._settings.leave_ahead_s
        await self._clock.sleep(max(leave_at_s - self._clock.now_s(), 0.0))
        left_s = max(self._node.expected_end_at_s - self._clock.now_s(), 0.0)
        self._leave_within(left_s, "its walltime ends")

    async def _leave(self) -> None:
        await self._leaving.wait()
        margin_s = min(_MARGIN_S, (self._leaves_by_s - self._clock.now_s()) / 4)
        while (left_s := self._leaves_by_s - margin_s - self._clock.now_s()) > 0:
            if self._leaving.is_set():
                # For the first time, or for a second reason, which may leave less time.
                self._leaving.clear()
                self._node = msgspec.structs.replace(self._node, leaving_at_s=self._leaves_by_s)
                if self._uplink.is_connected:
                    self._say_leaving()
            await self._first_of(left_s, self._workers.none_left, self._leaving)
            if self._workers.none_left.is_set():
                self._end("leaving, and no worker is left")
                return
        self._end("the grace period is over")

    async def _first_of(self, limit_s: float, *events: asyncio.Event) -> None:
        """Return once one of the events has happened, or the limit has passed."""
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            with contextlib.suppress(TimeoutError):
                await within(
                    self._clock, limit_s, asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                )
        finally:
            for wait in waits:
                wait.cancel()

    def _say_leaving(self) -> None:
        assert self._node.leaving_at_s is not None
        left_s = max(0.0, self._node.leaving_at_s - self._clock.now_s())
        self._uplink.send(
            AgentLeaving(
                node_id=self._node.id,
                grace_s=left_s,
                reason=self._leave_reason,
                shrink_within_s=self._settings.shrink_within_s if self._is_awaited else None,
                save_within_s=self._settings.save_within_s if self._is_awaited else None,
            )
        )

    def _end(self, reason: str) -> None:
        self._over_reason = self._over_reason or reason
        self._over.set()

    async def _until_over(self) -> None:
        await self._over.wait()
        self._workers.kill_all(f"ended with its node: {self._over_reason}")
        with contextlib.suppress(TimeoutError):
            await within(self._clock, _END_LIMIT_S, self._workers.none_left.wait())
        with contextlib.suppress(TimeoutError):
            await within(self._clock, _END_LIMIT_S, self._uplink.flush())
        # The way to end the other tasks of a task group.
        raise _Over


class _Over(Exception):  # noqa: N818 - no error
    pass


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="malletrain.node.agent", description=__doc__)
    add = parser.add_argument
    add("--controller", required=True, help="its url, or a JSON file with a `url`")
    add("--token-file", type=Path, required=True)
    add("--node-id", required=True)
    add("--group", default="", help="cabinet, switch or dragonfly group")
    add("--node-class", default="")
    add("--gpus", type=int, default=0)
    add("--host", default="", help="the batch system's name of the node")
    add("--pilot-id", default="", help="the batch system's job that holds it")
    add("--expected-end", type=float, metavar="EPOCH_S", help="when the batch system wants it back")
    add("--leave-ahead-s", type=float, default=60.0, help="jobs leave so long before that")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--run-dir", type=Path, help="private and short: a socket lies there")
    place.add_argument("--scratch-dir", type=Path, help="where a private directory is made for it")
    add("--subnet", default="", help="collectives go through the interface in it, as 10.1.0.0/16")
    add("--zygote", type=Path, help="socket of the machine's zygote; default: an own zygote")
    add("--preload", default="", help="modules that an own zygote imports, by comma")
    add("--grace-s", type=float, default=30.0, help="from the leave signal to SIGKILL")
    add("--shrink-within-s", type=float, help="after it, for workers whose job goes on elsewhere")
    add("--save-within-s", type=float, help="after it, for workers whose job has to be saved")
    add("--leave-signal", action="append", metavar="NAME", help="default: SIGTERM")
    add("--controller-away-limit-s", type=float, default=600.0)
    add("--heartbeat-limit-s", type=float, default=10.0)
    add("--hang-limit-s", type=float, default=120.0)
    return parser.parse_args(arguments)


def _agent(options: argparse.Namespace, run_dir: Path) -> Agent:
    clock = WallClock()
    node = Node(
        options.node_id,
        clock.now_s(),
        gpus=options.gpus,
        group=options.group,
        node_class=options.node_class,
        expected_end_at_s=options.expected_end,
        host=options.host,
        pilot_id=options.pilot_id,
    )
    settings = AgentSettings(
        run_dir,
        grace_s=options.grace_s,
        shrink_within_s=options.shrink_within_s,
        save_within_s=options.save_within_s,
        leave_ahead_s=options.leave_ahead_s,
        away_limit_s=options.controller_away_limit_s,
        watch=WatchSettings(options.heartbeat_limit_s, options.hang_limit_s),
        base_env={**os.environ, **_placed(options)},
    )
    preload = [name for name in options.preload.split(",") if name]
    return Agent(
        node,
        settings,
        clock=clock,
        connect=WebSocketConnector(options.controller, options.token_file),
        launcher=ZygoteLauncher(options.zygote, preload),
        jitter=random.random,
        new_secret=lambda: secrets.token_hex(16),
    )


def _placed(options: argparse.Namespace) -> dict[str, str]:
    """Return what workers must be told of the network and of where their temporary files go."""
    env: dict[str, str] = {}
    if options.subnet:
        interface, _ = own_address(options.subnet)
        env |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return env


async def _serve(options: argparse.Namespace, run_dir: Path) -> None:
    agent = _agent(options, run_dir)
    loop = asyncio.get_running_loop()
    for name in options.leave_signal or ["SIGTERM"]:
        loop.add_signal_handler(signal.Signals[name], agent.leave, f"the node got {name}")
    await agent.run()


@contextlib.contextmanager
def _run_dir(options: argparse.Namespace) -> Iterator[Path]:
    """Give the agent's private directory; one of our own making is gone at the end."""
    if options.run_dir:
        yield options.run_dir
        return
    with scratch(options.scratch_dir) as run_dir:
        yield run_dir


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s agent: %(message)s")
    if not options.pilot_id and os.getpgrp() != os.getpid():
        # Whoever kills this group kills everything on the node, and nothing else. A batch system
        # has a group for that already.
        os.setpgid(0, 0)
    # Until the agent hears them by itself: what was begun is cleared away.
    leave_signals = options.leave_signal or ["SIGTERM"]
    for name in leave_signals:
        signal.signal(signal.Signals[name], lambda *_: sys.exit(0))
    status = 0
    try:
        with _run_dir(options) as run_dir:
            try:
                asyncio.run(_serve(options, run_dir))
            finally:
                # Said again while it is cleared away, they must not break that off.
                for name in leave_signals:
                    signal.signal(signal.Signals[name], signal.SIG_IGN)
    except* MalleTrainError as errors:
        for error in errors.exceptions:
            sys.stderr.write(f"agent: {error}\n")
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
