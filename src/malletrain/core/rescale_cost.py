"""What a rescale costs its job: learned from every rescale, starting from a prior."""

from __future__ import annotations

from functools import lru_cache

from malletrain.core.model import Cluster, RescaleCost
from malletrain.core.rounding import rounded
from malletrain.core.settings import PriorSettings

#: The key of what all models together have shown: what is assumed of one never rescaled.
ANY_MODEL = ""

#: A learned cost never rests on more rescales than this, so that a changed cost is learned too.
MEMORY_RESCALES = 20.0

#: What is decided by is one of a scale of costs with this step between them: stalls differ more.
_STEP = 0.1


def prior_cost(prior: PriorSettings) -> RescaleCost:
    """Return the cost assumed of a model that was never rescaled."""
    return RescaleCost(scale_up_s=prior.scale_up_s, scale_down_s=prior.scale_down_s)


def model_cost(cluster: Cluster, model_key: str) -> RescaleCost:
    """Return what is known of a model's cost, rounded, else of all models', else assumed."""
    costs = cluster.rescale_costs
    known = costs.get(model_key) or costs.get(ANY_MODEL)
    return rounded_cost(known) if known else prior_cost(cluster.settings.prior)


@lru_cache(maxsize=4096)
def rounded_cost(cost: RescaleCost) -> RescaleCost:
    """Return the nearest cost of the scale that is decided by."""
    return RescaleCost(rounded(cost.scale_up_s, _STEP), rounded(cost.scale_down_s, _STEP))


def learned(
    costs: dict[str, RescaleCost], model_key: str, is_up: bool, stall_s: float, prior: PriorSettings
) -> dict[str, RescaleCost]:
    """Return the costs after one observed stall of a job of this model.

    A model starts from what all models have shown so far, as if once observed of its own.
    """
    of_all = costs.get(ANY_MODEL)
    start = of_all and RescaleCost(of_all.scale_up_s, of_all.scale_down_s)
    own = learn(costs.get(model_key) or start, is_up, stall_s, prior)
    return {**costs, model_key: own, ANY_MODEL: learn(of_all, is_up, stall_s, prior)}


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
