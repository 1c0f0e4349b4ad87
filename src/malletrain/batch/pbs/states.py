"""Vnode states, told apart by their exact words (pbs_node_attributes(7B))."""

from __future__ import annotations

import enum


class Fitness(enum.Enum):
    """What a vnode's state means for us."""

    #: It can take jobs; some may share it already, and a reservation may be near.
    FREE = "free"
    #: It is out of service or not there: whoever is on it should leave.
    UNFIT = "unfit"
    #: In use, on its way up, or a state that we do not know; no business of ours.
    OTHERS = "others"


_UNFIT = frozenset(
    {"offline", "down", "stale", "state-unknown", "unresolvable", "maintenance", "sleep"}
)


def fitness(state: str) -> Fitness:
    """Judge a `state`: words joined by commas."""
    words = {word.strip() for word in state.split(",")}
    if words & _UNFIT:
        return Fitness.UNFIT
    return Fitness.FREE if words == {"free"} else Fitness.OTHERS
