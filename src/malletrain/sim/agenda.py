"""What is still to come, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count

from malletrain.core.events import AnyEvent

#: Lets it happen, and returns what the system is told of it.
Happening = Callable[[], Sequence[AnyEvent]]


class Agenda:
    """A heap by time; what is due at one time happens in the order in which it was put down."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Happening]] = []
        self._serials = count()

    def put(self, at_s: float, happening: Happening) -> None:
        heapq.heappush(self._heap, (at_s, next(self._serials), happening))

    def next_at_s(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def pop(self) -> Happening:
        return heapq.heappop(self._heap)[2]
