"""What decisions ask of a cluster again and again, found once."""

from __future__ import annotations

from functools import cached_property, lru_cache

from msgspec import Struct

from malletrain.core.model import Cluster, Job, JobSpec, Node, Phase, RescaleCost, Scalability
from malletrain.core.objective import Aim, pace_samples_per_s
from malletrain.core.rescale_cost import ANY_MODEL, decided_cost
from malletrain.core.scalability import Curve, StatedCurve, known_curve, unknown_curve
from malletrain.core.settings import AdvisorKind, ObjectiveKind, PriorSettings


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
        self._has_deadlines = cluster.settings.objective is ObjectiveKind.DEADLINE
        self.leaving = [n for n in cluster.nodes.values() if n.leaving_at_s is not None]
        self._leaving_ids = {node.id for node in self.leaving}
        self.num_nodes = len(cluster.nodes)
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
        if self._leaving_ids.isdisjoint(node_ids):
            return node_ids
        return tuple(node_id for node_id in node_ids if node_id not in self._leaving_ids)

    def outlook(self, job: Job) -> Outlook:
        """Return what to decide about a job by."""
        key = job.spec.model_key
        pace = pace_samples_per_s(job, self.now_s) if self._has_deadlines else 0.0
        curves, costs = self.cluster.curves, self.cluster.rescale_costs
        return _outlook(job.spec, curves.get(key), costs.get(key), self._common, pace)

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
    def _common(self) -> _Common:
        settings = self.settings
        return _Common(
            objective=settings.objective,
            advisor=settings.advisor.kind,
            prior=settings.prior,
            unknown_curve=unknown_curve(self.cluster),
            cost_of_any=self.cluster.rescale_costs.get(ANY_MODEL),
        )


class _Common(Struct, frozen=True, cache_hash=True):
    """What the outlooks of all jobs depend on."""

    objective: ObjectiveKind
    advisor: AdvisorKind
    prior: PriorSettings
    #: For models never measured.
    unknown_curve: Curve
    #: For models never rescaled.
    cost_of_any: RescaleCost | None


@lru_cache(maxsize=16384)
def _outlook(
    spec: JobSpec,
    scalability: Scalability | None,
    cost: RescaleCost | None,
    common: _Common,
    pace_samples_per_s: float,
) -> Outlook:
    known = known_curve(spec, scalability, common.advisor, common.prior)
    return _shared_outlook(
        Aim(common.objective, spec.min_nodes, spec.weight, pace_samples_per_s),
        known or common.unknown_curve,
        decided_cost(spec, cost or common.cost_of_any, common.advisor, common.prior),
    )


#: Equal outlooks are one object: what is remembered of it is found fast.
_shared_outlook = lru_cache(maxsize=16384)(Outlook)
