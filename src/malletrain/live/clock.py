"""The clock that live modules are given, so that they can run under virtual time."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


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
