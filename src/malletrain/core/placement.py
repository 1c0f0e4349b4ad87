"""From node counts to nodes by name: nobody migrates, and jobs keep to few groups.

Nodes leave by group (cabinet, switch): a job on few groups is hit by fewer leaves. On the Summit
trace, order by cabinet alone brought over 90% of what foresight of every node's life would have.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from math import inf

from malletrain.core.model import Node
from malletrain.core.settings import PlacementKind

_NaturalKey = tuple[tuple[int, str], ...]


def assign(
    targets: Mapping[str, int],
    held: Mapping[str, tuple[str, ...]],
    free: Sequence[Node],
    nodes: Mapping[str, Node],
    kind: PlacementKind = PlacementKind.GROUP,
) -> dict[str, tuple[str, ...]]:
    """Return the nodes by name, in rank order, for every job in `targets`.

    - Survivors come first and keep their order. Nodes that are leaving or gone never stay.
    - A shrinking job gives up its smallest groups, there first what is expected to end
      soonest and, where nothing is expected, the last ranks. Others can have what it gives up
      once it has left, not here.
    - A growing job takes free nodes from groups it already holds, then from the smallest group that
      has all it needs, else from the fullest. Too few free nodes go to jobs in the order of
      `targets`, so that at most one gets a part of what it needs.

    The kinds to compare with know one group only, in order of joining or of the expected end.
    """
    kept = {
        job_id: _survivors(held.get(job_id, ()), count, nodes, kind)
        for job_id, count in targets.items()
    }
    stock = _Stock(free, kind)
    granted: dict[str, int] = {}
    left = stock.size
    for job_id, count in targets.items():
        granted[job_id] = min(count - len(kept[job_id]), left)
        left -= granted[job_id]

    taken: dict[str, list[str]] = {}
    for job_id, count in granted.items():
        own = _groups(kept[job_id], nodes, kind) if count else []
        taken[job_id] = _from_own_groups(own, count, stock)
    # Large needs first: small ones fit into what remains of a group.
    for job_id in sorted(granted, key=lambda job_id: len(taken[job_id]) - granted[job_id]):
        while len(taken[job_id]) < granted[job_id]:
            missing = granted[job_id] - len(taken[job_id])
            taken[job_id] += stock.take(stock.best_group(missing), missing)
    return {job_id: (*kept[job_id], *taken[job_id]) for job_id in targets}


def _group(node: Node, kind: PlacementKind) -> str:
    return node.group if kind is PlacementKind.GROUP else ""


def _end_at_s(node: Node) -> float:
    return inf if node.expected_end_at_s is None else node.expected_end_at_s


def _survivors(
    held: tuple[str, ...], count: int, nodes: Mapping[str, Node], kind: PlacementKind
) -> tuple[str, ...]:
    usable = [nodes[n] for n in held if n in nodes and nodes[n].leaving_at_s is None]
    surplus = len(usable) - count
    if surplus <= 0:
        return tuple(node.id for node in usable)
    size = Counter(_group(node, kind) for node in usable)

    def worth(rank: int) -> tuple[int, _NaturalKey, float, int]:
        node = usable[rank]
        group = _group(node, kind)
        return size[group], natural_key(group), _end_at_s(node), -rank

    given_up = set(sorted(range(len(usable)), key=worth)[:surplus])
    return tuple(node.id for rank, node in enumerate(usable) if rank not in given_up)


def _groups(node_ids: Sequence[str], nodes: Mapping[str, Node], kind: PlacementKind) -> list[str]:
    """Return the groups that the nodes are of, the one with most of them first."""
    return [group for group, _ in Counter(_group(nodes[n], kind) for n in node_ids).most_common()]


def _from_own_groups(groups: Sequence[str], count: int, stock: _Stock) -> list[str]:
    taken: list[str] = []
    for group in groups:
        taken += stock.take(group, count - len(taken))
    return taken


def _order(node: Node, kind: PlacementKind) -> tuple[float, _NaturalKey]:
    """Return what nodes of one group are taken by, the least first."""
    rank = {
        PlacementKind.GROUP: 0.0,
        PlacementKind.JOIN_ORDER: node.opened_at_s,
        PlacementKind.LIFETIME: -_end_at_s(node),
    }[kind]
    return rank, natural_key(node.id)


class _Stock:
    """Free nodes by group, each group in order."""

    def __init__(self, free: Sequence[Node], kind: PlacementKind) -> None:
        by_group: defaultdict[str, list[Node]] = defaultdict(list)
        for node in free:
            if node.leaving_at_s is None:
                by_group[_group(node, kind)].append(node)
        self._kind = kind
        self._nodes = by_group
        #: Group -> node ids, next to be taken last; of groups that were taken from.
        self._ids: dict[str, list[str]] = {}
        #: (free nodes, order, group), sorted; groups without free nodes left out.
        self._sizes = sorted(
            (len(members), natural_key(group), group) for group, members in by_group.items()
        )
        self.size = sum(map(len, by_group.values()))

    def best_group(self, count: int) -> str:
        """Return the smallest group with so many free nodes, else the fullest."""
        at = bisect_left(self._sizes, count, key=lambda entry: entry[0])
        return self._sizes[min(at, len(self._sizes) - 1)][2]

    def take(self, group: str, count: int) -> list[str]:
        """Remove and return up to `count` node ids of a group."""
        if count <= 0 or not (ids := self._of(group)):
            return []
        entry = (len(ids), natural_key(group), group)
        del self._sizes[bisect_left(self._sizes, entry)]
        taken = [ids.pop() for _ in range(min(count, len(ids)))]
        if ids:
            insort(self._sizes, (len(ids), natural_key(group), group))
        return taken

    def _of(self, group: str) -> list[str]:
        if group not in self._ids:
            # Most groups are never taken from.
            key = partial(_order, kind=self._kind)
            members = sorted(self._nodes.get(group, ()), key=key, reverse=True)
            self._ids[group] = [node.id for node in members]
        return self._ids[group]


@lru_cache(maxsize=65536)
def natural_key(name: str) -> _NaturalKey:
    """Return a key by which h9n2 comes before h10n1."""
    return tuple(
        (int(digits), "") if digits else (-1, text)
        for digits, text in re.findall(r"([0-9]+)|([^0-9]+)", name)
    )
