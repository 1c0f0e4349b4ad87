from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from malletrain.allocate.exact import ExactAllocator
from malletrain.core.problem import Cell, Claim, Problem
from malletrain.errors import InvariantError, UserError

from .stories import best_counts, claim, count_problems, problem, rescaling


@settings(max_examples=300, deadline=None)
@given(count_problems())
def test_the_answer_is_the_best_of_all(asked: Problem) -> None:
    answer = ExactAllocator().allocate(asked)
    assert answer.proved_optimal
    assert answer.value == pytest.approx(best_counts(asked), rel=1e-7, abs=1e-6)
    assert answer.gap == 0.0


@settings(max_examples=100, deadline=None)
@given(count_problems())
def test_an_optimal_allocation_is_left_alone(asked: Problem) -> None:
    counts = ExactAllocator().allocate(asked).counts
    settled = [
        claim(
            c.job_id,
            c.values.tolist(),
            min_nodes=c.min_nodes,
            current=counts[c.job_id],
            owner=c.owner,
        )
        for c in asked.claims
    ]
    again = problem(*settled, nodes=asked.nodes, quotas=asked.quotas)
    assert ExactAllocator().allocate(again).counts == counts


def _by_dynamic_programme(asked: Problem) -> float:
    """The worth of the best counts by the textbook's table over all nodes."""
    best = np.full(asked.nodes + 1, -np.inf)
    best[0] = 0.0
    for one in asked.claims:
        reached = best + one.values[0]
        for n in range(one.min_nodes, min(one.max_nodes, asked.nodes) + 1):
            np.maximum(reached[n:], best[: best.size - n] + one.values[n], out=reached[n:])
        best = reached
    return float(best.max())


def _mixed_claims(rng: np.random.Generator, num_jobs: int) -> list[Claim]:
    drawn: list[Claim] = []
    for index in range(num_jobs):
        if drawn and rng.random() < 0.3:
            twin = drawn[int(rng.integers(len(drawn)))]
            drawn.append(
                claim(
                    f"job{index}",
                    twin.values.tolist(),
                    min_nodes=twin.min_nodes,
                    current=twin.current_nodes,
                )
            )
            continue
        min_nodes, max_nodes = int(rng.integers(1, 9)), int(rng.choice([9, 17, 40, 130]))
        current = int(rng.choice([0, *range(min_nodes, min(max_nodes, 20) + 1)]))
        nodes = np.arange(max_nodes + 1)
        rates = rng.uniform(1, 50) * [nodes**0.7, nodes, np.log1p(nodes)][int(rng.integers(3))]
        values = rescaling(rates.tolist(), current, rng.uniform(0, 80), rng.uniform(0, 30))
        if rng.random() < 0.2:
            values = (np.array(values) + rng.normal(0, 300, max_nodes + 1)).tolist()
        drawn.append(claim(f"job{index}", values, min_nodes=min_nodes, current=current))
    return drawn


@pytest.mark.parametrize("seed", range(40))
def test_many_jobs_get_the_best_of_all(seed: int) -> None:
    """Large enough for several cores, several blocks and rows with many copies."""
    rng = np.random.default_rng(seed)
    asked = problem(*_mixed_claims(rng, int(rng.integers(5, 400))), nodes=int(rng.integers(1, 900)))
    answer = ExactAllocator().allocate(asked)
    assert answer.proved_optimal
    assert answer.value == pytest.approx(_by_dynamic_programme(asked), rel=1e-8)


def test_equal_jobs_do_not_swap_nodes() -> None:
    values = [0.0, 4.0, 6.0, 7.0, 7.0]
    asked = problem(
        claim("a", values, current=1), claim("b", values, current=3), claim("c", values), nodes=4
    )
    linear = [0.0, 1.0, 2.0, 3.0, 4.0]
    tied = problem(claim("a", linear, current=3), claim("b", linear, current=1), nodes=4)
    assert ExactAllocator().allocate(asked).counts == {"a": 1, "b": 2, "c": 1}
    assert ExactAllocator().allocate(tied).counts == {"a": 3, "b": 1}


def test_a_job_that_gains_nothing_by_more_nodes_keeps_its_count() -> None:
    asked = problem(claim("a", [0.0, 5.0, 5.0, 5.0], current=2), nodes=3)
    assert ExactAllocator().allocate(asked).counts == {"a": 2}


def test_a_thousand_identical_jobs_share_the_nodes() -> None:
    values = np.sqrt(np.arange(65.0)).tolist()
    asked = problem(*(claim(f"job{i}", values) for i in range(1000)), nodes=10_500)
    answer = ExactAllocator().allocate(asked)
    assert answer.proved_optimal
    assert sorted(answer.counts.values()) == [10] * 500 + [11] * 500


