"""Keys through which the members of a generation find each other, one space a generation.

They live in the controller so that no node is special; they are worth nothing once the group is
connected, so they are not journalled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from malletrain.wire import StoreAdd, StoreGet, StoreSet, StoreValue

#: Per space. Gloo's keys are under 1 KiB a pair of members.
MAX_SPACE_BYTES = 64 * 1024 * 1024

Answer = Callable[[str, StoreValue], None]
"""Called with a node id and what to tell its agent."""


@dataclass(slots=True)
class _Space:
    values: dict[str, bytes] = field(default_factory=dict)
    #: Key -> (node id, request) of those that wait for it; agents may ask twice.
    waiters: dict[str, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    #: (node id, request) -> the sum it was told, for one that asks again.
    sums: dict[tuple[str, int], bytes] = field(default_factory=dict)
    size_bytes: int = 0


class Rendezvous:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        #: Job id -> generation -> its space.
        self._spaces: dict[str, dict[int, _Space]] = {}
        #: Job id -> the oldest generation that may still meet.
        self._oldest: dict[str, int] = {}

    def set(self, message: StoreSet) -> bool:
        """Set the key and answer those that wait; False: refused, for its age or size."""
        space = self._space(message.job_id, message.generation)
        if space is None:
            return False
        grown = len(message.key) + len(message.value)
        if space.size_bytes + grown > MAX_SPACE_BYTES:
            return False
        space.size_bytes += grown
        self._put(space, message.key, message.value)
        return True

    def get(self, node_id: str, message: StoreGet) -> bool:
        """Answer as soon as the key is set; False: refused, for its age."""
        space = self._space(message.job_id, message.generation)
        if space is None:
            return False
        value = space.values.get(message.key)
        if value is None:
            space.waiters[message.key].add((node_id, message.request))
        else:
            self._answer(node_id, StoreValue(request=message.request, value=value))
        return True

    def add(self, node_id: str, message: StoreAdd) -> bool:
        """Add to an integer key and answer with the sum; False: refused."""
        space = self._space(message.job_id, message.generation)
        if space is None:
            return False
        value = space.sums.get((node_id, message.request))
        if value is None:
            try:
                total = int(space.values.get(message.key, b"0")) + message.amount
            except ValueError:
                return False
            value = space.sums[node_id, message.request] = str(total).encode()
            self._put(space, message.key, value)
        self._answer(node_id, StoreValue(request=message.request, value=value))
        return True

    def forget_before(self, job_id: str, generation: int) -> None:
        """Drop the spaces of older generations, and let nobody open one of them again."""
        self._oldest[job_id] = max(self._oldest.get(job_id, 0), generation)
        spaces = self._spaces.get(job_id, {})
        for old in [g for g in spaces if g < self._oldest[job_id]]:
            del spaces[old]

    def forget_job(self, job_id: str) -> None:
        self._spaces.pop(job_id, None)
        self._oldest.pop(job_id, None)

    def forget_node(self, node_id: str) -> None:
        """Nobody waits there any more."""
        for spaces in self._spaces.values():
            for space in spaces.values():
                for waiters in space.waiters.values():
                    waiters.difference_update([w for w in waiters if w[0] == node_id])

    def _space(self, job_id: str, generation: int) -> _Space | None:
        if generation < self._oldest.get(job_id, 0):
            return None
        return self._spaces.setdefault(job_id, {}).setdefault(generation, _Space())

    def _put(self, space: _Space, key: str, value: bytes) -> None:
        space.values[key] = value
        for node_id, request in space.waiters.pop(key, ()):
            self._answer(node_id, StoreValue(request=request, value=value))
