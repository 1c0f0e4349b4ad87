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


class Terms(Struct, frozen=True, cache_hash=True):
    """What all jobs' outlooks have in common."""

    #: By name: an enum's hash is slow.
    objective: str
    #: Samples/s of one node of a typical model where samples and speed-ups are compared.
    samples_per_s_unit: float
    is_told: bool
    prior: PriorSettings
    #: What is assumed of a model that was never rescaled.
    cost_of_all: RescaleCost


class View:
    """One decision's view of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.now_s = now_s = cluster.now_s
        self.settings = cluster.settings
        self.has_deadlines = cluster.settings.objective is ObjectiveKind.DEADLINE
        #: What was measured by model key, as far as it counts.
        self.curves: dict[str, Scalability] = {} if self._is_deaf() else cluster.curves
        self.costs = cluster.rescale_costs
        self.leaving = [n for n in cluster.nodes.values() if n.leaving_at_s is not None]
        self._leaving_ids = {node.id for node in self.leaving}
        self.num_nodes = num_nodes = len(cluster.nodes)
        #: No job has more: the nodes there are, up to a power of two, so that one more or less
        #: changes no claim.
        self.limit = 1 << self.num_nodes.bit_length()
        #: Nodes that stay.
        self.num_usable = self.num_nodes - len(self.leaving)
        jobs, active = cluster.jobs.values(), Phase.ACTIVE
        #: Jobs that hold nodes, or are about to.
        self.holding = [job for job in jobs if job.node_ids or job.rescaling is not None]
        #: Those of them that are over or suspended.
        self.ending = [job for job in self.holding if job.phase is not active]
        #: Active jobs that back off, with nodes or without.
        self.backing_off = [job for job in jobs if job.retry_at_s > now_s and job.phase is active]
        #: Active jobs that may have nodes now, in order of submission: all but those that wait
        #: out a back-off, which keep what they have, and those that need more nodes than there are.
        self.claimants = [
            job
            for job in jobs
            if job.phase is active
            and (job.node_ids or (job.retry_at_s <= now_s and job.spec.min_nodes <= num_nodes))
        ]

    def _is_deaf(self) -> bool:
        """Whether no measurement changes what is expected of any job."""
        kind = self.settings.advisor.kind
        if kind is AdvisorKind.TOLD:
            return all(job.spec.stated is not None for job in self.cluster.jobs.values())
        return kind is AdvisorKind.STATIC

    def may_run(self, job: Job) -> bool:
        return job.phase is Phase.ACTIVE and job.retry_at_s <= self.now_s

    def staying(self, node_ids: tuple[str, ...]) -> tuple[str, ...]:
        if not self._leaving_ids or self._leaving_ids.isdisjoint(node_ids):
            return node_ids
        return tuple(node_id for node_id in node_ids if node_id not in self._leaving_ids)

    def outlook(self, job: Job) -> Outlook:
        """Return what to decide about a job by."""
        spec = job.spec
        known = self.curves.get(spec.model_key, self.unknown_curve)
        cost = self.costs.get(spec.model_key)
        pace = pace_samples_per_s(job, self.now_s) if self.has_deadlines else 0.0
        return outlook_of(spec, known, cost, self.terms, pace)

    @cached_property
    def terms(self) -> Terms:
        settings = self.settings
        is_mixed = settings.objective is ObjectiveKind.BACKLOG
        return _shared_terms(
            settings.objective.value,
            unknown_curve(self.cluster).reference_rate if is_mixed else 1.0,
            settings.advisor.kind is AdvisorKind.TOLD,
            settings.prior,
            self.cost_of_all,
        )

    @cached_property
    def unknown_curve(self) -> Curve:
        """What is assumed of a model that was never measured."""
        return (
            unknown_curve(self.cluster) if self.curves else fit(Scalability(), self.settings.prior)
        )

    @cached_property
    def cost_of_all(self) -> RescaleCost:
        """What is assumed of a model that was never rescaled."""
        return model_cost(self.cluster, ANY_MODEL)

    @cached_property
    def training(self) -> list[Job]:
        """Jobs that train, with no order under way."""
        return [
            job
            for job in self.holding
            if job.rescaling is None and not job.is_broken and job.phase is Phase.ACTIVE
        ]

    @cached_property
    def asked_back(self) -> list[Job]:
        """Jobs that hold nodes that are leaving."""
        leaving = self._leaving_ids
        return [job for job in self.holding if not leaving.isdisjoint(job.held_node_ids)]

    @cached_property
    def owned(self) -> set[str]:
        """Nodes that jobs hold."""
        return {n for job in self.holding for n in job.held_node_ids}

    @cached_property
    def free(self) -> list[Node]:
        """Nodes that stay and that no job holds."""
        if len(self.owned) == self.num_nodes:
            return []
        taken = self.owned | self._leaving_ids
        return [node for node in self.cluster.nodes.values() if node.id not in taken]


@lru_cache(maxsize=_REMEMBERED)
def outlook_of(
    spec: JobSpec,
    known: Scalability | Curve,
    cost: RescaleCost | None,
    terms: Terms,
    pace_samples_per_s: float,
) -> Outlook:
    """Return what is expected of a job, given what its model has shown or is taken to do."""
    stated = spec.stated
    curve: Curve | StatedCurve
    if terms.is_told and stated is not None:
        curve = StatedCurve(stated)
        cost = RescaleCost(stated.scale_up_s, stated.scale_down_s)
    else:
        curve = known if isinstance(known, Curve) else fit(known, terms.prior)
        cost = terms.cost_of_all if cost is None else rounded_cost(cost)
    kind, weight = ObjectiveKind(terms.objective), spec.weight
    if kind is ObjectiveKind.BACKLOG:
        kind = ObjectiveKind.SAMPLES if spec.work_samples is None else ObjectiveKind.SPEEDUP
        if kind is ObjectiveKind.SAMPLES:
            weight /= terms.samples_per_s_unit
    return _shared_outlook(Aim(kind, spec.min_nodes, weight, pace_samples_per_s), curve, cost)


#: Equal ones are one object: what is remembered of it is found fast.
_shared_outlook = lru_cache(maxsize=_REMEMBERED)(Outlook)
_shared_terms = lru_cache(maxsize=64)(Terms)