def test_the_same_problem_gets_the_same_answer() -> None:
    asked = problem(*_mixed_claims(np.random.default_rng(7), 100), nodes=500)
    assert ExactAllocator().allocate(asked) == ExactAllocator().allocate(asked)


def test_the_work_limit_gives_the_best_so_far_and_its_bound() -> None:
    # Whole numbers of nodes that hardly ever add up: the core method's bad case.
    rng = np.random.default_rng(3)
    claims = []
    for index in range(30):
        size = int(rng.integers(30, 60))
        values = [0.0] + [-1.0] * (size - 1) + [size + rng.uniform(0, 0.2)]
        claims.append(claim(f"job{index}", values))
    asked = problem(*claims, nodes=500)
    hasty = ExactAllocator(work_limit=1).allocate(asked)
    best = ExactAllocator().allocate(asked)
    assert not hasty.proved_optimal
    assert best.proved_optimal
    assert 0 < hasty.value <= best.value <= hasty.bound * (1 + 1e-9)
    assert hasty.gap > 0


def test_no_jobs_and_no_nodes() -> None:
    assert ExactAllocator().allocate(problem(nodes=5)).counts == {}
    none = ExactAllocator().allocate(problem(claim("a", [0.0, 1.0]), nodes=0))
    assert (dict(none.counts), none.proved_optimal) == ({"a": 0}, True)


def test_bounds_beyond_the_supply() -> None:
    asked = problem(
        claim("minimum", [0.0] + [9.0] * 9, min_nodes=6),
        claim("maximum", [float(n) for n in range(100)]),
        nodes=5,
    )
    assert ExactAllocator().allocate(asked).counts == {"minimum": 0, "maximum": 5}


def test_a_job_that_costs_more_than_it_brings_gets_nothing() -> None:
    asked = problem(claim("a", [-3.0, -5.0, -9.0]), claim("b", [0.0, 1.0]), nodes=5)
    assert ExactAllocator().allocate(asked).counts == {"a": 0, "b": 1}


def test_a_gap_below_the_minimum_may_hold_anything() -> None:
    asked = problem(claim("a", [0.0, np.nan, np.inf, 3.0], min_nodes=3), nodes=5)
    assert ExactAllocator().allocate(asked).counts == {"a": 3}


def test_what_a_quota_keeps_from_one_owner_goes_to_others() -> None:
    steep, flat = [0.0, 9.0, 18.0, 27.0], [0.0, 1.0, 2.0, 3.0]
    asked = problem(
        claim("a", steep, owner="ada"),
        claim("b", steep, owner="ada"),
        claim("c", flat, owner="bob"),
        nodes=6,
        quotas={"ada": 4, "nobody": 1},
    )
    answer = ExactAllocator().allocate(asked)
    assert answer.counts["a"] + answer.counts["b"] == 4
    assert answer.counts["c"] == 2
    assert answer.proved_optimal


@pytest.mark.parametrize(
    ("claims", "more", "message"),
    [
        ([claim("a", [0.0, np.nan])], {}, "worth of 1 nodes to a is nan"),
        ([claim("a", [np.inf, 1.0])], {}, "worth of 0 nodes to a is inf"),
        ([claim("a", [0.0, 1.0], min_nodes=0)], {}, "needs 1 <= min <= max"),
        ([claim("a", [0.0, 1.0], min_nodes=2)], {}, "bounds 2..1"),
        ([claim("a", [0.0, 1.0], current=-1)], {}, "-1 present nodes"),
        ([Claim("a", 1, 3, 0, np.zeros(3))], {}, "3 values"),
        ([claim("a", [0.0, 1.0]), claim("a", [0.0, 1.0])], {}, "two claims"),
        ([], {"nodes": -1}, "-1 nodes"),
        ([], {"quotas": {"ada": -1}}, "quota of ada"),
        ([], {"power_cap_w": 5.0}, "power cap"),
    ],
)
def test_a_malformed_problem_is_refused(
    claims: list[Claim], more: dict[str, object], message: str
) -> None:
    with pytest.raises(InvariantError, match=message):
        ExactAllocator().allocate(problem(*claims, **{"nodes": 4, **more}))


def test_cells_are_refused_with_what_to_use_instead() -> None:
    with pytest.raises(UserError, match="milp"):
        ExactAllocator().allocate(problem(nodes=2, cells=(Cell(2),)))
