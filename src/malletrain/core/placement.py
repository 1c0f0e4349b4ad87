"""From node counts to nodes by name: nobody migrates, and jobs keep to few groups.

Nodes leave by group (cabinet, switch): a job on few groups is hit by fewer leaves. On the Summit
trace, order by cabinet alone brought over 90% of what foresight of every node's life would have.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf

from malletrain.core.model import Node

_NaturalKey = tuple[tuple[int, str], ...]


def assign(
    targets: Mapping[str, int],
    held: Mapping[str, tuple[str, ...]],
    free: Sequence[Node],
    nodes: Mapping[str, Node],
) -> dict[str, tuple[str, ...]]:
    """Return the nodes by name, in rank order, for every job in `targets`.

    - Survivors come first and keep their order. Nodes that are leaving or gone never stay.
    - A shrinking job gives up its smallest groups, there first what is expected to end
      soonest and, where nothing is expected, the last ranks. Others can have what it gives up
      once it has left, not here.
    - A growing job takes free nodes from groups it already holds, then from the smallest group that
      has all it needs, else from the fullest. Too few free nodes go to jobs in the order of
      `targets`, so that at most one gets a part of what it needs.
    """
    kept = {
        job_id: _survivors(held.get(job_id, ()), count, nodes) for job_id, count in targets.items()
    }
    stock = _Stock(free)
    granted: dict[str, int] = {}
    left = stock.size
    for job_id, count in targets.items():
        granted[job_id] = min(count - len(kept[job_id]), left)
        left -= granted[job_id]

    taken: dict[str, list[str]] = {}
    for job_id, count in granted.items():
        taken[job_id] = _from_own_groups(kept[job_id], count, stock, nodes) if count else []
    # Large needs first: small ones fit into what remains of a group.
    for job_id in sorted(granted, key=lambda job_id: len(taken[job_id]) - granted[job_id]):
        while len(taken[job_id]) < granted[job_id]:
            missing = granted[job_id] - len(taken[job_id])
            taken[job_id] += stock.take(stock.best_group(missing), missing)
    return {job_id: (*kept[job_id], *taken[job_id]) for job_id in targets}


def _survivors(held: tuple[str, ...], count: int, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    usable = [nodes[n] for n in held if n in nodes and nodes[n].leaving_at_s is None]
    surplus = len(usable) - count
    if surplus <= 0:
        return tuple(node.id for node in usable)
    size = Counter(node.group for node in usable)

    def worth(rank: int) -> tuple[int, _NaturalKey, float, int]:
        node = usable[rank]
        end_at_s = inf if node.expected_end_at_s is None else node.expected_end_at_s
        return size[node.group], natural_key(node.group), end_at_s, -rank

    given_up = set(sorted(range(len(usable)), key=worth)[:surplus])
    return tuple(node.id for rank, node in enumerate(usable) if rank not in given_up)


def _from_own_groups(
    kept: tuple[str, ...], count: int, stock: _Stock, nodes: Mapping[str, Node]
) -> list[str]:
    taken: list[str] = []
    for group, _ in Counter(nodes[n].group for n in kept).most_common():
        taken += stock.take(group, count - len(taken))
    return taken


class _Stock:
    """Free nodes by group, each group in natural order."""

    def __init__(self, free: Sequence[Node]) -> None:
        by_group: defaultdict[str, list[Node]] = defaultdict(list)
        for node in free:
            if node.leaving_at_s is None:
                by_group[node.group].append(node)
        #: Group -> node ids, next to be taken last.
        self._ids = {
            group: [n.id for n in sorted(members, key=lambda n: natural_key(n.id), reverse=True)]
            for group, members in by_group.items()
        }
        #: (free nodes, order, group), sorted; groups without free nodes left out.
        self._sizes = sorted(
            (len(ids), natural_key(group), group) for group, ids in self._ids.items()
        )
        self.size = sum(len(ids) for ids in self._ids.values())

    def best_group(self, count: int) -> str:
        """Return the smallest group with so many free nodes, else the fullest."""
        at = bisect_left(self._sizes, count, key=lambda entry: entry[0])
        return self._sizes[min(at, len(self._sizes) - 1)][2]

    def take(self, group: str, count: int) -> list[str]:
        """Remove and return up to `count` node ids of a group."""
        ids = self._ids.get(group, [])
        if not ids or count <= 0:
            return []
        entry = (len(ids), natural_key(group), group)
        del self._sizes[bisect_left(self._sizes, entry)]
        taken = [ids.pop() for _ in range(min(count, len(ids)))]
        if ids:
            insort(self._sizes, (len(ids), natural_key(group), group))
        return taken


@lru_cache(maxsize=65536)
def natural_key(name: str) -> _NaturalKey:
    """Return a key by which h9n2 comes before h10n1."""
    return tuple(
        (int(digits), "") if digits else (-1, text)
        for digits, text in re.findall(r"([0-9]+)|([^0-9]+)", name)
    )
