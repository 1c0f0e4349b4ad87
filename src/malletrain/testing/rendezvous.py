"""The controller's rendezvous store of a local job."""

from __future__ import annotations

from malletrain.testing.nodes import Connection
from malletrain.wire import StoreAdd, StoreGet, StoreSet, StoreValue


class Rendezvous:
    """The keys of every generation, and who waits for which."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, str], bytes] = {}
        self._waiting: dict[tuple[int, str], list[tuple[Connection, int]]] = {}

    def set(self, message: StoreSet) -> list[tuple[Connection, StoreValue]]:
        key = (message.generation, message.key)
        self._values[key] = message.value
        waiting = self._waiting.pop(key, [])
        return [(to, StoreValue(request=r, value=message.value)) for to, r in waiting]

    def get(self, sender: Connection, message: StoreGet) -> StoreValue | None:
        key = (message.generation, message.key)
        if key in self._values:
            return StoreValue(request=message.request, value=self._values[key])
        self._waiting.setdefault(key, []).append((sender, message.request))
        return None

    def add(self, message: StoreAdd) -> StoreValue:
        key = (message.generation, message.key)
        total = int(self._values.get(key, b"0")) + message.amount
        self._values[key] = str(total).encode()
        return StoreValue(request=message.request, value=self._values[key])
