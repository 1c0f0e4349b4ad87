"""Integer linear programmes, solved by HiGHS: on one thread, with a fixed seed, in silence."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from highspy._core import _Highs
from numpy.typing import ArrayLike, NDArray

from malletrain.allocate.menu import Floats, Ints
from malletrain.errors import InvariantError


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Maximise `gains @ x` over whole x >= 0 with `lowest <= entries @ x <= highest`."""

    #: Shape `(num_columns,)`.
    gains: Floats
    #: The matrix as triplets, each of shape `(num_entries,)`.
    rows: Ints
    columns: Ints
    entries: Floats
    #: Shape `(num_rows,)`.
    lowest: Floats
    highest: Floats


class Draft:
    """A programme that is being written, row by row."""

    def __init__(self) -> None:
        self._bounds: list[tuple[float, float]] = []
        self._rows: list[Ints] = []
        self._columns: list[Ints] = []
        self._entries: list[Floats] = []

    def add_row(self, lowest: float, highest: float) -> int:
        """Bound a new row and return its number."""
        self._bounds.append((lowest, highest))
        return len(self._bounds) - 1

    def add_entries(
        self, rows: int | ArrayLike, columns: ArrayLike, entries: float | ArrayLike
    ) -> None:
        """Add entries of the matrix; one row, or one entry, stands for all columns."""
        places = np.asarray(columns, dtype=np.intp)
        self._columns.append(places)
        self._rows.append(np.broadcast_to(np.asarray(rows, dtype=np.intp), places.shape))
        self._entries.append(np.broadcast_to(np.asarray(entries, dtype=np.float64), places.shape))

    def program(self, gains: Floats) -> Program:
        bounds = np.array(self._bounds, dtype=np.float64)
        return Program(
            gains=gains,
            rows=np.concatenate(self._rows),
            columns=np.concatenate(self._columns),
            entries=np.concatenate(self._entries),
            lowest=bounds[:, 0],
            highest=bounds[:, 1],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    #: The best x found, rounded; None where none was found.
    solution: NDArray[np.int64] | None
    #: Proved: no x gains more. Infinite where nothing was proved.
    bound: float
    is_optimal: bool


def maximise(program: Program, time_limit_s: float) -> Outcome:
    """Solve the programme, for about so long at most: HiGHS looks at the time between its steps."""
    # The solver's tolerances are absolute; they are meant for gains about 1.
    scale = float(np.abs(program.gains).max(initial=0.0)) or 1.0
    # The derived `Highs` prints a banner before it can be told to be silent.
    solver = _Highs()
    for option, setting in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 0),
        ("time_limit", time_limit_s),
        ("mip_rel_gap", 1e-9),
        ("mip_abs_gap", 1e-9),
        # After a restart, HiGHS 1.16 was seen to propagate old conflicts for minutes on end in a
        # rounding heuristic that does not look at the time (count form, 1,000 jobs).
        ("mip_allow_restart", False),
    ):
        solver.setOptionValue(option, setting)
    if solver.passModel(_model(program, scale)) == highspy.HighsStatus.kError:
        raise InvariantError("HiGHS refused the allocator's model; this is a bug of the allocator")
    solver.run()
    status = solver.getModelStatus()
    info = solver.getInfo()
    solution = None
    if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
        solution = np.rint(solver.getSolution().col_value).astype(np.int64)
    return Outcome(
        solution=solution,
        bound=scale * float(info.mip_dual_bound),
        is_optimal=status == highspy.HighsModelStatus.kOptimal,
    )


def _model(program: Program, scale: float) -> highspy.HighsLp:
    num_columns = program.gains.size
    by_column = np.argsort(program.columns, kind="stable")
    model = highspy.HighsLp()
    model.num_col_ = num_columns
    model.num_row_ = program.lowest.size
    model.sense_ = highspy.ObjSense.kMaximize
    model.col_cost_ = program.gains / scale
    model.col_lower_ = np.zeros(num_columns)
    model.col_upper_ = np.full(num_columns, highspy.kHighsInf)
    model.row_lower_ = program.lowest
    model.row_upper_ = program.highest
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.concatenate(
        [[0], np.cumsum(np.bincount(program.columns, minlength=num_columns))]
    )
    model.a_matrix_.index_ = program.rows[by_column]
    model.a_matrix_.value_ = program.entries[by_column]
    model.integrality_ = [highspy.HighsVarType.kInteger] * num_columns
    return model
