"""When to decide: at once after news, not more than so often after mere measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.core.events import (
    AnyEvent,
    CheckpointSaved,
    JobNoted,
    JobsForgotten,
    NodesLost,
    ProgressReported,
    RescaleDone,
)

_QUIET = (ProgressReported, CheckpointSaved, JobNoted, JobsForgotten)


def is_quiet(event: AnyEvent) -> bool:
    """Whether it changes what is known, but seldom what is to be done."""
    match event:
        case NodesLost(were_released=True) | RescaleDone(frees_nodes=False):
            return True
    return isinstance(event, _QUIET)


@dataclass(slots=True)
class Pace:
    """Knows the last decision, and whether one is owed for what has happened since."""

    #: Quiet events alone lead to a decision at most this often.
    quiet_every_s: float
    decided_at_s: float = 0.0
    is_owed: bool = False

    def is_due(self, events: Sequence[AnyEvent], now_s: float) -> bool:
        """Take note of what happened, and say whether to decide now; else see `due_at_s`."""
        self.is_owed = self.is_owed or bool(events)
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
