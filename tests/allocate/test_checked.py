from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.core.problem import Allocation, Cell, Problem, checked
from malletrain.errors import InvariantError

from .stories import claim, problem

LINEAR = [float(n) for n in range(9)]


def _answer(value: float, bound: float = 99.0, **counts: int) -> Allocation:
    return Allocation(counts, value, bound, proved_optimal=False)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (_answer(2.0, a=2), "not for the jobs"),
        (_answer(2.0, a=2, b=0, c=0), "not for the jobs"),
        (_answer(1.0, a=0, b=1), r"b 1 nodes, outside 2\.\.8"),
        (_answer(9.0, a=9, b=0), r"outside 1\.\.8"),
        (_answer(7.0, a=4, b=3), "7 nodes of 6"),
        (_answer(4.0, a=4, b=0), "quota is 3"),
        (_answer(5.0, a=2, b=2), "states a value of 5.0"),
        (_answer(4.0, 3.0, a=2, b=2), "states a bound of 3.0"),
    ],
)
def test_an_answer_that_does_not_fit_is_a_bug(answer: Allocation, message: str) -> None:
    asked = problem(
        claim("a", LINEAR, owner="ada"),
        claim("b", LINEAR, min_nodes=2),
        nodes=6,
        quotas={"ada": 3},
    )
    with pytest.raises(InvariantError, match=message):
        checked(asked, answer)


def _in_cells(**by_cell: tuple[int, ...]) -> Allocation:
    counts = {job_id: sum(nodes) for job_id, nodes in by_cell.items()}
    return Allocation(counts, float(sum(counts.values())), 99.0, False, by_cell)


@pytest.fixture
def asked() -> Problem:
    cells = (Cell(2, "x", power_w=100.0), Cell(4, "x", "far", power_w=100.0), Cell(2, "y"))
    return problem(
        claim("a", LINEAR, by_cell=(1, 1, 0)),
        claim("b", LINEAR),
        nodes=8,
        cells=cells,
        power_cap_w=450.0,
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (_in_cells(a=(1, 1, 0), b=(0, 1, 1)), "not one"),
        (_in_cells(a=(2, 0, 0), b=(0, 0, 0)), "moved a"),
        (_in_cells(a=(1, 1, 0), b=(2, 0, 0)), "3 of 2 nodes"),
        (_in_cells(a=(1, 1, 0), b=(0, 3, 0)), "500.0 W of 450.0 W"),
        (_in_cells(a=(1, 1), b=(0, 0)), "by cell"),
    ],
)
def test_an_answer_in_cells_that_does_not_fit_is_a_bug(
    asked: Problem, answer: Allocation, message: str
) -> None:
    with pytest.raises(InvariantError, match=message):
        checked(asked, answer)


def test_an_answer_that_fits_is_returned(asked: Problem) -> None:
    answer = _in_cells(a=(1, 2, 0), b=(0, 0, 2))
    assert checked(asked, answer) is answer
    with pytest.raises(InvariantError, match="by cell"):
        checked(asked, replace(answer, by_cell={}))
