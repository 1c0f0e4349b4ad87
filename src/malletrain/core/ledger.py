"""Node-seconds, by where they went: the values. `metrics.py` has what is done with them."""

from __future__ import annotations

from msgspec import Struct, field


class NodeSeconds(Struct, frozen=True):
    """Where node-seconds went; the five add up to those offered."""

    training: float = 0.0
    #: Joining, standing still in a rescale or after a loss, leaving.
    rescaling: float = 0.0
    #: Training at a scale that the advisor chose in order to learn.
    profiling: float = 0.0
    #: Training that a loss undid.
    preempted: float = 0.0
    #: Held by no job.
    idle: float = 0.0

    @property
    def offered(self) -> float:
        return self.training + self.rescaling + self.profiling + self.preempted + self.idle

    def __add__(self, other: NodeSeconds) -> NodeSeconds:
        return NodeSeconds(
            training=self.training + other.training,
            rescaling=self.rescaling + other.rescaling,
            profiling=self.profiling + other.profiling,
            preempted=self.preempted + other.preempted,
            idle=self.idle + other.idle,
        )

    @property
    def used(self) -> float:
        return self.offered - self.idle


class JobLedger(Struct, frozen=True):
    """What one job got and what it cost it, up to `charged_at_s`."""

    node_s: NodeSeconds = NodeSeconds()
    charged_at_s: float = 0.0
    scale_ups: int = 0
    scale_downs: int = 0
    #: Times that it lost nodes it trained on without having left them first.
    losses: int = 0
    stall_s: float = 0.0
    #: Samples trained and rolled back, since no survivor and no checkpoint held them.
    redone_samples: float = 0.0
    #: Node-seconds of training since the newest durable checkpoint.
    at_risk_node_s: float = 0.0


class Ledger(Struct, frozen=True):
    """Charged lazily: a job's entry when the job changes, the offer when the nodes change."""

    offered_node_s: float = 0.0
    charged_at_s: float = 0.0
    jobs: dict[str, JobLedger] = field(default_factory=dict)
    #: What jobs got that the state holds no more.
    forgotten: NodeSeconds = NodeSeconds()
