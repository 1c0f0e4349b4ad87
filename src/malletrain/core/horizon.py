"""How far ahead the allocator looks: as far as an allocation is likely to stand."""

from __future__ import annotations

import math
from collections.abc import Iterable

from malletrain.core.model import Node, Stability
from malletrain.core.rounding import rounded
from malletrain.core.settings import HorizonSettings

#: An adaptive horizon is one of a scale of values with this step between them.
_STEP = 0.05


def horizon_s(
    stability: Stability,
    cost_scale_up_s: float,
    settings: HorizonSettings,
    nodes_stay_s: float = math.inf,
) -> float:
    """Return T = m * exp(-up / m), within the bounds of the settings.

    m is the mean time that a job's allocation stands unchanged, up what a scale-up costs. A
    longer horizon overrates growing where allocations are short-lived or rescales dear: plain
    T = m loses several percent of all samples when rescales cost 20 times as much. At the start
    one change after `initial_s` is assumed. It is no longer than `nodes_stay_s` (see `stay_s`).
    What adapts is rounded: experience tells no better.
    """
    if settings.fixed_s is not None:
        return settings.fixed_s
    stands_s = (settings.initial_s + stability.running_s) / (1.0 + stability.changes)
    horizon = stands_s * math.exp(-max(cost_scale_up_s, 0.0) / stands_s)
    horizon = min(horizon, nodes_stay_s)
    return min(max(rounded(horizon, _STEP), settings.min_s), settings.max_s)


def stay_s(nodes: Iterable[Node], now_s: float) -> float:
    """Return how long half of the nodes that are not leaving, or more, are foreseen to stay."""
    ends_at_s = [node.expected_end_at_s for node in nodes if node.leaving_at_s is None]
    foreseen_at_s = [at_s for at_s in ends_at_s if at_s is not None]
    middle = len(ends_at_s) // 2
    return sorted(foreseen_at_s)[middle] - now_s if middle < len(foreseen_at_s) else math.inf


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
