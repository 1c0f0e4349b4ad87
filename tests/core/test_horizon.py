from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.core.horizon import horizon_s, observe, stay_s
from malletrain.core.model import Node, Stability
from malletrain.core.settings import HorizonSettings

SETTINGS = HorizonSettings()
NOW_S = 1.7e9


def lived(changes_every_s: float, jobs: int, hours: float) -> Stability:
    """Jobs each of whose allocations changes at this interval, from a first event on."""
    stability = observe(Stability(), NOW_S, 0, 0, SETTINGS)
    for i in range(int(hours * 3600 / changes_every_s)):
        at_s = NOW_S + (i + 1) * changes_every_s
        stability = observe(stability, at_s, jobs, jobs, SETTINGS)
    return stability


def test_a_fixed_horizon_is_taken_as_it_is() -> None:
    assert horizon_s(Stability(), 5.0, HorizonSettings(fixed_s=1.5)) == 1.5


def test_without_experience_the_initial_time_is_believed() -> None:
    assert horizon_s(Stability(), 0.0, SETTINGS) == pytest.approx(SETTINGS.initial_s, rel=0.025)


def test_it_looks_no_further_than_nodes_stay() -> None:
    assert horizon_s(Stability(), 0.0, SETTINGS, 60.0) == pytest.approx(60.0, rel=0.025)
    assert horizon_s(Stability(), 0.0, SETTINGS, 1e5) == horizon_s(Stability(), 0.0, SETTINGS)
    for past_s in (0.0, -100.0):
        assert horizon_s(Stability(), 0.0, SETTINGS, past_s) == SETTINGS.min_s


def test_nodes_stay_as_long_as_half_of_them_or_more() -> None:
    def stay(*ends_s: float | None) -> float:
        return stay_s([Node(str(i), 0.0, expected_end_at_s=e) for i, e in enumerate(ends_s)], 10.0)

    assert stay() == stay(None) == stay(50.0, None) == math.inf
    assert stay(50.0) == 40.0
    assert stay(50.0, 90.0, None) == stay(90.0, 50.0) == 80.0
    leaving = Node("x", 0.0, expected_end_at_s=50.0, leaving_at_s=20.0)
    assert stay_s([leaving, Node("y", 0.0)], 10.0) == math.inf


def test_a_little_more_experience_leaves_the_horizon_as_it_is() -> None:
    stability = lived(changes_every_s=400.0, jobs=10, hours=12)
    seen = set()
    for i in range(50):
        stability = observe(stability, stability.at_s + 40.0, 10, 1, SETTINGS)
        seen.add(horizon_s(stability, 2.0 + 0.001 * i, SETTINGS))
    assert len(seen) <= 2


def test_the_rule_follows_how_long_allocations_stand_and_what_a_rescale_costs() -> None:
    stability = lived(changes_every_s=400.0, jobs=10, hours=12)
    assert horizon_s(stability, 0.0, SETTINGS) == pytest.approx(400.0, rel=0.05)
    assert horizon_s(stability, 100.0, SETTINGS) == pytest.approx(400 * math.exp(-0.25), rel=0.05)


def test_old_experience_fades() -> None:
    stability = lived(changes_every_s=100.0, jobs=10, hours=12)
    start_s = stability.at_s
    for i in range(36):
        stability = observe(stability, start_s + (i + 1) * 2000.0, 10, 10, SETTINGS)
    assert horizon_s(stability, 0.0, SETTINGS) > 1200.0


@given(
    st.lists(st.tuples(st.floats(0, 1e7), st.integers(0, 1000), st.integers(0, 1000)), max_size=8),
    st.floats(0, 1e6),
)
def test_the_horizon_is_always_within_its_bounds(
    steps: list[tuple[float, int, int]], up_s: float
) -> None:
    stability = Stability()
    at_s = NOW_S
    for passed_s, running, changes in steps:
        at_s += passed_s
        stability = observe(stability, at_s, running, changes, SETTINGS)
    assert SETTINGS.min_s <= horizon_s(stability, up_s, SETTINGS) <= SETTINGS.max_s


@given(st.floats(0, 1e5), st.integers(0, 100))
def test_how_often_it_is_looked_at_does_not_matter(passed_s: float, looks: int) -> None:
    start = Stability(running_s=1000.0, changes=5.0, at_s=NOW_S)
    at_once = observe(start, NOW_S + passed_s, 7, 0, SETTINGS)
    stepwise = start
    for i in range(looks + 1):
        stepwise = observe(stepwise, NOW_S + passed_s * (i + 1) / (looks + 1), 7, 0, SETTINGS)
    assert stepwise.running_s == pytest.approx(at_once.running_s, rel=1e-5)
    assert stepwise.changes == pytest.approx(at_once.changes, rel=1e-5)
