"""A small world for the core's tests: carries out actions at once, keeps the whole history."""

from __future__ import annotations

from dataclasses import dataclass, field

from malletrain.allocate.exact import ExactAllocator
from malletrain.core.actions import ReleaseNodes, Rescale, Stop, WakeAt
from malletrain.core.apply import apply, check
from malletrain.core.decide import decide_now, has_news
from malletrain.core.events import (
    AnyEvent,
    Configured,
    DecisionTaken,
    JobSubmitted,
    NodesJoined,
    NodesLeaving,
    NodesLost,
    ProgressReported,
    RescaleDone,
)
from malletrain.core.model import Cluster, Job, JobSpec, Node
from malletrain.core.settings import CoreSettings


def spec(job_id: str, least: int = 1, most: int = 8, **more: object) -> JobSpec:
    return JobSpec(
        id=job_id,
        name=job_id,
        min_nodes=least,
        max_nodes=most,
        model_key=str(more.pop("model_key", job_id)),
        **more,  # type: ignore[arg-type]
    )


def nodes(*ids: str, at_s: float = 0.0) -> tuple[Node, ...]:
    return tuple(Node(id=i, opened_at_s=at_s, group=i[0]) for i in ids)


@dataclass
class World:
    """Feeds events to the core, carries out what it decides, and checks every state."""

    settings: CoreSettings = field(default_factory=CoreSettings)
    cluster: Cluster = field(default_factory=Cluster)
    journal: list[AnyEvent] = field(default_factory=list)
    #: Orders that wait for `finish`, where `is_patient`.
    pending: list[Rescale | Stop] = field(default_factory=list)
    is_patient: bool = False
    #: job id -> samples/s by nodes.
    truth: dict[str, dict[int, float]] = field(default_factory=dict)

    def feed(self, *events: AnyEvent) -> DecisionTaken:
        """Let events happen, decide once, and carry the decision out."""
        for event in events:
            self._apply(event)
        decision = decide_now(self.cluster, ExactAllocator(), events)
        if has_news(self.cluster, decision):
            self._apply(decision)
            self._execute(decision)
        return decision

    def finish(self) -> None:
        """Let every order under way end well."""
        while self.pending:
            action = self.pending.pop(0)
            rescaling = self.cluster.jobs[action.job_id].rescaling
            if rescaling and rescaling.generation == action.generation:
                self.feed(self._done(action))

    def __post_init__(self) -> None:
        if self.settings != self.cluster.settings:
            self._apply(Configured(at_s=0.0, settings=self.settings))

    # -- shorthands for stories

    def join(self, *ids: str, at_s: float | None = None) -> DecisionTaken:
        at_s = self.now_s if at_s is None else at_s
        return self.feed(NodesJoined(at_s=at_s, nodes=nodes(*ids, at_s=at_s)))

    def submit(self, *specs: JobSpec) -> DecisionTaken:
        return self.feed(*(JobSubmitted(at_s=self.now_s, spec=s) for s in specs))

    def leave(self, *ids: str, grace_s: float = 30.0) -> DecisionTaken:
        at_s = self.now_s
        return self.feed(NodesLeaving(at_s=at_s, node_ids=ids, deadline_at_s=at_s + grace_s))

    def lose(self, *ids: str) -> DecisionTaken:
        return self.feed(NodesLost(at_s=self.now_s, node_ids=ids))

    def train(self, seconds: float, steps: int = 50) -> None:
        """Let time pass with every job training at its true rate, then report."""
        at_s = self.now_s + seconds
        reports = []
        for job_id, job in self.cluster.jobs.items():
            count = len(job.node_ids)
            if not count or job.is_broken or job.is_over:
                continue
            rate = self.truth.get(job_id, {}).get(count, 100.0 * count)
            report = ProgressReported(
                at_s=at_s,
                job_id=job_id,
                generation=job.running_generation,
                nodes=count,
                samples=job.done_samples + rate * seconds,
                steps=steps,
                samples_per_s=rate,
                variance=(0.02 * rate) ** 2,
            )
            reports.append(report)
        self.feed(*reports)

    def job(self, job_id: str) -> Job:
        return self.cluster.jobs[job_id]

    @property
    def now_s(self) -> float:
        return self.cluster.now_s

    # -- inside

    def _apply(self, event: AnyEvent) -> None:
        self.cluster = apply(self.cluster, event)
        check(self.cluster)
        self.journal.append(event)

    def _execute(self, decision: DecisionTaken) -> None:
        for action in decision.actions:
            match action:
                case Rescale() | Stop():
                    if self.is_patient:
                        self.pending.append(action)
                    else:
                        self.feed(self._done(action))
                case ReleaseNodes(node_ids):
                    self.feed(NodesLost(at_s=self.now_s, node_ids=node_ids, reason="released"))
                case WakeAt():
                    pass

    def _done(self, action: Rescale | Stop) -> RescaleDone:
        rescaling = self.cluster.jobs[action.job_id].rescaling
        assert rescaling
        return RescaleDone(
            at_s=self.now_s,
            job_id=action.job_id,
            generation=action.generation,
            node_ids=rescaling.node_ids,
            stall_s=0.1,
            samples=self.cluster.jobs[action.job_id].done_samples,
        )
