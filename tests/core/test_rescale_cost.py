from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.core.rescale_cost import learn, prior_cost
from malletrain.core.settings import PriorSettings

PRIOR = PriorSettings(scale_up_s=2.0, scale_down_s=0.5, cost_weight=1.0)


def test_a_model_never_rescaled_costs_what_the_prior_says() -> None:
    cost = prior_cost(PRIOR)
    assert (cost.scale_up_s, cost.scale_down_s, cost.ups, cost.downs) == (2.0, 0.5, 0, 0)


def test_the_first_rescale_weighs_as_much_as_the_prior() -> None:
    cost = learn(None, is_up=True, stall_s=4.0, prior=PRIOR)
    assert cost.scale_up_s == pytest.approx(3.0)
    assert cost.scale_down_s == 0.5
    assert (cost.ups, cost.downs) == (1, 0)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=15))
def test_few_rescales_make_the_mean_with_the_prior_as_one_more(stalls_s: list[float]) -> None:
    cost = None
    for stall_s in stalls_s:
        cost = learn(cost, is_up=False, stall_s=stall_s, prior=PRIOR)
    assert cost is not None
    assert cost.scale_down_s == pytest.approx((0.5 + sum(stalls_s)) / (1 + len(stalls_s)))


def test_a_changed_cost_is_learned_however_many_rescales_came_before() -> None:
    cost = None
    for _ in range(10_000):
        cost = learn(cost, is_up=True, stall_s=0.1, prior=PRIOR)
    for _ in range(100):
        cost = learn(cost, is_up=True, stall_s=20.0, prior=PRIOR)
    assert cost is not None
    assert cost.scale_up_s == pytest.approx(20.0, rel=0.02)
