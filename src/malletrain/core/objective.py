"""What is maximised: the worth of every node count to a job over the horizon."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from malletrain.core.model import Job, RescaleCost
from malletrain.core.scalability import Curve, StatedCurve
from malletrain.core.settings import ObjectiveKind

#: Samples up to the pace that meets the deadline count this many times as much as those above.
DEADLINE_FACTOR = 10.0

#: Worths of jobs that are alike, or the same as at the last decision, are one array.
_REMEMBERED = 16384

_Floats = NDArray[np.float64]


def values(  # noqa: PLR0917 - the symbols of one formula, in its order
    job: Job,
    curve: Curve | StatedCurve,
    cost: RescaleCost,
    horizon_s: float,
    kind: ObjectiveKind,
    now_s: float,
    current_nodes: int,
    max_nodes: int,
) -> _Floats:
    """Return the worth of 0 ... `max_nodes` nodes over the horizon, shape `(max_nodes + 1,)`.

    With c the current nodes and u(n) the utility a second (`utilities`):

        f(n) = T * u(n) - [n > c] * up_s * u(c) - [n < c] * down_s * u(c)

    (BFTrainer, section 3.3, where u is the rate). A rescale loses what the job would have done
    meanwhile at its present scale, so a start from nothing loses nothing.
    """
    spec = job.spec
    pace = _pace_samples_per_s(job, kind, now_s)
    return _values(
        curve,
        cost,
        horizon_s,
        kind,
        spec.min_nodes,
        spec.weight,
        pace,
        current_nodes,
        max_nodes,
    )


@lru_cache(maxsize=_REMEMBERED)
def _values(  # noqa: PLR0917
    curve: Curve | StatedCurve,
    cost: RescaleCost,
    horizon_s: float,
    kind: ObjectiveKind,
    min_nodes: int,
    weight: float,
    pace: float,
    current_nodes: int,
    max_nodes: int,
) -> _Floats:
    size = max(max_nodes, current_nodes)
    utility = _utilities(curve, kind, min_nodes, weight, pace, size)
    present = float(utility[current_nodes])
    worth = horizon_s * utility[: max_nodes + 1]
    worth[:current_nodes] -= cost.scale_down_s * present
    worth[current_nodes + 1 :] -= cost.scale_up_s * present
    worth.flags.writeable = False
    return worth


def utilities(
    job: Job, curve: Curve | StatedCurve, kind: ObjectiveKind, now_s: float, max_nodes: int
) -> _Floats:
    """Return the utility a second of 0 ... `max_nodes` nodes, shape `(max_nodes + 1,)`.

    With w the job's weight, m its minimum of nodes and r the predicted samples/s:

    - SAMPLES: w * r(n).
    - SPEEDUP: w * m * r(n) / r(m). At its minimum every job is worth 1 a node, and no job is ever
      worth more than that: so none is starved for being slow, or for needing several nodes.
    - DEADLINE: w * (r(n) + (`DEADLINE_FACTOR` - 1) * min(r(n), pace)), pace the samples/s that
      finish the job in time: 0 without a deadline or a known amount of work, infinite once the
      deadline is past. Holding the pace from the start beats a rush for nodes at the end.
    - FAIR: w * m * log2(1 + r(n) / r(m)): the logarithm of proportional fairness, moved so that no
      nodes are worth 0 rather than minus infinity; also 1 a node at the minimum.
    """
    pace = _pace_samples_per_s(job, kind, now_s)
    return _utilities(curve, kind, job.spec.min_nodes, job.spec.weight, pace, max_nodes)


@lru_cache(maxsize=_REMEMBERED)
def _utilities(  # noqa: PLR0917
    curve: Curve | StatedCurve,
    kind: ObjectiveKind,
    min_nodes: int,
    weight: float,
    pace: float,
    max_nodes: int,
) -> _Floats:
    utility = curve.rates(max_nodes)
    if kind is ObjectiveKind.DEADLINE:
        utility = utility + (DEADLINE_FACTOR - 1) * np.minimum(utility, pace)
    elif kind is not ObjectiveKind.SAMPLES:
        utility = utility / curve.rates(min_nodes)[min_nodes]
        utility = np.log2(1.0 + utility) if kind is ObjectiveKind.FAIR else utility
        utility = min_nodes * utility
    utility = weight * utility
    utility.flags.writeable = False
    return utility


def _pace_samples_per_s(job: Job, kind: ObjectiveKind, now_s: float) -> float:
    if kind is not ObjectiveKind.DEADLINE:
        return 0.0
    if job.spec.deadline_at_s is None or job.spec.work_samples is None:
        return 0.0
    left_s = job.spec.deadline_at_s - now_s
    left_samples = max(job.spec.work_samples - job.done_samples, 0.0)
    return left_samples / left_s if left_s > 0 else math.inf
