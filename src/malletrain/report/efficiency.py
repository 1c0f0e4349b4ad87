"""How well the node-seconds were used, against dedicated nodes that stay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkDone:
    """A job's part in the comparison."""

    min_nodes: int
    max_nodes: int
    #: Samples/s by nodes, shape `(max_nodes + 1,)`.
    rates: Sequence[float]
    done_samples: float
    #: When it wanted nodes: from its submission to its end.
    wanted_from_s: float
    wanted_to_s: float


def against_static_nodes(jobs: Sequence[WorkDone], nodes: float) -> float | None:
    """Return work done / work that so many dedicated nodes would have done, or None without any.

    The nodes are those that would have offered the same node-seconds over the same time. They are
    divided among the jobs that want nodes at that moment in the best way the curves know, and
    rescales are free. Work of different models is made comparable as seconds of one node. This is
    BFTrainer's efficiency (arXiv 2106.12091, section 4.3: outcome over that on equivalent nodes)
    for jobs that come and end.
    """
    done = sum(job.done_samples / job.rates[1] for job in jobs)
    moments = sorted({at_s for job in jobs for at_s in (job.wanted_from_s, job.wanted_to_s)})
    static = 0.0
    for start_s, end_s in itertools.pairwise(moments):
        present = [j for j in jobs if j.wanted_from_s <= start_s and j.wanted_to_s >= end_s]
        static += (end_s - start_s) * _best_speedup(present, nodes)
    return done / static if static > 0 else None


def _best_speedup(jobs: Sequence[WorkDone], nodes: float) -> float:
    """Return the greatest sum of speed-ups, linear between whole numbers of nodes."""
    below = math.floor(nodes)
    best = [0.0] * (below + 2)
    for job in jobs:
        best = _with_job(best, _speedups(job))
    return best[below] + (nodes - below) * (best[below + 1] - best[below])


def _with_job(best: Sequence[float], gains: Mapping[int, float]) -> list[float]:
    return [
        max(best[nodes - count] + gain for count, gain in gains.items() if count <= nodes)
        for nodes in range(len(best))
    ]


def _speedups(job: WorkDone) -> dict[int, float]:
    counts: Iterable[int] = range(job.min_nodes, job.max_nodes + 1)
    return {0: 0.0} | {count: job.rates[count] / job.rates[1] for count in counts}
