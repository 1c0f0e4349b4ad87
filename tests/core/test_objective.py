from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.core.model import Job, JobSpec, RescaleCost, Scalability
from malletrain.core.objective import DEADLINE_FACTOR, Aim, pace_samples_per_s, utilities, values
from malletrain.core.scalability import Curve, fit, observe
from malletrain.core.settings import ObjectiveKind, PriorSettings

COST = RescaleCost(scale_up_s=3.0, scale_down_s=1.0)


def curve(one_node_rate: float = 100.0) -> Curve:
    scalability = observe(Scalability(), 1, one_node_rate, 0.0, 1000)
    scalability = observe(scalability, 8, one_node_rate * 6, 0.0, 1000)
    return fit(scalability, PriorSettings())


def job(
    weight: float = 1.0,
    work_samples: float | None = None,
    deadline_at_s: float | None = None,
    done_samples: float = 0.0,
    min_nodes: int = 1,
) -> Job:
    spec = JobSpec(
        "j",
        "j",
        min_nodes,
        16,
        "m",
        weight=weight,
        work_samples=work_samples,
        deadline_at_s=deadline_at_s,
    )
    return Job(spec, submitted_at_s=0.0, done_samples=done_samples)


def aim_of(member: Job, kind: ObjectiveKind, now_s: float) -> Aim:
    spec = member.spec
    return Aim(kind, spec.min_nodes, spec.weight, pace_samples_per_s(member, now_s))


@given(st.integers(0, 16), st.integers(1, 16), st.floats(0.1, 1e4))
def test_samples_are_worth_what_the_papers_say(
    current: int, max_nodes: int, horizon_s: float
) -> None:
    aim = aim_of(job(weight=2.0), ObjectiveKind.SAMPLES, 0.0)
    worth = values(aim, curve(), COST, horizon_s, current, max_nodes)
    rates = curve().rates(16)
    assert worth.shape == (max_nodes + 1,)
    for nodes in range(max_nodes + 1):
        lost_s = 3.0 * (nodes > current) + 1.0 * (nodes < current)
        expected = 2.0 * (horizon_s * rates[nodes] - lost_s * rates[current])
        assert worth[nodes] == pytest.approx(expected)


@pytest.mark.parametrize("kind", ObjectiveKind)
def test_no_nodes_are_worth_nothing_to_a_waiting_job_and_any_are_worth_more(
    kind: ObjectiveKind,
) -> None:
    worth = values(aim_of(job(), kind, 0.0), curve(), COST, 60.0, 0, 16)
    assert worth[0] == 0
    assert np.all(np.diff(worth[:9]) > 0)
    assert np.all(np.isfinite(worth))


@pytest.mark.parametrize("kind", [ObjectiveKind.SPEEDUP, ObjectiveKind.FAIR])
def test_a_slow_model_is_worth_as_much_as_a_fast_one(kind: ObjectiveKind) -> None:
    slow = utilities(aim_of(job(), kind, 0.0), curve(10.0), 16)
    fast = utilities(aim_of(job(), kind, 0.0), curve(90_000.0), 16)
    assert slow == pytest.approx(fast, rel=0.008)


def test_speedup_is_that_over_the_fewest_nodes_which_count_one_each() -> None:
    speedup = utilities(aim_of(job(), ObjectiveKind.SPEEDUP, 0.0), curve(), 8)
    assert speedup[1] == pytest.approx(1.0)
    assert speedup[8] == pytest.approx(6.0, rel=0.05)
    from_two = utilities(aim_of(job(min_nodes=2), ObjectiveKind.SPEEDUP, 0.0), curve(), 8)
    assert from_two[2] == pytest.approx(2.0)
    assert from_two[8] < 8


def test_fair_gives_the_first_node_to_the_job_that_has_none() -> None:
    fair = utilities(aim_of(job(), ObjectiveKind.FAIR, 0.0), curve(), 8)
    assert fair[1] - fair[0] == pytest.approx(1.0)
    assert fair[1] - fair[0] > 2 * (fair[8] - fair[7])


def test_samples_up_to_the_pace_of_the_deadline_count_more() -> None:
    # 30,000 samples are left for 100 s: a pace of 300 samples/s.
    due = job(work_samples=40_000.0, done_samples=10_000.0, deadline_at_s=150.0)
    rates = curve().rates(8)
    urgent = utilities(aim_of(due, ObjectiveKind.DEADLINE, 50.0), curve(), 8)
    assert urgent[1] == pytest.approx(DEADLINE_FACTOR * rates[1])
    assert urgent[8] == pytest.approx(rates[8] + (DEADLINE_FACTOR - 1) * 300.0)


def test_a_missed_deadline_stays_urgent_and_none_is_not() -> None:
    rates = curve().rates(8)
    missed = job(work_samples=1e6, deadline_at_s=10.0)
    assert utilities(aim_of(missed, ObjectiveKind.DEADLINE, 20.0), curve(), 8) == pytest.approx(
        DEADLINE_FACTOR * rates
    )
    for relaxed in (job(), job(deadline_at_s=10.0), job(work_samples=1e6)):
        assert utilities(
            aim_of(relaxed, ObjectiveKind.DEADLINE, 20.0), curve(), 8
        ) == pytest.approx(rates)


def test_the_shared_rates_are_not_written_to() -> None:
    before = curve().rates(8).copy()
    values(aim_of(job(), ObjectiveKind.SAMPLES, 0.0), curve(), COST, 60.0, 4, 8)
    assert np.array_equal(curve().rates(8), before)
