"""What decisions ask of a cluster again and again, found once."""

from __future__ import annotations

from functools import cached_property, lru_cache

from msgspec import Struct

from malletrain.core.model import Cluster, Job, JobSpec, Node, Phase, RescaleCost, Scalability
from malletrain.core.objective import Aim, pace_samples_per_s
from malletrain.core.rescale_cost import ANY_MODEL, model_cost, rounded_cost
from malletrain.core.scalability import Curve, StatedCurve, fit, unknown_curve
from malletrain.core.settings import AdvisorKind, ObjectiveKind, PriorSettings

_REMEMBERED = 16384


class Outlook(Struct, frozen=True, cache_hash=True):
    """What is expected of a job on more or fewer nodes."""

    aim: Aim
    curve: Curve | StatedCurve
    cost: RescaleCost


class View:
    """One decision's view of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.now_s = cluster.now_s
        self.settings = cluster.settings
        #: By name: an enum's hash is slow.
        self._objective = cluster.settings.objective.value
        self._has_deadlines = cluster.settings.objective is ObjectiveKind.DEADLINE
        self._is_told = cluster.settings.advisor.kind is AdvisorKind.TOLD
        self._prior = cluster.settings.prior
        is_static = cluster.settings.advisor.kind is AdvisorKind.STATIC
        self._curves = {} if is_static else cluster.curves
        self._costs = cluster.rescale_costs
        #: What is assumed of a model that was never rescaled.
        self.cost_of_all = model_cost(cluster, ANY_MODEL)
        self.leaving = [n for n in cluster.nodes.values() if n.leaving_at_s is not None]
        self._leaving_ids = {node.id for node in self.leaving}
        self.num_nodes = len(cluster.nodes)
        #: No job has more: the nodes there are, up to a power of two, so that one more or less
        #: changes no claim.
        self.limit = 1 << self.num_nodes.bit_length()
        #: Nodes that stay.
        self.num_usable = self.num_nodes - len(self.leaving)
        #: Active jobs that may have nodes now, in order of submission: all but those that wait
        #: out a back-off, which keep what they have.
        self.claimants: list[Job] = []
        #: Active jobs that back off, with nodes or without.
        self.backing_off: list[Job] = []
        #: Jobs that hold nodes, or are about to, but are over or suspended.
        self.ending: list[Job] = []
        active, now_s = Phase.ACTIVE, cluster.now_s
        for job in cluster.jobs.values():
            if job.phase is active:
                if job.retry_at_s > now_s:
                    self.backing_off.append(job)
                    if not job.node_ids:
                        continue
                self.claimants.append(job)
            elif job.node_ids or job.rescaling:
                self.ending.append(job)

    def may_run(self, job: Job) -> bool:
        return job.phase is Phase.ACTIVE and job.retry_at_s <= self.now_s

    def staying(self, node_ids: tuple[str, ...]) -> tuple[str, ...]:
        if not self._leaving_ids or self._leaving_ids.isdisjoint(node_ids):
            return node_ids
        return tuple(node_id for node_id in node_ids if node_id not in self._leaving_ids)

    def outlook(self, job: Job) -> Outlook:
        """Return what to decide about a job by."""
        spec = job.spec
        pace = pace_samples_per_s(job, self.now_s) if self._has_deadlines else 0.0
        if self._is_told and spec.stated is not None:
            return _stated_outlook(spec, self._objective, self._unit, pace)
        cost = self._costs.get(spec.model_key)
        cost = self.cost_of_all if cost is None else rounded_cost(cost)
        measured = self._curves.get(spec.model_key)
        if measured is None or not measured.observations:
            return _outlook(spec, self._unknown_curve, cost, self._objective, self._unit, pace)
        return _measured_outlook(
            spec, measured, self._prior, cost, self._objective, self._unit, pace
        )

    @cached_property
    def _unit(self) -> float:
        """Samples/s of one node of a typical model: makes them comparable with speed-ups."""
        is_mixed = self.settings.objective is ObjectiveKind.BACKLOG
        return self._unknown_curve.reference_rate if is_mixed else 1.0

    @cached_property
    def training(self) -> list[Job]:
        """Jobs that train, with no order under way."""
        return [
            job
            for job in self.claimants
            if job.node_ids and job.rescaling is None and not job.is_broken
        ]

    @cached_property
    def owned(self) -> set[str]:
        """Nodes that jobs hold."""
        return {n for job in self.cluster.jobs.values() for n in job.held_node_ids}

    @cached_property
    def free(self) -> list[Node]:
        """Nodes that stay and that no job holds."""
        if len(self.owned) == self.num_nodes:
            return []
        taken = self.owned | self._leaving_ids
        return [node for node in self.cluster.nodes.values() if node.id not in taken]

    @cached_property
    def _unknown_curve(self) -> Curve:
        return unknown_curve(self.cluster)


@lru_cache(maxsize=_REMEMBERED)
def _outlook(  # noqa: PLR0917
    spec: JobSpec,
    curve: Curve | StatedCurve,
    cost: RescaleCost,
    objective: str,
    unit: float,
    pace: float,
) -> Outlook:
    kind, weight = ObjectiveKind(objective), spec.weight
    if kind is ObjectiveKind.BACKLOG:
        kind = ObjectiveKind.SAMPLES if spec.work_samples is None else ObjectiveKind.SPEEDUP
        weight = weight / unit if kind is ObjectiveKind.SAMPLES else weight
    return _shared_outlook(Aim(kind, spec.min_nodes, weight, pace), curve, cost)


@lru_cache(maxsize=_REMEMBERED)
def _measured_outlook(  # noqa: PLR0917
    spec: JobSpec,
    measured: Scalability,
    prior: PriorSettings,
    cost: RescaleCost,
    objective: str,
    unit: float,
    pace: float,
) -> Outlook:
    return _outlook(spec, fit(measured, prior), cost, objective, unit, pace)


@lru_cache(maxsize=_REMEMBERED)
def _stated_outlook(spec: JobSpec, objective: str, unit: float, pace: float) -> Outlook:
    stated = spec.stated
    assert stated is not None
    cost = RescaleCost(stated.scale_up_s, stated.scale_down_s)
    return _outlook(spec, StatedCurve(stated), cost, objective, unit, pace)


#: Equal outlooks are one object: what is remembered of it is found fast.
_shared_outlook = lru_cache(maxsize=_REMEMBERED)(Outlook)
