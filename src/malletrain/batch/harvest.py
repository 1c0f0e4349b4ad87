"""Which pilots to submit, to cancel and to end: a pure function of what is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from malletrain.batch.queue import Survey
from malletrain.config import ScavengeSettings


@dataclass(frozen=True, slots=True)
class Waiting:
    """An own pilot that, as far as is known, waits in the queue."""

    walltime_s: float
    submitted_at_s: float


@dataclass(frozen=True, slots=True)
class Held:
    """A node that a pilot holds for us, and whose agent has called."""

    host: str
    pilot_id: str
    #: Jobs train on it, or are about to.
    is_used: bool
    #: It is to be left.
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """What a plan is made of."""

    now_s: float
    #: Nodes that all jobs together could use.
    demand: int
    #: By node id.
    held: Mapping[str, Held] = field(default_factory=dict)
    #: By pilot id.
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    #: The newest, however old; None before the first.
    survey: Survey | None = None
    #: When pilots were submitted last; minus infinity where none were.
    submitted_at_s: float = float("-inf")
    #: Submissions in a row of which no pilot called, or that were refused.
    failures: int = 0
    #: Since when there are more nodes than the jobs could use; None where there are not.
    surplus_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. An empty one leaves all as it is."""

    #: (how many, walltime in s) of each array.
    submit: tuple[tuple[int, float], ...] = ()
    #: Ids of waiting pilots.
    cancel: tuple[str, ...] = ()
    #: Node id -> why we give it back.
    give_back: Mapping[str, str] = field(default_factory=dict)
    #: When to look again though nothing happens; None: no need to.
    again_at_s: float | None = None


def plan(situation: Situation, settings: ScavengeSettings) -> Plan:
    """Return what to do now."""
    raise NotImplementedError
