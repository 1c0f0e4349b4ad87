"""Where workers live, from their start until their agent says that they ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping


class Homes:
    def __init__(self) -> None:
        self._node_of: dict[str, str] = {}
        #: Node id -> worker id -> job id.
        self._on: dict[str, dict[str, str]] = defaultdict(dict)

    def __bool__(self) -> bool:
        return bool(self._node_of)

    def __contains__(self, worker_id: object) -> bool:
        return worker_id in self._node_of

    def add(self, worker_id: str, job_id: str, node_id: str) -> None:
        self._node_of[worker_id] = node_id
        self._on[node_id][worker_id] = job_id

    def remove(self, worker_id: str) -> None:
        if node_id := self._node_of.pop(worker_id, None):
            del self._on[node_id][worker_id]

    def on(self, node_id: str) -> Mapping[str, str]:
        """Worker id -> job id."""
        return dict(self._on.get(node_id, {}))

    def remove_node(self, node_id: str) -> None:
        for worker_id in self._on.pop(node_id, {}):
            del self._node_of[worker_id]

    def by_node(self, worker_ids: Iterable[str]) -> Mapping[str, list[str]]:
        """Group workers by node; those that have ended are left out."""
        grouped: dict[str, list[str]] = defaultdict(list)
        for worker_id in worker_ids:
            if node_id := self._node_of.get(worker_id):
                grouped[node_id].append(worker_id)
        return grouped
