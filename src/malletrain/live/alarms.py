"""Deadlines by name on a given clock: setting one anew replaces it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Hashable
from itertools import count

from malletrain.clock import Clock


class Alarms:
    """Calls back at points in time; one task serves them all."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._set: dict[Hashable, tuple[float, int, Callable[[], None]]] = {}
        #: (when, serial, key); entries that are not in `_set` any more are skipped.
        self._heap: list[tuple[float, int, Hashable]] = []
        self._serials = count()
        self._changed = asyncio.Event()

    def set(self, key: Hashable, at_s: float | None, call: Callable[[], None]) -> None:
        """Call back once `at_s` has come; None cancels."""
        if at_s is None:
            self._set.pop(key, None)
            return
        if key in self._set and self._set[key][0] == at_s:
            self._set[key] = (at_s, self._set[key][1], call)
            return
        serial = next(self._serials)
        self._set[key] = (at_s, serial, call)
        heapq.heappush(self._heap, (at_s, serial, key))
        if self._heap[0][1] == serial:
            self._changed.set()

    def cancel(self, key: Hashable) -> None:
        self._set.pop(key, None)

    async def run(self) -> None:
        while True:
            self._ring()
            self._changed.clear()
            wait = asyncio.ensure_future(self._changed.wait())
            if not self._heap:
                await wait
                continue
            nap = asyncio.ensure_future(
                self._clock.sleep(max(0.0, self._heap[0][0] - self._clock.now_s()))
            )
            try:
                await asyncio.wait((wait, nap), return_when=asyncio.FIRST_COMPLETED)
            finally:
                wait.cancel()
                nap.cancel()

    def _ring(self) -> None:
        while self._heap and (
            self._heap[0][0] <= self._clock.now_s() or not self._is_set(self._heap[0])
        ):
            entry = heapq.heappop(self._heap)
            if self._is_set(entry):
                _, _, call = self._set.pop(entry[2])
                call()

    def _is_set(self, entry: tuple[float, int, Hashable]) -> bool:
        current = self._set.get(entry[2])
        return current is not None and current[1] == entry[1]
