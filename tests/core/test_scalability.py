from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.core.model import Cluster, Job, JobSpec, Scalability
from malletrain.core.scalability import MEMORY_STEPS, curve_for, fit, observe
from malletrain.core.settings import AdvisorKind, AdvisorSettings, CoreSettings, PriorSettings

PRIOR = PriorSettings()
#: Measured throughputs of seven models (data set of BFTrainer/Replayer), not ours to bundle.
DATA = Path(os.environ.get("MALLETRAIN_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
MEASURED_CURVES = DATA / "workloads" / "imagenet-mix-1001.json"

windows = st.lists(
    st.tuples(
        st.integers(1, 200),
        st.floats(1e-3, 1e9),
        st.floats(0, 0.5),
        st.integers(1, 5000),
    ),
    max_size=12,
)


def observed(*points: tuple[int, float], noise: float = 0.05, steps: int = 200) -> Scalability:
    scalability = Scalability()
    for nodes, rate in points:
        scalability = observe(scalability, nodes, rate, (noise * rate) ** 2, steps)
    return scalability


def job(job_id: str, model_key: str) -> Job:
    return Job(JobSpec(job_id, job_id, 1, 64, model_key), submitted_at_s=0.0)


@given(st.lists(st.floats(1.0, 1e4), min_size=2, max_size=60), st.integers(1, 59))
def test_windows_merge_into_the_mean_and_variance_of_all_steps(
    steps: list[float], cut: int
) -> None:
    scalability = Scalability()
    for window in (steps[:cut], steps[cut:]):
        if window:
            scalability = observe(
                scalability, 4, float(np.mean(window)), float(np.var(window)), len(window)
            )
    (observation,) = scalability.observations
    assert observation.count == len(steps)
    assert observation.samples_per_s == pytest.approx(np.mean(steps))
    assert observation.variance == pytest.approx(np.var(steps), rel=1e-6, abs=1e-6)


def test_a_changed_speed_is_learned_however_long_the_old_one_was_seen() -> None:
    scalability = observed((4, 100.0), steps=10**9)
    for _ in range(40):
        scalability = observe(scalability, 4, 50.0, 1.0, MEMORY_STEPS // 10)
    assert scalability.observations[0].samples_per_s == pytest.approx(50.0, rel=0.03)


def test_one_entry_a_scale_sorted_by_nodes() -> None:
    scalability = observed((8, 70.0), (1, 10.0), (8, 72.0), (2, 19.0))
    assert [o.nodes for o in scalability.observations] == [1, 2, 8]


@pytest.mark.parametrize(
    ("rate", "steps"), [(0.0, 5), (math.nan, 5), (math.inf, 5), (-1.0, 5), (10.0, 0)]
)
def test_a_window_without_a_usable_rate_changes_nothing(rate: float, steps: int) -> None:
    before = observed((2, 20.0))
    assert observe(before, 2, rate, 0.0, steps) is before


@given(windows, st.integers(0, 300))
def test_rates_are_positive_and_finite_whatever_was_measured(
    seen: list[tuple[int, float, float, int]], max_nodes: int
) -> None:
    scalability = Scalability()
    for nodes, rate, noise, steps in seen:
        scalability = observe(scalability, nodes, rate, (noise * rate) ** 2, steps)
    curve = fit(scalability, PRIOR)
    rates, sd = curve.rates(max_nodes), curve.sd(max_nodes)
    low, high = curve.interval(max_nodes)
    assert rates.shape == sd.shape == low.shape == high.shape == (max_nodes + 1,)
    assert rates[0] == 0
    assert np.all(np.isfinite(rates))
    assert np.all(rates[1:] > 0)
    assert np.all(np.isfinite(sd))
    assert np.all(low <= rates)
    assert np.all(rates <= high)


def test_an_unknown_model_scales_like_the_prior_from_the_reference_rate() -> None:
    curve = fit(Scalability(), PRIOR, reference_rate=500.0)
    rates = curve.rates(64)
    assert rates[1] == pytest.approx(500.0)
    assert rates[16] == pytest.approx(500.0 * 16 ** (1 - PRIOR.efficiency_slope), rel=0.1)
    assert np.all(np.diff(curve.sd(64)[1:]) > 0)


def test_the_reference_rate_is_forgotten_once_anything_is_measured() -> None:
    scalability = observed((4, 1e6))
    assert fit(scalability, PRIOR, 1e-3) == fit(scalability, PRIOR, 7.0)


@given(st.integers(1, 64), st.floats(0.1, 1e6))
def test_a_point_measured_well_is_on_the_curve(nodes: int, rate: float) -> None:
    curve = fit(observed((nodes, rate), steps=1000), PRIOR)
    assert curve.rates(64)[nodes] == pytest.approx(rate, rel=0.0026)
    assert curve.sd(64)[nodes] < 0.015


def test_another_report_of_what_is_well_known_leaves_the_curve_as_it_is() -> None:
    scalability = observed((1, 100.0), (8, 700.0), steps=1000)
    curve = fit(scalability, PRIOR)
    for rate in (699.8, 700.1, 700.3):
        scalability = observe(scalability, 8, rate, (0.05 * rate) ** 2, 10)
        assert fit(scalability, PRIOR) is curve
    slower = observe(scalability, 8, 600.0, 1.0, 200)
    assert fit(slower, PRIOR).rates(8)[8] < 0.98 * curve.rates(8)[8]


def test_many_well_measured_points_are_all_on_the_curve() -> None:
    points = [(1, 100.0), (2, 170.0), (4, 330.0), (8, 500.0), (16, 980.0), (64, 2500.0)]
    rates = fit(observed(*points, steps=1000), PRIOR).rates(64)
    for nodes, rate in points:
        assert rates[nodes] == pytest.approx(rate, rel=0.02)


def test_between_points_the_curve_stays_between_what_they_allow() -> None:
    rates = fit(observed((4, 400.0), (16, 1200.0), steps=1000), PRIOR).rates(64)
    assert np.all(np.diff(rates[4:17]) > 0)
    assert rates[8] == pytest.approx(math.sqrt(400 * 1200), rel=0.08)


def test_certainty_is_lost_with_the_distance_from_what_was_measured() -> None:
    sd = fit(observed((8, 800.0), steps=1000), PRIOR).sd(64)
    assert np.all(np.diff(sd[8:]) > 0)
    assert np.all(np.diff(sd[1:9]) < 0)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=6, unique=True), st.integers(1, 64))
def test_more_steps_never_lose_certainty_where_they_were_taken(
    scales: list[int], again: int
) -> None:
    def rate(nodes: int) -> float:
        return 100.0 * nodes**0.85

    before = observed(*[(n, rate(n)) for n in scales], steps=20)
    after = observe(before, again, rate(again), (0.05 * rate(again)) ** 2, 400)
    assert fit(after, PRIOR).sd(64)[again] < fit(before, PRIOR).sd(64)[again] + 1e-9


@pytest.mark.parametrize("exchange_s", [0.05, 0.4])
def test_beyond_the_points_a_step_time_model_is_followed(exchange_s: float) -> None:
    def rate(nodes: int) -> float:
        """A step of 64 samples takes 1 s of compute, shared, and a fixed time of exchange."""
        return 64 / (1.0 / nodes + exchange_s)

    curve = fit(observed(*[(n, rate(n)) for n in (1, 2, 4, 8, 16)], steps=1000), PRIOR)
    rates = curve.rates(64)
    low, high = curve.interval(64)
    slope = math.log2(rate(16) / rate(8))
    for nodes in (32, 64):
        straight = rate(16) * (nodes / 16) ** slope
        assert abs(rates[nodes] - rate(nodes)) < 0.7 * abs(straight - rate(nodes))
        assert low[nodes] < rate(nodes) < high[nodes]
    assert rates[32] == pytest.approx(rate(32), rel=0.1)


def measured_curves() -> dict[str, list[tuple[int, float]]]:
    if not MEASURED_CURVES.exists():
        pytest.skip(
            f"no measured curves at {MEASURED_CURVES}: MALLETRAIN_TEST_DATA names the folder"
        )
    curves = json.loads(MEASURED_CURVES.read_text())["curves"]
    return {k: [(int(n), rate) for n, rate in points if n > 0] for k, points in curves.items()}


def test_measured_curves_are_predicted_from_one_and_eight_nodes() -> None:
    """Within 12% at twice and 30% at eight times the largest scale measured."""
    for points in measured_curves().values():
        rate = dict(points)
        rates = fit(observed((1, rate[1]), (8, rate[8])), PRIOR).rates(64)
        assert rates[4] == pytest.approx(rate[4], rel=0.12)
        assert rates[16] == pytest.approx(rate[16], rel=0.12)
        assert rates[64] == pytest.approx(rate[64], rel=0.30)


def test_the_stated_confidence_holds_on_measured_curves() -> None:
    inside = total = 0
    for points in measured_curves().values():
        for known in ((0,), (0, 3), (3,), (1, 2), (6,), (0, 6), (0, 1, 2, 3, 4, 5)):
            curve = fit(observed(*[points[i] for i in known]), PRIOR)
            low, high = curve.interval(64)
            others = [p for i, p in enumerate(points) if i not in known]
            inside += sum(low[n] <= rate <= high[n] for n, rate in others)
            total += len(others)
    assert inside >= 0.9 * total, f"95% intervals hold {inside} of {total} measured rates"


def test_jobs_of_one_model_share_a_curve_and_others_start_from_the_median_model() -> None:
    curves = {
        "slow": observed((1, 10.0)),
        "middle": observed((1, 100.0)),
        "fast": observed((1, 9000.0)),
    }
    cluster = Cluster(curves=curves)
    first = curve_for(cluster, job("a", "slow"))
    second = curve_for(cluster, job("b", "slow"))
    unknown = curve_for(cluster, job("c", "new"))
    assert first == second
    assert first.rates(1)[1] == pytest.approx(10.0, rel=0.003)
    assert unknown.rates(1)[1] == pytest.approx(100.0, rel=0.01)
    assert curve_for(Cluster(), job("c", "new")).rates(1)[1] == pytest.approx(1.0)


def test_the_static_advisor_knows_the_prior_alone() -> None:
    settings = CoreSettings(advisor=AdvisorSettings(kind=AdvisorKind.STATIC))
    cluster = Cluster(curves={"m": observed((1, 10.0), (8, 20.0))}, settings=settings)
    assert curve_for(cluster, job("a", "m")) == fit(Scalability(), settings.prior)


def test_arrays_are_shared_and_cannot_be_written() -> None:
    rates = fit(observed((1, 10.0)), PRIOR).rates(8)
    with pytest.raises(ValueError, match="read-only"):
        rates[1] = 0.0
