from __future__ import annotations

import json
import math
import os
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from malletrain.errors import WorkloadError
from malletrain.workloads.generate import KINDS, GeneratorSettings, from_text, generate
from malletrain.workloads.workload import TrueCurve, Workload

DATA = Path(os.environ.get("MALLETRAIN_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))


def settings_of(text: str) -> GeneratorSettings:
    settings = from_text(text)
    assert settings is not None
    return settings


def drawn(text: str, seed: int = 1) -> Workload:
    return generate(settings_of(text), seed)


def efficiency(curve: TrueCurve) -> np.ndarray:
    return np.array(curve.samples_per_s) / (np.array(curve.nodes) * curve.samples_per_s[0])


def at_most(curve: TrueCurve) -> float:
    """Return the efficiency at the largest scale."""
    return float(efficiency(curve)[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_draws_one_workload_and_another_seed_another(kind: str) -> None:
    once, again, other = drawn(kind, 3), drawn(kind, 3), drawn(kind, 4)
    assert once == again
    assert once.jobs != other.jobs
    assert (once.curves != other.curves) == (kind != "hpo")


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_of_its_own_goes_before_the_replays(kind: str) -> None:
    assert drawn(f"{kind}:seed=3", 9) == drawn(kind, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_description_asks_for_the_same_workload(kind: str) -> None:
    for text in (f"{kind}:count=7", f"{kind}:arrival=bursts,work_sd=1", f"{kind}:arrival=at-once"):
        workload = drawn(text, 5)
        assert drawn(workload.description, 6) == workload


@pytest.mark.parametrize("kind", KINDS)
def test_more_jobs_leave_the_first_ones_as_they_are(kind: str) -> None:
    few, many = drawn(f"{kind}:count=20"), drawn(f"{kind}:count=40")
    assert many.jobs[:20] == few.jobs
    assert few.curves.items() <= many.curves.items()


@pytest.mark.parametrize("max_nodes", [1, 3, 17, 64, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_curves_are_positive_and_efficiency_falls_from_one(kind: str, max_nodes: int) -> None:
    workload = drawn(f"{kind}:max_nodes={max_nodes},min_nodes=1", 2)
    assert {job.curve for job in workload.jobs} == set(workload.curves)
    for curve in workload.curves.values():
        assert curve.nodes[0] == 1
        assert curve.nodes[-1] == max_nodes
        assert list(curve.nodes) == sorted(set(curve.nodes))
        assert all(rate > 0 for rate in curve.samples_per_s)
        falls = efficiency(curve)
        assert falls[0] == 1
        assert (np.diff(falls) <= 1e-12).all()
    assert {job.max_nodes for job in workload.jobs} == {max_nodes}


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_are_sorted_unique_and_finite(kind: str) -> None:
    jobs = drawn(f"{kind}:count=300,arrival=bursts").jobs
    assert len({job.id for job in jobs}) == len(jobs) == 300
    assert all(a.submitted_at_s <= b.submitted_at_s for a, b in pairwise(jobs))
    for job in jobs:
        assert job.work_samples is not None
        assert all(0 < x < math.inf for x in (job.work_samples, job.scale_up_s, job.scale_down_s))


def test_trials_share_one_curve_and_architectures_have_their_own() -> None:
    assert set(drawn("hpo").curves) == {"hpo"}
    nas = drawn("nas:count=200")
    assert len(set(nas.curves.values())) == 200
    # Some scale almost perfectly, some badly: with the defaults, not for any policy's sake.
    shares = np.array([at_most(curve) for curve in nas.curves.values()])
    assert shares.max() > 0.95
    assert shares.min() < 0.6
    assert 0.7 < np.median(shares) < 0.95


def test_trials_train_the_model_that_is_stated() -> None:
    (curve,) = drawn(
        "hpo:samples_per_s=1000,batch_per_node=100,parameters=1e9,"
        "bandwidth_bytes_per_s=8e9,overlap=0.5,latency_s=0.01,max_nodes=2"
    ).curves.values()
    # 0.1 s of computation; of 0.5 s of exchange, 0.05 s are hidden; 0.01 s for one doubling.
    assert curve.samples_per_s == pytest.approx((1000.0, 200 / (0.1 + 0.45 + 0.01)))


def test_architectures_spread_as_stated() -> None:
    text = "nas:count=4000,samples_per_s=500,samples_per_s_sd=0.9,max_nodes=1"
    rates = [curve.samples_per_s[0] for curve in drawn(text).curves.values()]
    assert stats.kstest(np.log(np.array(rates) / 500) / 0.9, "norm").pvalue > 1e-3


def test_no_spread_is_one_architecture() -> None:
    nas = drawn("nas:samples_per_s_sd=0,parameters_sd=0,latency_sd=0")
    assert set(nas.curves.values()) == set(drawn("hpo").curves.values())


@pytest.mark.parametrize("sign", [-1, 1])
def test_parameters_go_with_computation_as_far_as_they_are_correlated(sign: int) -> None:
    """Where both are one, every architecture has the same ratio of exchange to computation."""
    text = f"nas:count=50,parameters_sd=0.7,latency_s=0,overlap=0,correlation={sign}"
    shares = [at_most(curve) for curve in drawn(text).curves.values()]
    assert (np.ptp(shares) < 1e-9) == (sign == 1)


def test_powers_are_powers_with_uniform_exponents() -> None:
    workload = drawn("powers:count=2000,exponent_low=0.4,exponent_high=0.9,max_nodes=10")
    exponents = []
    for curve in workload.curves.values():
        speedup = np.array(curve.samples_per_s) / curve.samples_per_s[0]
        exponent = math.log(speedup[-1]) / math.log(10)
        assert speedup == pytest.approx(np.array(curve.nodes) ** exponent)
        exponents.append(exponent)
    assert stats.kstest(exponents, "uniform", args=(0.4, 0.5)).pvalue > 1e-3


def test_lines_between_the_points_of_a_power_are_close_to_it() -> None:
    (curve,) = drawn(
        "powers:count=1,exponent_low=0.5,exponent_high=0.5,max_nodes=500"
    ).curves.values()
    rates = curve.rates(500)[1:] / curve.samples_per_s[0]
    assert rates == pytest.approx(np.arange(1, 501) ** 0.5, rel=2e-3)


def test_mixed_jobs_come_in_the_shares_that_are_stated() -> None:
    workload = drawn("mixed:count=4000,hpo_share=0.5,nas_share=0.3,plain_models=5")
    counts = Counter(job.job_class for job in workload.jobs)
    assert counts["hpo"] / 4000 == pytest.approx(0.5, abs=0.03)
    assert counts["nas"] / 4000 == pytest.approx(0.3, abs=0.03)
    assert counts["plain"] / 4000 == pytest.approx(0.2, abs=0.03)
    models = Counter(job.curve for job in workload.jobs if job.job_class == "plain")
    assert len(models) == 5
    assert min(models.values()) > 0.7 * counts["plain"] / 5
    assert len({job.curve for job in workload.jobs if job.job_class == "hpo"}) == 1


def test_a_larger_share_only_adds_to_its_jobs() -> None:
    def trials(share: float) -> set[int]:
        jobs = drawn(f"mixed:count=500,nas_share=0,hpo_share={share}").jobs
        return {number for number, job in enumerate(jobs) if job.job_class == "hpo"}

    assert trials(0) < trials(0.3) < trials(0.6) < trials(1)
    assert len(trials(1)) == 500


def test_work_is_epochs_times_samples_spread_around_the_median() -> None:
    jobs = drawn("hpo:count=4000,epochs=10,dataset_samples=5000,work_sd=0.8").jobs
    spread = np.log(np.array([job.work_samples for job in jobs]) / 50_000) / 0.8
    assert stats.kstest(spread, "norm").pvalue > 1e-3
    fixed = drawn("hpo:epochs=10,dataset_samples=5000,work_sd=0").jobs
    assert {job.work_samples for job in fixed} == {50_000.0}


def test_rescale_costs_are_drawn_around_the_stated_means() -> None:
    jobs = drawn("hpo:count=4000,scale_up_s=30,scale_down_s=2,cost_sd=0.4").jobs
    ups = np.array([job.scale_up_s for job in jobs])
    downs = np.array([job.scale_down_s for job in jobs])
    assert ups.mean() == pytest.approx(30, rel=0.03)
    assert downs.mean() == pytest.approx(2, rel=0.03)
    assert abs(np.corrcoef(ups, downs)[0, 1]) < 0.06
    assert {job.scale_up_s for job in drawn("hpo:cost_sd=0,scale_up_s=0").jobs} == {0.0}


def times(text: str) -> np.ndarray:
    return np.array([job.submitted_at_s for job in drawn(text).jobs])


def test_jobs_arrive_as_stated() -> None:
    assert set(times("hpo:arrival=at-once,first_at_s=50")) == {50.0}
    assert list(times("hpo:count=4,arrival=fixed,gap_s=7,first_at_s=50")) == [50, 57, 64, 71]
    gaps = np.diff(times("hpo:count=4000,arrival=poisson,gap_s=7,first_at_s=50"), prepend=50.0)
    assert stats.kstest(gaps, "expon", args=(0, 7)).pvalue > 1e-3
    bursts = Counter(times("hpo:count=4010,arrival=bursts,gap_s=7,burst_jobs=20"))
    assert list(bursts.values()) == [20] * 200 + [10]
    assert np.diff(list(bursts)).mean() == pytest.approx(7, rel=0.25)


def test_measured_models_are_met_by_the_default_machine() -> None:
    """Published curves of seven ImageNet models (BFTrainer), from their published sizes."""
    path = DATA / "workloads" / "imagenet-mix-1001.json"
    if not path.exists():
        pytest.skip(f"no measured curves at {path}: MALLETRAIN_TEST_DATA names the folder")
    measured = json.loads(path.read_text())["curves"].values()
    # AlexNet, VGG16, ResNet18, DenseNet121, MNASNet, ShuffleNet v2, MobileNet v2.
    parameters = (61.1e6, 138.4e6, 11.7e6, 8.0e6, 4.4e6, 2.3e6, 3.5e6)
    for points, size in zip(measured, parameters, strict=True):
        rates = {int(nodes): rate for nodes, rate in points if nodes}
        (curve,) = drawn(f"hpo:samples_per_s={rates[1]},parameters={size}").curves.values()
        assert at_most(curve) == pytest.approx(rates[64] / rates[1] / 64, abs=0.06)


@pytest.mark.parametrize("text", ["workload.toml", "./hpo", "a/hpo:x.json", "hpoo", "", "x.y:z"])
def test_a_path_is_no_generator(text: str) -> None:
    assert from_text(text) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hop:count=3", "kind = 'hop' is no kind of workload: did you mean hpo?"),
        ("x:count=3", "kind = 'x' is no kind of workload: the kinds are hpo, nas, mixed, powers"),
        ("hpo:cuont=3", "unknown key 'cuont': did you mean count?"),
        ("hpo:exponent_low=1", "unknown key 'exponent_low': "),
        ("powers:parameters=1", "unknown key 'parameters': "),
        ("hpo:count", "'count' is no setting: write KIND:key=value,..."),
        ("hpo:kind=nas", "'kind=nas' is no setting"),
        ("hpo:count=3,count=4", "count is given twice"),
        ("hpo:count=some", "count = 'some': it must be a whole number"),
        ("hpo:count=0", "count = 0: it must be from 1 to 100000"),
        ("hpo:count=1000000", "count = 1000000: it must be from 1 to 100000"),
        ("hpo:seed=-1", "seed = -1: it must be from 0 to 1000000000"),
        ("hpo:gap_s=nan", "gap_s = nan: it must be from 0 to 1000000000"),
        ("hpo:gap_s=inf", "gap_s = inf: it must be from 0 to 1000000000"),
        (
            "hpo:arrival=never",
            "arrival = 'never': it must be one of at-once, fixed, poisson, burst",
        ),
        ("hpo:min_nodes=9,max_nodes=8", "min_nodes = 9 is more than max_nodes = 8"),
        ("hpo:burst_jobs=3", "burst_jobs means nothing where arrival is poisson"),
        ("hpo:arrival=at-once,gap_s=3", "gap_s means nothing where arrival is at-once"),
        ("powers:exponent_low=0.9,exponent_high=0.8", "exponent_low = 0.9 is more than exponent_h"),
        ("powers:exponent_high=1.1", "exponent_high = 1.1: it must be from 0 to 1"),
        ("mixed:hpo_share=0.7,nas_share=0.7", "hpo_share + nas_share = 1.4: it must be at most 1"),
        ("nas:correlation=2", "correlation = 2.0: it must be from -1 to 1"),
    ],
)
def test_a_wrong_generator_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(WorkloadError) as refused:
        from_text(text)
    message = str(refused.value)
    assert message.startswith(f"generator {text}: ")
    assert said in message
    assert "\n" not in message
