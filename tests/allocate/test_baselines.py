from __future__ import annotations

import pytest
from hypothesis import given, settings

from malletrain.allocate import ALLOCATORS, allocator
from malletrain.allocate.baselines import (
    EqualShareAllocator,
    FifoAllocator,
    GreedyAllocator,
    PapersMilpWithHalfRangeBug,
)
from malletrain.allocate.exact import ExactAllocator
from malletrain.core.problem import Cell, Problem
from malletrain.errors import ConfigError, UserError

from .stories import claim, count_problems, problem, rescaling

LINEAR = [float(n) for n in range(9)]


@pytest.mark.parametrize("name", ALLOCATORS)
@settings(max_examples=30, deadline=None)
@given(asked=count_problems())
def test_no_allocator_beats_the_exact_one_or_its_own_bound(name: str, asked: Problem) -> None:
    answer = allocator(name).allocate(asked)  # checked: it fits
    best = ExactAllocator().allocate(asked)
    tolerance = 1e-6 * max(1.0, abs(best.value))
    assert answer.value <= best.value + tolerance
    assert answer.bound >= best.value - tolerance


def test_fifo_gives_maxima_in_turn() -> None:
    asked = problem(
        claim("a", LINEAR[:5]),
        claim("b", LINEAR, min_nodes=4),
        claim("c", LINEAR[:3]),
        claim("d", LINEAR, min_nodes=4),
        nodes=13,
    )
    assert FifoAllocator().allocate(asked).counts == {"a": 4, "b": 8, "c": 1, "d": 0}


def test_equal_share_levels_what_bounds_allow() -> None:
    asked = problem(
        claim("a", LINEAR[:3]), claim("b", LINEAR, min_nodes=5), claim("c", LINEAR), nodes=12
    )
    assert EqualShareAllocator().allocate(asked).counts == {"a": 2, "b": 5, "c": 5}


def test_greedy_is_exact_where_values_are_concave() -> None:
    asked = problem(claim("a", [0.0, 9.0, 14.0, 16.0]), claim("b", [0.0, 8.0, 12.0, 15.0]), nodes=4)
    greedy = GreedyAllocator().allocate(asked)
    assert greedy.value == ExactAllocator().allocate(asked).value == 26.0


def test_greedy_stops_before_a_rescale_that_would_pay() -> None:
    # One node more does not pay for the rescale; six more do.
    rates = [float(n) for n in range(9)]
    asked = problem(claim("a", rescaling(rates, current=2, up_s=60, down_s=1)), nodes=8)
    assert GreedyAllocator().allocate(asked).counts == {"a": 2}
    assert ExactAllocator().allocate(asked).counts == {"a": 8}


def test_the_half_range_bug_cuts_off_the_optimum() -> None:
    # A job that starts on an empty machine gets half of it, plus one.
    asked = problem(claim("a", LINEAR), nodes=8)
    assert ExactAllocator().allocate(asked).counts == {"a": 8}
    assert PapersMilpWithHalfRangeBug().allocate(asked).counts == {"a": 4}


def test_the_half_range_bug_keeps_a_job_from_giving_its_nodes_up() -> None:
    heavy = [100.0 * n for n in range(9)]
    asked = problem(claim("light", LINEAR, current=8), claim("heavy", heavy), nodes=8)
    assert ExactAllocator().allocate(asked).counts == {"light": 0, "heavy": 8}
    assert PapersMilpWithHalfRangeBug().allocate(asked).counts == {"light": 4, "heavy": 4}


def test_the_papers_programme_stops_all_jobs_when_it_is_infeasible() -> None:
    asked = problem(
        claim("running", LINEAR, current=4), claim("big", [0.0] * 11, min_nodes=10), nodes=4
    )
    assert PapersMilpWithHalfRangeBug().allocate(asked).counts == {"running": 0, "big": 0}
    assert ExactAllocator().allocate(asked).counts == {"running": 4, "big": 0}


def test_the_papers_programme_stops_all_jobs_when_time_is_up() -> None:
    asked = problem(claim("running", LINEAR, current=4), nodes=6)
    assert PapersMilpWithHalfRangeBug(time_limit_s=0.0).allocate(asked).counts == {"running": 0}


@pytest.mark.parametrize("name", ["fifo", "equal-share", "greedy", "papers-milp-half-range-bug"])
def test_baselines_refuse_cells(name: str) -> None:
    with pytest.raises(UserError, match="milp"):
        allocator(name).allocate(problem(nodes=2, cells=(Cell(2),)))


def test_an_unknown_allocator_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'simplex'; there are exact, milp"):
        allocator("simplex")
