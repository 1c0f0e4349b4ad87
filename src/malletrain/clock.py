"""The clock that live modules are given, so that they can run under virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

_Result = TypeVar("_Result")


class Clock(Protocol):
    def now_s(self) -> float:
        """Return epoch seconds that never run backwards."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class WallClock:
    """Epoch seconds at the start, carried on by the monotonic clock: steps of the date are moot."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        return self._offset_s + time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def within(clock: Clock, limit_s: float, work: Awaitable[_Result]) -> _Result:
    """Await the work, and cancel it once the clock says that the limit has passed.

    Raises:
        TimeoutError: it has.
    """
    task = asyncio.ensure_future(work)
    nap = asyncio.ensure_future(clock.sleep(limit_s))
    try:
        await asyncio.wait((task, nap), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise TimeoutError(f"not done within {limit_s:g} s")
        return task.result()
    finally:
        task.cancel()
        nap.cancel()
