from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from malletrain.allocate.exact import ExactAllocator
from malletrain.allocate.milp import MilpAllocator
from malletrain.allocate.standing import stand
from malletrain.core.problem import Cell, Problem, checked
from malletrain.errors import InvariantError

from .stories import best_cells, best_counts, cell_problems, claim, count_problems, problem

LINEAR = [float(n) for n in range(9)]


@settings(max_examples=60, deadline=None)
@given(count_problems())
def test_the_count_form_agrees_with_the_exact_allocator(asked: Problem) -> None:
    answer = MilpAllocator().allocate(asked)
    assert answer.proved_optimal
    assert answer.value == pytest.approx(best_counts(asked), rel=1e-6, abs=1e-5)
    assert answer.value == pytest.approx(ExactAllocator().allocate(asked).value, rel=1e-6, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(cell_problems())
def test_the_cell_form_finds_the_best_of_all(asked: Problem) -> None:
    answer = MilpAllocator().allocate(asked)
    assert answer.proved_optimal
    assert answer.value == pytest.approx(best_cells(asked), rel=1e-6, abs=1e-5)


def test_a_job_uses_one_class() -> None:
    cells = (Cell(2, "fast"), Cell(3, "slow"))
    answer = MilpAllocator().allocate(problem(claim("a", LINEAR), nodes=5, cells=cells))
    assert answer.by_cell["a"] == (0, 3)


def test_a_fast_class_goes_to_the_job_that_gains_most_by_it() -> None:
    cells = (Cell(2, "fast", speed=3.0), Cell(2, "slow"))
    heavy = claim("heavy", [0.0, 10.0, 20.0])
    light = claim("light", [0.0, 1.0, 2.0])
    answer = MilpAllocator().allocate(problem(light, heavy, nodes=4, cells=cells))
    assert answer.by_cell == {"heavy": (2, 0), "light": (0, 2)}
    assert answer.value == 3 * 20 + 2


def test_a_running_job_grows_within_its_class_and_keeps_its_nodes() -> None:
    cells = (Cell(8, "fast", speed=3.0), Cell(2, "slow", "left"), Cell(2, "slow", "right"))
    running = claim("a", LINEAR, by_cell=(0, 0, 2))
    answer = MilpAllocator().allocate(problem(running, nodes=12, cells=cells))
    assert answer.by_cell["a"] == (0, 2, 2)


def test_a_shrinking_job_only_gives_up_nodes() -> None:
    cells = (Cell(1, "", "left"), Cell(3, "", "right"))
    dear = claim("dear", [0.0, 50.0, 100.0])
    shrinking = claim("shrinking", [0.0, 1.0, 2.0, 3.0], by_cell=(0, 3))
    answer = MilpAllocator().allocate(problem(dear, shrinking, nodes=4, cells=cells))
    assert answer.counts == {"dear": 2, "shrinking": 2}
    assert answer.by_cell["shrinking"] == (0, 2)


def test_nodes_that_stay_are_worth_more_than_those_that_leave() -> None:
    # 20 of the 100 s that the horizon has.
    cells = (Cell(2, group="leaving", lifetime_s=20.0), Cell(2, group="staying"))
    dear, cheap = claim("dear", [0.0, 10.0, 20.0]), claim("cheap", [0.0, 1.0, 2.0])
    answer = MilpAllocator().allocate(problem(cheap, dear, nodes=4, cells=cells))
    assert answer.by_cell == {"dear": (0, 2), "cheap": (2, 0)}
    assert answer.value == pytest.approx(20 + 2 * 0.2)


def test_a_quota_holds_over_cells() -> None:
    cells = (Cell(3, group="left"), Cell(3, group="right"))
    asked = problem(
        claim("a", LINEAR, owner="ada"),
        claim("b", [n / 2 for n in LINEAR], owner="bob"),
        nodes=6,
        cells=cells,
        quotas={"ada": 2},
    )
    assert MilpAllocator().allocate(asked).counts == {"a": 2, "b": 4}


def test_a_power_cap_prefers_worth_per_watt() -> None:
    cells = (Cell(4, "hot", speed=1.5, power_w=400.0), Cell(4, "cool", power_w=200.0))
    asked = problem(claim("a", LINEAR), nodes=8, cells=cells, power_cap_w=850.0)
    assert MilpAllocator().allocate(asked).by_cell["a"] == (0, 4)


def _large(**more: object) -> Problem:
    rng = np.random.default_rng(1)
    running = [
        claim(f"run{i}", (rng.uniform(1, 9) * np.arange(61.0) ** 0.7).tolist(), current=4)
        for i in range(40)
    ]
    waiting = [
        claim(f"wait{i}", (rng.uniform(1, 9) * np.arange(61.0) ** 0.8).tolist(), min_nodes=7)
        for i in range(40)
    ]
    return problem(*running, *waiting, nodes=200, **more)


def test_without_time_running_jobs_stay_and_waiting_ones_start() -> None:
    asked = _large()
    answer = MilpAllocator(time_limit_s=0.0).allocate(asked)
    best = ExactAllocator().allocate(asked)
    assert not answer.proved_optimal
    assert all(answer.counts[f"run{i}"] == 4 for i in range(40))
    assert answer.counts["wait0"] >= 7
    assert answer.value < best.value <= answer.bound
    assert 0 < answer.gap < 1


def test_nothing_is_kept_beyond_supply_and_quota() -> None:
    asked = problem(
        claim("a", LINEAR, min_nodes=2, current=4, owner="ada"),
        claim("b", LINEAR, min_nodes=2, current=4, owner="ada"),
        claim("c", LINEAR, min_nodes=2, current=4, owner="bob"),
        nodes=7,
        quotas={"ada": 5},
    )
    standing = stand(asked)
    assert standing.counts == {"a": 4, "b": 0, "c": 3}
    assert checked(asked, standing) is standing


def test_without_time_a_waiting_job_starts_in_the_class_that_gives_most() -> None:
    cells = (Cell(2, "slow"), Cell(2, "fast", speed=2.0), Cell(2, "fast", "far", speed=2.0))
    asked = problem(
        claim("running", LINEAR, by_cell=(0, 1, 0)),
        claim("waiting", LINEAR),
        nodes=6,
        cells=cells,
    )
    standing = stand(asked)
    assert standing.by_cell == {"running": (0, 1, 0), "waiting": (0, 1, 2)}
    assert checked(asked, standing) is standing


def test_little_time_gives_an_answer_no_worse_than_to_stand_still() -> None:
    asked = _large()
    standing = MilpAllocator(time_limit_s=0.0).allocate(asked)
    answer = MilpAllocator(time_limit_s=0.3).allocate(asked)
    assert standing.value <= answer.value <= answer.bound


def test_nothing_moves_among_equals() -> None:
    asked = problem(claim("a", LINEAR, current=1), claim("b", LINEAR, current=3), nodes=4)
    assert MilpAllocator().allocate(asked).counts == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("cells", "by_cell", "message"),
    [
        ((Cell(3),), (), "add up"),
        ((Cell(2, "x"), Cell(2, "y")), (1, 1), "nodes of"),
        ((Cell(4),), (1, 1), "by cell"),
    ],
)
def test_malformed_cells_are_refused(
    cells: tuple[Cell, ...], by_cell: tuple[int, ...], message: str
) -> None:
    with pytest.raises(InvariantError, match=message):
        MilpAllocator().allocate(problem(claim("a", LINEAR, by_cell=by_cell), nodes=4, cells=cells))


def test_it_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    MilpAllocator().allocate(problem(claim("a", LINEAR), nodes=4))
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
