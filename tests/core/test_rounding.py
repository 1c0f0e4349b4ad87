from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.core.model import Cluster, Job, JobSpec, StatedScaling
from malletrain.core.rescale_cost import ANY_MODEL, learned
from malletrain.core.rounding import rounded
from malletrain.core.settings import AdvisorKind, AdvisorSettings, CoreSettings, PriorSettings
from malletrain.core.view import View

PRIOR = PriorSettings()


@given(st.floats(1e-9, 1e12), st.sampled_from([0.0025, 0.01, 0.05, 0.25]))
def test_rounding_moves_by_half_a_step_at_most_and_only_once(value: float, step: float) -> None:
    near = rounded(value, step)
    assert near == pytest.approx(value, rel=0.5 * step + 1e-9)
    assert rounded(near, step) == near


@given(st.floats(1e-9, 1e12), st.floats(1.0, 2.0))
def test_rounding_keeps_the_order(value: float, factor: float) -> None:
    assert rounded(value, 0.05) <= rounded(value * factor, 0.05)


def test_what_is_not_positive_is_left_alone() -> None:
    assert rounded(0.0, 0.05) == 0.0
    assert rounded(-1.0, 0.05) == -1.0


def job(stated: StatedScaling | None = None) -> Job:
    return Job(JobSpec("j", "j", 1, 64, "net", stated=stated), submitted_at_s=0.0)


def test_learned_costs_are_decided_by_in_steps_and_kept_as_they_are() -> None:
    costs = learned({}, "net", is_up=True, stall_s=17.123, prior=PRIOR)
    decided = View(Cluster(rescale_costs=costs)).outlook(job()).cost
    assert decided.scale_up_s == pytest.approx(costs["net"].scale_up_s, rel=0.05)
    assert decided.scale_up_s == rounded(costs["net"].scale_up_s, 0.1)
    other = learned({}, "other", is_up=True, stall_s=17.123, prior=PRIOR)
    assert other["other"] == other[ANY_MODEL]
    assert View(Cluster(rescale_costs=other)).outlook(job()).cost is decided


def test_stated_costs_are_decided_by_to_the_letter() -> None:
    told = CoreSettings(advisor=AdvisorSettings(kind=AdvisorKind.TOLD))
    stated = StatedScaling((1,), (10.0,), scale_up_s=17.123, scale_down_s=11.321)
    cost = View(Cluster(settings=told)).outlook(job(stated)).cost
    assert (cost.scale_up_s, cost.scale_down_s) == (17.123, 11.321)
