"""How far ahead the allocator looks: as far as an allocation is likely to stand."""

from __future__ import annotations

import math

from malletrain.core.model import Stability
from malletrain.core.rounding import rounded
from malletrain.core.settings import HorizonSettings

#: An adaptive horizon is one of a scale of values with this step between them.
_STEP = 0.05


def horizon_s(stability: Stability, cost_scale_up_s: float, settings: HorizonSettings) -> float:
    """Return T = m * exp(-up / m), within the bounds of the settings.

    m is the mean time that a job's allocation stands unchanged, up what a scale-up costs. A
    longer horizon overrates growing where allocations are short-lived or rescales dear: plain
    T = m loses several percent of all samples when rescales cost 20 times as much. At the start
    one change after `initial_s` is assumed. What adapts is rounded: experience tells no better.
    """
    if settings.fixed_s is not None:
        return settings.fixed_s
    stands_s = (settings.initial_s + stability.running_s) / (1.0 + stability.changes)
    horizon = stands_s * math.exp(-max(cost_scale_up_s, 0.0) / stands_s)
    return min(max(rounded(horizon, _STEP), settings.min_s), settings.max_s)


def observe(
    stability: Stability, at_s: float, running_jobs: int, changes: int, settings: HorizonSettings
) -> Stability:
    """Add the time up to `at_s`, in which `running_jobs` held nodes, and the changes at its end.

    A change is a job's allocation ending for whatever reason, lost or decided. Both sums fade with
    `memory_s`.
    """
    passed_s = max(at_s - stability.at_s, 0.0)
    kept = math.exp(-passed_s / settings.memory_s)
    return Stability(
        running_s=stability.running_s * kept + running_jobs * settings.memory_s * (1.0 - kept),
        changes=stability.changes * kept + changes,
        at_s=max(at_s, stability.at_s),
    )
