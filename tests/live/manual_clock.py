"""A clock that a test moves."""

from __future__ import annotations

import asyncio


class ManualClock:
    def __init__(self) -> None:
        self._now_s = 1000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        #: How long each sleep was asked to last.
        self.asked_s: list[float] = []

    def now_s(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        self.asked_s.append(seconds)
        waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now_s + seconds, waking))
        await waking

    async def advance(self, seconds: float, *, step_s: float = 0.25) -> None:
        """Let time pass in small steps, and everybody act on each of them."""
        until_s = self._now_s + seconds
        while self._now_s < until_s:
            await self.jump(min(step_s, until_s - self._now_s))

    async def jump(self, seconds: float) -> None:
        """Let time pass at once, as for a process that was stopped."""
        await settle()
        self._now_s += seconds
        for at_s, waking in self._sleepers:
            if at_s <= self._now_s and not waking.done():
                waking.set_result(None)
        self._sleepers = [(at_s, waking) for at_s, waking in self._sleepers if not waking.done()]
        await settle()


async def settle() -> None:
    """Let every task run until it waits for something."""
    for _ in range(30):
        await asyncio.sleep(0)
