from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.core.model import StatedScaling
from malletrain.core.settings import AdvisorKind
from malletrain.errors import UsageError
from malletrain.sim.policies import OVERCLAIM_FACTOR, OVERCLAIM_SHARE, POLICIES, policy
from malletrain.workloads.workload import MalleableJob, TrueCurve, Workload
from tests.sim.scenes import CURVES, job, workload

COSTS_S = (18.0, 12.0)
WORK = workload(*(job(f"{curve}{number}", curve) for curve in CURVES for number in range(2)))


def stated(name: str, of: MalleableJob, work: Workload = WORK, seed: int = 0) -> StatedScaling:
    answer = policy(name).stated(work, of, COSTS_S, seed)
    assert answer is not None
    return answer


def curve_of(answer: StatedScaling) -> TrueCurve:
    return TrueCurve(answer.nodes, answer.samples_per_s)


def test_those_that_are_told_are_told_the_true_costs_and_the_others_nothing() -> None:
    for each in POLICIES.values():
        answer = each.stated(WORK, WORK.jobs[0], COSTS_S, 0)
        if each.advisor is AdvisorKind.TOLD:
            assert answer is not None
            assert (answer.scale_up_s, answer.scale_down_s) == COSTS_S
        else:
            assert answer is None


@pytest.mark.parametrize("name", ["freetrain-oracle", "greedy"])
def test_the_oracle_is_told_the_truth(name: str) -> None:
    for each in WORK.jobs:
        assert curve_of(stated(name, each)) == CURVES[each.curve]


def test_linear_multiplies_what_one_node_does() -> None:
    for each in WORK.jobs:
        rates = curve_of(stated("freetrain-linear", each)).rates(each.max_nodes)
        one_node = CURVES[each.curve].samples_per_s[0]
        assert list(rates) == pytest.approx([n * one_node for n in range(each.max_nodes + 1)])


def test_one_curve_for_all_is_the_first_jobs() -> None:
    answers = {curve_of(stated("freetrain-one-curve", each)) for each in WORK.jobs}
    assert answers == {CURVES[WORK.jobs[0].curve]}


@given(st.integers(0, 2**32), st.integers(2, 12))
def test_shuffled_gives_every_model_another_ones_curve_and_each_to_one(
    seed: int, num_models: int
) -> None:
    curves = {f"m{i}": TrueCurve((1, 2), (1.0 + i, 1.5 + i)) for i in range(num_models)}
    jobs = tuple(job(name, name, max_nodes=2) for name in curves)
    work = Workload(name="shuffled", jobs=jobs, curves=curves)
    answers = [curve_of(stated("freetrain-shuffled", each, work, seed)) for each in jobs]
    assert all(answer != curves[each.curve] for answer, each in zip(answers, jobs, strict=True))
    assert set(answers) == set(curves.values())


def test_one_in_five_overclaims_and_it_is_the_same_ones_for_a_seed() -> None:
    jobs = tuple(job(f"j{number}", "flat") for number in range(2000))
    work = workload(*jobs)
    answers = [curve_of(stated("freetrain-overclaim", each, work, 4)) for each in jobs]
    inflated = TrueCurve(
        CURVES["flat"].nodes, tuple(OVERCLAIM_FACTOR * r for r in CURVES["flat"].samples_per_s)
    )
    assert set(answers) == {CURVES["flat"], inflated}
    # Three standard deviations of a share of 2,000.
    assert answers.count(inflated) / 2000 == pytest.approx(OVERCLAIM_SHARE, abs=0.027)
    assert answers == [curve_of(stated("freetrain-overclaim", each, work, 4)) for each in jobs]
    assert answers != [curve_of(stated("freetrain-overclaim", each, work, 5)) for each in jobs]


def test_a_policy_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"no policy 'oracle'.*freetrain-oracle"):
        policy("oracle")
