"""What decisions ask of a cluster again and again, found once."""

from __future__ import annotations

from functools import cached_property

from malletrain.core.model import Cluster, Job, Node, Phase, RescaleCost
from malletrain.core.objective import Aim, aim_of
from malletrain.core.rescale_cost import cost_for
from malletrain.core.scalability import Curve, StatedCurve, known_curve, unknown_curve


class View:
    """One decision's view of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.now_s = cluster.now_s
        self.settings = cluster.settings
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

    def curve(self, job: Job) -> Curve | StatedCurve:
        """Return the curve to decide by, as `curve_for` does."""
        return known_curve(self.cluster, job) or self._unknown_curve

    def aim(self, job: Job) -> Aim:
        return aim_of(job, self.settings.objective, self.now_s)

    def cost(self, job: Job) -> RescaleCost:
        return cost_for(self.cluster, job)

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
