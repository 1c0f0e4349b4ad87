"""What is maximised: the worth of every node count to a job over the horizon."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from malletrain.core.model import Job, RescaleCost
from malletrain.core.scalability import Curve, StatedCurve
from malletrain.core.settings import ObjectiveKind

#: Samples up to the pace that meets the deadline count this many times as much as those above.
DEADLINE_FACTOR = 10.0

#: Worths of jobs that are alike, or the same as at the last decision, are one array.
_REMEMBERED = 16384

_Floats = NDArray[np.float64]


class Aim(Struct, frozen=True, cache_hash=True):
    """What makes a rate useful: the objective, and what it takes from the job."""

    kind: ObjectiveKind
    min_nodes: int
    weight: float
    #: Under the deadline objective only.
    pace_samples_per_s: float = 0.0


@lru_cache(maxsize=_REMEMBERED)
def values(  # noqa: PLR0917 - the symbols of one formula, in its order
    aim: Aim,
    curve: Curve | StatedCurve,
    cost: RescaleCost,
    horizon_s: float,
    current_nodes: int,
    max_nodes: int,
) -> _Floats:
    """Return the worth of 0 ... `max_nodes` nodes over the horizon, shape `(max_nodes + 1,)`.

    With c the current nodes and u(n) the utility a second (`utilities`):

        f(n) = T * u(n) - [n > c] * up_s * u(c) - [n < c] * down_s * u(c)

    (BFTrainer, section 3.3, where u is the rate). A rescale loses what the job would have done
    meanwhile at its present scale, so a start from nothing loses nothing.
    """
    utility = utilities(aim, curve, max(max_nodes, current_nodes))
    present = float(utility[current_nodes])
    worth = horizon_s * utility[: max_nodes + 1]
    worth[:current_nodes] -= cost.scale_down_s * present
    worth[current_nodes + 1 :] -= cost.scale_up_s * present
    worth.flags.writeable = False
    return worth


@lru_cache(maxsize=_REMEMBERED)
def utilities(aim: Aim, curve: Curve | StatedCurve, max_nodes: int) -> _Floats:
    """Return the utility a second of 0 ... `max_nodes` nodes, shape `(max_nodes + 1,)`.

    With w the job's weight, m its minimum of nodes and r the predicted samples/s:

    - SAMPLES: w * r(n).
    - SPEEDUP: w * m * r(n) / r(m). At its minimum every job is worth 1 a node, and no job is ever
      worth more than that: so none is starved for being slow, or for needing several nodes.
    - DEADLINE: w * (r(n) + (`DEADLINE_FACTOR` - 1) * min(r(n), pace)). Holding the pace from the
      start beats a rush for nodes at the end.
    - FAIR: w * m * log2(1 + r(n) / r(m)): the logarithm of proportional fairness, moved so that no
      nodes are worth 0 rather than minus infinity; also 1 a node at the minimum.
    """
    utility = curve.rates(max_nodes)
    if aim.kind is ObjectiveKind.DEADLINE:
        urgent = np.minimum(utility, aim.pace_samples_per_s)
        utility = utility + (DEADLINE_FACTOR - 1) * urgent
    elif aim.kind is not ObjectiveKind.SAMPLES:
        least = aim.min_nodes
        utility = utility / curve.rates(least)[least]
        utility = least * (np.log2(1.0 + utility) if aim.kind is ObjectiveKind.FAIR else utility)
    utility = aim.weight * utility
    utility.flags.writeable = False
    return utility


def pace_samples_per_s(job: Job, now_s: float) -> float:
    """Return the samples/s that finish the job in time.

    0 without a deadline or a known amount of work, infinite once the deadline is past.
    """
    if job.spec.deadline_at_s is None or job.spec.work_samples is None:
        return 0.0
    left_s = job.spec.deadline_at_s - now_s
    left_samples = max(job.spec.work_samples - job.done_samples, 0.0)
    return left_samples / left_s if left_s > 0 else math.inf
