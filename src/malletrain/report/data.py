"""What a report tells, gathered from the journal through the core; nothing is drawn here."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.core import metrics
from malletrain.core.apply import apply
from malletrain.core.events import (
    AnyEvent,
    DecisionTaken,
    NodesJoined,
    NodesLeaving,
    NodesLost,
    ProgressReported,
)
from malletrain.core.ledger import JobLedger, NodeSeconds
from malletrain.core.model import Cluster, Job, Observation, Scalability
from malletrain.core.scalability import fit
from malletrain.report.efficiency import WorkDone, against_static_nodes

#: (samples, loss), in the order in which they were reported.
LossPoints = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A job beside its undisturbed twin: the same script, seed and global batch, never rescaled."""

    final_loss: float
    twin_final_loss: float
    #: The greatest difference that is honest to expect.
    tolerance: float
    #: At the same points as the twin's; without them, those of the journal are shown.
    losses: LossPoints = ()
    twin_losses: LossPoints = ()
    #: Every sample of every epoch was consumed exactly once; None if that was not recorded.
    is_exactly_once: bool | None = None
    #: Samples/s by nodes as the emulated device states them, from no node on; empty without one.
    stated_rates: tuple[float, ...] = ()

    @property
    def difference(self) -> float:
        return abs(self.final_loss - self.twin_final_loss)


@dataclass(frozen=True, slots=True)
class Usage:
    """Node counts that hold from a moment on."""

    at_s: float
    offered: int
    #: Nodes that train, by job id.
    training: Mapping[str, int]


class MarkKind(enum.Enum):
    JOINED = "joined"
    LEAVING = "told to leave"
    KILLED = "lost without notice"


@dataclass(frozen=True, slots=True)
class Mark:
    at_s: float
    kind: MarkKind
    nodes: int


