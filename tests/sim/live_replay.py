"""A replay by the live controller: its real inbox, pace, progress pool, journal and decisions.

Only what it is given from outside differs: the clock is moved by hand, and its hands are the
simulator's world in place of agents.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from malletrain.allocate import allocator
from malletrain.config import Config, LiveSettings
from malletrain.core.events import AnyEvent
from malletrain.core.model import Cluster
from malletrain.live.controller import Controller
from malletrain.live.state_dir import StateDir
from malletrain.live.store import SqliteStore, read_events
from malletrain.sim.agenda import Agenda
from malletrain.sim.engine import core_settings
from malletrain.sim.policies import policy
from malletrain.sim.settings import ReplayOptions
from malletrain.sim.world import World
from malletrain.traces.intervals import IdleInterval
from malletrain.workloads.workload import Workload

_T = TypeVar("_T")

#: Every report by itself, as a replay has them.
#: Nothing waits but decisions about measurements, which wait as long in both.
LIVE = LiveSettings(
    settle_s=0.0, progress_journal_s=0.0, progress_decide_s=ReplayOptions().progress_decide_s
)


@dataclass(frozen=True)
class LiveReplay:
    #: Everything that the controller wrote down.
    events: tuple[AnyEvent, ...]
    cluster: Cluster


def live_replay(
    directory: Path,
    intervals: Sequence[IdleInterval],
    work: Workload,
    options: ReplayOptions,
    *,
    name: str,
    until_s: float,
    live: LiveSettings = LIVE,
    mishaps: Callable[[World], None] = lambda _world: None,
) -> LiveReplay:
    """Have the controller live through the trace; `mishaps` puts more on the world's agenda."""
    world = World(intervals, work, policy(name), options, Agenda())
    mishaps(world)
    clock = VirtualClock(options.from_s)
    selector = _IdleSelector()
    path = directory / "journal.sqlite"
    with closing(SqliteStore(path)) as store:
        store._db.execute("PRAGMA synchronous = OFF")  # this test outlives no crash
        controller = Controller(
            Config(core=core_settings(options, policy(name)), live=live),
            store=store,
            allocator=allocator(policy(name).allocator),
            clock=clock,
            paths=StateDir(directory / "state"),
            offload=_inline,
            hands=world,
        )
        life = _live(controller, world, clock, selector, until_s)
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
            runner.run(life)
    assert controller.trouble == ""
    assert not controller.counters, "it logged why"
    return LiveReplay(read_events(path), replace(controller.cluster, now_s=until_s))


async def _live(
    controller: Controller,
    world: World,
    clock: VirtualClock,
    selector: _IdleSelector,
    until_s: float,
) -> None:
    agenda = world._agenda
    await controller.recover()
    running = asyncio.create_task(controller.run())
    await selector.idle()
    while (at_s := _earliest(agenda.next_at_s(), clock.next_at_s())) < until_s:
        clock.move_to(at_s)
        if agenda.next_at_s() == at_s:
            for event in world.pass_to(at_s):
                controller._inbox.put(event)
        await selector.idle()
        assert not running.done()
    running.cancel()


def _earliest(*times_s: float | None) -> float:
    return min((at_s for at_s in times_s if at_s is not None), default=float("inf"))


class VirtualClock:
    """Stands still until it is moved."""

    def __init__(self, now_s: float) -> None:
        self._now_s = now_s
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now_s(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        if seconds > 0.0:
            waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._sleepers.append((self._now_s + seconds, waking))
            await waking

    def next_at_s(self) -> float | None:
        """When the first of those wakes that still sleep."""
        self._sleepers = [sleeper for sleeper in self._sleepers if not sleeper[1].done()]
        return min((at_s for at_s, _ in self._sleepers), default=None)

    def move_to(self, at_s: float) -> None:
        assert at_s >= self._now_s, "time runs backwards"
        self._now_s = at_s
        for wakes_at_s, waking in self._sleepers:
            if wakes_at_s <= at_s and not waking.done():
                waking.set_result(None)


class _IdleSelector(selectors.DefaultSelector):
    """Of an event loop without timers: the loop is about to block when all tasks wait."""

    def __init__(self) -> None:
        super().__init__()
        self._idle: asyncio.Future[None] | None = None

    async def idle(self) -> None:
        """Return once every other task waits for something that only the caller can bring."""
        self._idle = asyncio.get_running_loop().create_future()
        await self._idle

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
            timeout = 0
        return super().select(timeout)


async def _inline(call: Callable[[], _T]) -> _T:
    return call()
