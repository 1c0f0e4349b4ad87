"""How many nodes all jobs together could use: what the scavenger asks for."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from math import inf

import numpy as np

from malletrain.core.model import Cluster, Job, Phase
from malletrain.core.scalability import Curve, StatedCurve
from malletrain.core.view import View

#: Nodes that bring a job less than this share of its rate, all of them together, are of no use.
_LEAST_GAIN = 0.01


def demand(cluster: Cluster) -> int:
    """Return the nodes that active jobs could use, within their owners' quotas.

    A job that backs off can use what it holds, and one whose minimum is above its owner's quota
    nothing.
    """
    view = View(cluster)
    quotas = view.settings.quotas
    by_owner: defaultdict[str, int] = defaultdict(int)
    for job in cluster.jobs.values():
        owner = job.spec.owner
        if job.phase is Phase.ACTIVE and job.spec.min_nodes <= quotas.get(owner, inf):
            by_owner[owner] += _usable(view, job)
    return sum(min(nodes, quotas.get(owner, nodes)) for owner, nodes in by_owner.items())


def _usable(view: View, job: Job) -> int:
    if not view.may_run(job):
        return len(view.staying(job.held_node_ids))
    return _useful_nodes(view.outlook(job).curve, job.spec.min_nodes, job.spec.max_nodes)


@lru_cache(maxsize=16384)
def _useful_nodes(curve: Curve | StatedCurve, min_nodes: int, max_nodes: int) -> int:
    """Return the fewest nodes beyond which nothing is gained; all where nothing was measured."""
    if isinstance(curve, Curve) and not curve.evidence:
        return max_nodes
    rates = curve.rates(max_nodes)[min_nodes:]
    return min_nodes + int(np.argmax(rates * (1 + _LEAST_GAIN) > rates.max()))
