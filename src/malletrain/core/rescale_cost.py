"""What a rescale costs its job: learned from every rescale, starting from a prior."""

from __future__ import annotations

from malletrain.core.model import RescaleCost
from malletrain.core.settings import PriorSettings

#: A learned cost never rests on more rescales than this, so that a changed cost is learned too.
MEMORY_RESCALES = 20.0


def prior_cost(prior: PriorSettings) -> RescaleCost:
    """Return the cost assumed of a model that was never rescaled."""
    return RescaleCost(scale_up_s=prior.scale_up_s, scale_down_s=prior.scale_down_s)


def learn(
    cost: RescaleCost | None, is_up: bool, stall_s: float, prior: PriorSettings
) -> RescaleCost:
    """Take one observed stall into the running mean, in which the prior weighs `cost_weight`."""
    cost = cost or prior_cost(prior)
    if is_up:
        mean_s = _updated(cost.scale_up_s, cost.ups, stall_s, prior)
        return RescaleCost(mean_s, cost.scale_down_s, cost.ups + 1, cost.downs)
    mean_s = _updated(cost.scale_down_s, cost.downs, stall_s, prior)
    return RescaleCost(cost.scale_up_s, mean_s, cost.ups, cost.downs + 1)


def _updated(mean_s: float, count: int, stall_s: float, prior: PriorSettings) -> float:
    weight = min(prior.cost_weight + count, MEMORY_RESCALES - 1)
    return mean_s + (max(stall_s, 0.0) - mean_s) / (weight + 1)
