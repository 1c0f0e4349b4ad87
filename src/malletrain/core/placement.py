"""From node counts to nodes by name: nobody migrates, and jobs keep together.

Nodes leave by group (cabinet, switch), and neighbouring groups often at once: a job on few groups
that lie side by side is hit by fewer leaves. On a week of the Summit trace, giving nodes out along
a line of cabinets brought nearly all of what foresight of every node's life would have; filling up
the cabinet that fits best, which breaks neighbours apart, brought little.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
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
    - A growing job takes free nodes of groups it already holds, then the next ones along the line
      of all groups; of a group first what is expected to end last. Too few free nodes go to jobs
      in the order of `targets`, so that at most one gets a part of what it needs.

    The kinds to compare with know one group only, in order of joining or of the expected end.
    """
    kept = {
        job_id: _survivors(held.get(job_id, ()), count, nodes, kind)
        for job_id, count in targets.items()
    }
    line = _Line(free, kind)
    assigned: dict[str, tuple[str, ...]] = {}
    for job_id, count in targets.items():
        missing = count - len(kept[job_id])
        own = _groups(kept[job_id], nodes, kind) if missing > 0 else []
        assigned[job_id] = (*kept[job_id], *line.take(missing, own))
    return assigned


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


class _Line:
    """Free nodes in the order in which they are given out."""

    def __init__(self, free: Sequence[Node], kind: PlacementKind) -> None:
        usable = [node for node in free if node.leaving_at_s is None]
        if kind is PlacementKind.GROUP:
            usable.sort(
                key=lambda node: (natural_key(node.group), -_end_at_s(node), natural_key(node.id))
            )
        elif kind is PlacementKind.LIFETIME:
            usable.sort(key=lambda node: (-_end_at_s(node), natural_key(node.id)))
        self._ids = [node.id for node in usable]
        self._by_group: defaultdict[str, list[str]] = defaultdict(list)
        for node in usable:
            self._by_group[_group(node, kind)].append(node.id)
        self._given: set[str] = set()
        #: All before it are given.
        self._next = 0

    def take(self, count: int, groups: Sequence[str]) -> list[str]:
        """Give up to `count` nodes, of these groups first."""
        own = chain.from_iterable(self._by_group.get(group, ()) for group in groups)
        taken = list(islice((n for n in own if n not in self._given), max(count, 0)))
        self._given.update(taken)
        while len(taken) < count and self._next < len(self._ids):
            node_id = self._ids[self._next]
            self._next += 1
            if node_id not in self._given:
                self._given.add(node_id)
                taken.append(node_id)
        return taken


@lru_cache(maxsize=65536)
def natural_key(name: str) -> _NaturalKey:
    """Return a key by which h9n2 comes before h10n1."""
    return tuple(
        (int(digits), "") if digits else (-1, text)
        for digits, text in re.findall(r"([0-9]+)|([^0-9]+)", name)
    )
