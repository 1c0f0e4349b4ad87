"""Node states, told apart by the exact base state and every flag."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Fitness(enum.Enum):
    """What a node's state means for us."""

    #: Idle, and nothing else is said of it: ours to take.
    FREE = "free"
    #: The same, but somebody is planned to have it: ours until then, where it is known when.
    PLANNED = "planned"
    #: It is being taken out of service, or is out of it: whoever is on it should leave.
    UNFIT = "unfit"
    #: In use, promised to somebody, or on its way up or down; no business of ours.
    OTHERS = "others"


#: Base states and flags as `sinfo` writes them in `StateComplete`.
_UNFIT = frozenset(
    {
        *("down", "error", "fail", "failing", "future", "drain", "maintenance"),
        *("not_responding", "invalid_reg", "blocked", "reboot_requested", "reboot_issued"),
        *("power_down", "power_drain", "powering_down", "powered_down"),
    }
)
#: Flags that say how the node was configured and nothing of its condition.
_KINDS = frozenset({"dynamic_norm"})
_PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class NodeState:
    """For example idle with the flags drain and not_responding."""

    base: str
    flags: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> NodeState:
        """Read `idle+drain`, the way of `sinfo -O StateComplete`."""
        base, *flags = text.strip().lower().split("+")
        return cls(base, frozenset(flags))

    @property
    def fitness(self) -> Fitness:
        if self.base in _UNFIT or self.flags & _UNFIT:
            return Fitness.UNFIT
        # A flag that nobody knows may mean anything: the node is left alone.
        flags = self.flags - _KINDS
        if self.base == "idle" and flags <= {_PLANNED}:
            return Fitness.PLANNED if flags else Fitness.FREE
        return Fitness.OTHERS

    def __str__(self) -> str:
        return "+".join((self.base, *sorted(self.flags)))
