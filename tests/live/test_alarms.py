from __future__ import annotations

import asyncio
from collections.abc import Callable

from malletrain.live.alarms import Alarms
from tests.live.stories import run


class HandClock:
    """Time goes on when it is told to."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self._moved = asyncio.Condition()

    def now_s(self) -> float:
        return self.at_s

    async def sleep(self, seconds: float) -> None:
        end_s = self.at_s + seconds
        async with self._moved:
            await self._moved.wait_for(lambda: self.at_s >= end_s)

    async def move_to(self, at_s: float) -> None:
        async with self._moved:
            self.at_s = at_s
            self._moved.notify_all()


class Bells:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.alarms = Alarms(self.clock)
        self.rung: list[str] = []

    def set(self, key: str, at_s: float | None, name: str = "") -> None:
        self.alarms.set(key, at_s, self._ringer(name or key))

    def _ringer(self, name: str) -> Callable[[], None]:
        return lambda: self.rung.append(name)

    async def move_to(self, at_s: float) -> None:
        await self.clock.move_to(at_s)
        for _ in range(20):
            await asyncio.sleep(0)


def test_alarms_ring_in_their_order_each_once() -> None:
    async def story() -> None:
        bells = Bells()
        running = asyncio.create_task(bells.alarms.run())
        bells.set("late", 20.0)
        bells.set("early", 10.0)
        await bells.move_to(9.0)
        assert bells.rung == []
        await bells.move_to(10.0)
        assert bells.rung == ["early"]
        bells.set("earlier", 12.0)
        await bells.move_to(30.0)
        assert bells.rung == ["early", "earlier", "late"]
        running.cancel()

    run(story())


def test_setting_it_anew_replaces_it_and_none_takes_it_back() -> None:
    async def story() -> None:
        bells = Bells()
        running = asyncio.create_task(bells.alarms.run())
        bells.set("a", 10.0, "first")
        bells.set("a", 20.0, "second")
        bells.set("b", 10.0)
        bells.set("b", None)
        bells.set("c", 10.0)
        bells.alarms.cancel("c")
        await bells.move_to(15.0)
        assert bells.rung == []
        await bells.move_to(20.0)
        assert bells.rung == ["second"]
        running.cancel()

    run(story())


def test_an_alarm_may_set_the_next_from_within() -> None:
    async def story() -> None:
        bells = Bells()
        running = asyncio.create_task(bells.alarms.run())
        bells.alarms.set("a", 5.0, lambda: bells.set("a", 8.0, "again"))
        await bells.move_to(5.0)
        await bells.move_to(8.0)
        assert bells.rung == ["again"]
        running.cancel()

    run(story())
