"""Node-seconds, by where they went. They add up to what was offered."""

from __future__ import annotations

from msgspec import Struct, field


class NodeSeconds(Struct, frozen=True):
    """Where node-seconds went; the five add up to those offered."""

    training: float = 0.0
    rescaling: float = 0.0
    profiling: float = 0.0
    preempted: float = 0.0
    idle: float = 0.0

    @property
    def offered(self) -> float:
        return self.training + self.rescaling + self.profiling + self.preempted + self.idle


class JobLedger(Struct, frozen=True):
    """What one job got and what it cost it."""

    node_s: NodeSeconds = NodeSeconds()
    #: Node-seconds of training by node count, for the efficiency against static nodes.
    scale_ups: int = 0
    scale_downs: int = 0
    losses: int = 0
    stall_s: float = 0.0
    #: Samples trained and rolled back since no checkpoint held them.
    redone_samples: float = 0.0
    #: Node-seconds of training since the last point that a loss cannot undo.
    at_risk_node_s: float = 0.0


class Ledger(Struct, frozen=True):
    """The totals since the first event, and the same by job."""

    node_s: NodeSeconds = NodeSeconds()
    jobs: dict[str, JobLedger] = field(default_factory=dict)
    started_at_s: float | None = None
