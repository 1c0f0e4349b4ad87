"""What a replay found, as `--json` prints it, reports draw it and sweeps keep it.

Node-seconds, seconds and samples throughout; times count from the trace's start. Every series is
of means over bins of equal width, so that a week and a minute draw alike.
"""

from __future__ import annotations

from msgspec import Struct

# The same name again exports it: reports know of results, not of traces.
from malletrain.traces.stats import TraceSummary as TraceSummary  # noqa: PLC0414


class NodeSeconds(Struct, frozen=True, kw_only=True):
    """Where the node-seconds offered went: the other five add up to it."""

    offered: float
    training: float
    rescaling: float
    profiling: float
    preempted: float
    idle: float


class JobResult(Struct, frozen=True, kw_only=True):
    id: str
    job_class: str
    #: The name of its true curve.
    curve: str
    submitted_at_s: float
    #: None: it never had a node.
    started_at_s: float | None
    #: None: it had not ended by the end of the replay.
    finished_at_s: float | None
    done_samples: float
    work_samples: float | None
    used_node_s: float
    profiling_node_s: float
    scale_ups: int
    scale_downs: int
    #: Times that nodes it trained on were lost.
    losses: int


class CurveComparison(Struct, frozen=True, kw_only=True):
    """What was believed of a model at the end beside how it truly scales."""

    model: str
    nodes: tuple[int, ...]
    true_samples_per_s: tuple[float, ...]
    learned_samples_per_s: tuple[float, ...]
    #: Bounds of the 95% interval.
    low_samples_per_s: tuple[float, ...]
    high_samples_per_s: tuple[float, ...]
    #: Numbers of nodes at which it was measured.
    measured_nodes: tuple[int, ...]


class Series(Struct, frozen=True, kw_only=True):
    """Means over bins; bin i is `[start_s + i * bin_s, start_s + (i + 1) * bin_s)`."""

    start_s: float
    bin_s: float
    #: Nodes there were for us, used or not.
    offered_nodes: tuple[float, ...]
    #: Nodes held, by job class.
    nodes_by_class: dict[str, tuple[float, ...]]
    samples_per_s: tuple[float, ...]
    #: Less what losses undid, when they undid it: a bin may be below 0.
    goodput_samples_per_s: tuple[float, ...]


class PolicyResult(Struct, frozen=True, kw_only=True):
    policy: str
    seed: int
    #: How much of the trace was replayed: less than asked for where it was interrupted.
    length_s: float
    done_samples: float
    #: Samples done of each job divided by what its true curve does on one node, summed: work of
    #: different models made comparable, in node-seconds of one dedicated node each.
    done_one_node_s: float
    #: From the first submission to the last completion; None where a job had not ended.
    makespan_s: float | None
    #: What happened to nodes and jobs, and decisions taken.
    events: int
    decisions: int
    jobs_finished: int
    jobs_unfinished: int
    node_s: NodeSeconds
    #: Node-seconds held after the main scheduler had asked for the node: what users might feel.
    overtime_node_s: float
    #: The longest that a node was held after it was asked for.
    longest_overtime_s: float
    #: Samples done again after losses.
    redone_samples: float
    scale_ups: int
    scale_downs: int
    losses: int
    series: Series
    jobs: tuple[JobResult, ...]
    curves: tuple[CurveComparison, ...]
    #: SHA-256 of the decision journal: equal seeds give equal digests.
    journal_sha256: str


class ReplayResult(Struct, frozen=True, kw_only=True):
    trace: TraceSummary
    workload: str
    jobs: int
    #: Every setting that was not the default, as `name = value`.
    settings: tuple[str, ...]
    #: What was assumed, refused or mended in the inputs, in words with counts.
    assumptions: tuple[str, ...]
    #: One for each policy and seed.
    policies: tuple[PolicyResult, ...]
    #: False: it was interrupted, and holds what there was.
    is_complete: bool