@dataclass(frozen=True, slots=True)
class DecisionLine:
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class LearnedCurve:
    """Samples/s by nodes, from no node on, with the bounds of the 95% interval."""

    rates: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    measured: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class JobReport:
    job: Job
    ledger: JobLedger
    curve: LearnedCurve
    losses: LossPoints
    comparison: Comparison | None


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run from its first event to the end of its last job. Times are seconds since its start."""

    elapsed_s: float
    jobs: tuple[JobReport, ...]
    usage: tuple[Usage, ...]
    marks: tuple[Mark, ...]
    decisions: tuple[DecisionLine, ...]
    node_s: NodeSeconds
    #: Nodes that joined plus nodes that left or died, each counted.
    node_events: int
    #: See `efficiency.against_static_nodes`.
    efficiency: float | None

    @property
    def equivalent_nodes(self) -> float:
        """Dedicated nodes that would have offered the same node-seconds."""
        return self.node_s.offered / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def goodput(self) -> float:
        """Samples/s that were kept, over all jobs."""
        done = sum(report.job.done_samples for report in self.jobs)
        return done / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def idle_spans(self) -> tuple[tuple[float, float], ...]:
        """When, after the first node, there was no node at all."""
        moments = [*(usage.at_s for usage in self.usage), self.elapsed_s]
        spans = zip(self.usage, itertools.pairwise(moments), strict=True)
        return tuple(span for usage, span in spans if not usage.offered and 0 < span[0] < span[1])


def gather(
    events: Iterable[AnyEvent],
    comparisons: Mapping[str, Comparison] | None = None,
    start: Cluster | None = None,
) -> RunReport:
    """Replay the journal and keep what the report tells; `comparisons` are by job name.

    `start` is the state before the first event, where the journal's oldest events were forgotten:
    sums are those of the whole run all the same, but what is counted or drawn begins there.
    """
    before = start or Cluster()
    recorder = _Recorder(before, started_at_s=_earliest_s(start) if start else None)
    for event in _until_last_job_ended(before, tuple(events)):
        recorder.take(event)
    return recorder.report(comparisons or {})


def _earliest_s(cluster: Cluster) -> float:
    """The first moment that a state tells of."""
    submitted = (job.submitted_at_s for job in cluster.jobs.values())
    opened = (node.opened_at_s for node in cluster.nodes.values())
    return min(itertools.chain(submitted, opened), default=cluster.now_s)


def _until_last_job_ended(start: Cluster, events: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
    """Leave out what came after all jobs were over: nodes that nobody could use."""
    cluster, over, last = start, 0, len(events)
    for index, event in enumerate(events):
        cluster = apply(cluster, event)
        now_over = sum(job.is_over for job in cluster.jobs.values())
        if now_over != over:
            over, last = now_over, index + 1
    return events[:last] if cluster.jobs and over == len(cluster.jobs) else events


@dataclass(slots=True)
class _Recorder:
    cluster: Cluster
    started_at_s: float | None
    usage: list[Usage] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    decisions: list[DecisionLine] = field(default_factory=list)
    losses: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    node_events: int = 0

    def take(self, event: AnyEvent) -> None:
        if self.started_at_s is None:
            self.started_at_s = event.at_s
        before, self.cluster = self.cluster, apply(self.cluster, event)
        self._mark(before, event)
        self._note_usage()
        match event:
            case ProgressReported(loss=float() as loss):
                self._note_loss(event, loss)
            case DecisionTaken() if event.actions or event.pins != _pins(before):
                self.decisions.append(DecisionLine(self._now_s, event.reason))
            case _:
                pass

    @property
    def _now_s(self) -> float:
        return self.cluster.now_s - (self.started_at_s or 0.0)

    def _mark(self, before: Cluster, event: AnyEvent) -> None:
        joined = self.cluster.nodes.keys() - before.nodes.keys()
        lost = before.nodes.keys() - self.cluster.nodes.keys()
        self.node_events += len(joined) + len(lost)
        match event:
            case NodesJoined():
                self._add_mark(MarkKind.JOINED, len(joined))
            case NodesLeaving():
                told = [n for n in event.node_ids if _is_staying(before, n)]
                self._add_mark(MarkKind.LEAVING, len(told))
            case NodesLost():
                killed = [n for n in lost if _is_staying(before, n)]
                self._add_mark(MarkKind.KILLED, len(killed))
            case _:
                pass

    def _add_mark(self, kind: MarkKind, nodes: int) -> None:
        if nodes:
            self.marks.append(Mark(self._now_s, kind, nodes))

    def _note_usage(self) -> None:
        jobs = self.cluster.jobs
        training = {job_id: len(job.node_ids) for job_id, job in jobs.items() if job.node_ids}
        usage = Usage(self._now_s, len(self.cluster.nodes), training)
        last = self.usage[-1] if self.usage else None
        if last is None or (last.offered, last.training) != (usage.offered, usage.training):
            self.usage.append(usage)

    def _note_loss(self, event: ProgressReported, loss: float) -> None:
        job = self.cluster.jobs.get(event.job_id)
        if job and event.generation == job.running_generation:
            self.losses.setdefault(event.job_id, []).append((event.samples, loss))

    def report(self, comparisons: Mapping[str, Comparison]) -> RunReport:
        jobs = tuple(self._job_report(job, comparisons) for job in self.cluster.jobs.values())
        node_s = metrics.totals(self.cluster)
        nodes = node_s.offered / self._now_s if self._now_s > 0 else 0.0
        return RunReport(
            elapsed_s=self._now_s,
            jobs=jobs,
            usage=tuple(self.usage),
            marks=tuple(self.marks),
            decisions=tuple(self.decisions),
            node_s=node_s,
            node_events=self.node_events,
            efficiency=against_static_nodes([self._work(report) for report in jobs], nodes),
        )

    def _job_report(self, job: Job, comparisons: Mapping[str, Comparison]) -> JobReport:
        known = self.cluster.curves.get(job.spec.model_key, Scalability())
        curve = fit(known, self.cluster.settings.prior)
        low, high = curve.interval(job.spec.max_nodes)
        comparison = comparisons.get(job.spec.name)
        printed = comparison.losses if comparison else ()
        return JobReport(
            job=job,
            ledger=metrics.job_ledger(self.cluster, job.spec.id),
            curve=LearnedCurve(
                rates=tuple(curve.rates(job.spec.max_nodes).tolist()),
                low=tuple(low.tolist()),
                high=tuple(high.tolist()),
                measured=known.observations,
            ),
            losses=printed or tuple(self.losses.get(job.spec.id, ())),
            comparison=comparison,
        )

    def _work(self, report: JobReport) -> WorkDone:
        job = report.job
        ended_at_s = self.cluster.now_s if job.ended_at_s is None else job.ended_at_s
        return WorkDone(
            min_nodes=job.spec.min_nodes,
            max_nodes=job.spec.max_nodes,
            rates=report.curve.rates,
            done_samples=job.done_samples if report.curve.measured else 0.0,
            wanted_from_s=job.submitted_at_s,
            wanted_to_s=ended_at_s,
        )


def _is_staying(cluster: Cluster, node_id: str) -> bool:
    node = cluster.nodes.get(node_id)
    return node is not None and node.leaving_at_s is None


def _pins(cluster: Cluster) -> dict[str, object]:
    return {job_id: job.pin for job_id, job in cluster.jobs.items() if job.pin}
