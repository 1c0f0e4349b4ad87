"""When to decide: at once after news, now and then after measurements, else not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.core.events import (
    AnyEvent,
    CheckpointSaved,
    JobNoted,
    JobsForgotten,
    NodeEndsForeseen,
    NodesLost,
    ProgressReported,
    RescaleDone,
)

_OF_A_JOB = (ProgressReported, CheckpointSaved, JobNoted)
_QUIET = (*_OF_A_JOB, NodeEndsForeseen)


def is_moot(event: AnyEvent) -> bool:
    """Whether all is as it was decided: nothing is owed for it.

    Should a job that is done with growing be wanted otherwise by now, its first report shows it.
    """
    match event:
        case NodesLost(were_released=True) | RescaleDone(frees_nodes=False):
            return True
    return isinstance(event, JobsForgotten)


def is_measurement(event: AnyEvent) -> bool:
    """Whether it tells of a job's course only: no node and no job comes, goes or is changed."""
    return isinstance(event, _OF_A_JOB)


def is_quiet(event: AnyEvent) -> bool:
    """Whether it changes at most what is known, and seldom what is to be done."""
    return isinstance(event, _QUIET) or is_moot(event)


@dataclass(slots=True)
class Pace:
    """Knows the last decision, and whether one is owed for what has happened since."""

    #: Quiet events alone lead to a decision at most this often.
    quiet_every_s: float
    decided_at_s: float = 0.0
    is_owed: bool = False

    def is_due(self, events: Sequence[AnyEvent], now_s: float) -> bool:
        """Take note of what happened, and say whether to decide now; else see `due_at_s`."""
        self.is_owed = self.is_owed or not all(map(is_moot, events))
        if not self.is_owed:
            return False
        return now_s >= self.due_at_s or not all(map(is_quiet, events))

    @property
    def due_at_s(self) -> float:
        """When a decision that is owed is due at the latest."""
        return self.decided_at_s + self.quiet_every_s

    def decided(self, now_s: float) -> None:
        self.decided_at_s = now_s
        self.is_owed = False
