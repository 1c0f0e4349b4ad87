"""The cell form of the allocation as a programme; `MilpAllocator` states it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.allocate.highs import Draft, Outcome, maximise
from malletrain.core.problem import Allocation, Claim, Problem, cell_yield, cells_worth


def solve_cells(problem: Problem, time_limit_s: float) -> Allocation | None:
    """Solve the cell form; None if nothing was found."""
    form = _CellForm(problem)
    for claim in problem.claims:
        form.add_claim(claim)
    outcome = form.solve(time_limit_s)
    if outcome.solution is None:
        return None
    by_cell = form.by_cell(outcome.solution)
    return Allocation(
        counts={job_id: sum(nodes) for job_id, nodes in by_cell.items()},
        value=sum(cells_worth(problem, c, by_cell[c.job_id]) for c in problem.claims),
        bound=outcome.bound + sum(float(c.values[0]) for c in problem.claims),
        proved_optimal=outcome.is_optimal,
        by_cell=by_cell,
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    """A column `z[j, k, n]` and its cells' columns `y[j, k, n, c]`."""

    claim: Claim
    nodes: int
    column: int
    #: Cell index -> column.
    cells: dict[int, int]


class _CellForm:
    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.draft = Draft()
        #: By column.
        self.gains: list[float] = []
        self._yields = [cell_yield(problem, cell) for cell in problem.cells]
        self._choices: list[_Choice] = []
        self._supply = [self.draft.add_row(-np.inf, cell.nodes) for cell in problem.cells]
        self._quotas = {o: self.draft.add_row(-np.inf, q) for o, q in problem.quotas.items()}
        self._power = None
        if problem.power_cap_w is not None:
            self._power = self.draft.add_row(-np.inf, problem.power_cap_w)

    def add_claim(self, claim: Claim) -> None:
        """Add the claim's choices other than none, of which it takes at most one."""
        one_choice = self.draft.add_row(0, 1)
        for nodes, cells in self._options(claim):
            choice = self._add_choice(claim, nodes, cells)
            self.draft.add_entries(one_choice, [choice.column], 1)
            if claim.current_nodes:
                self._forbid_migration(choice)

    def solve(self, time_limit_s: float) -> Outcome:
        if not self.gains:  # no claim has a choice, and HiGHS takes no empty model
            return Outcome(np.empty(0, dtype=np.int64), 0.0, is_optimal=True)
        return maximise(self.draft.program(np.array(self.gains)), time_limit_s)

    def _options(self, claim: Claim) -> Iterator[tuple[int, list[int]]]:
        """Yield each count with the cells it may be from."""
        cells = self._problem.cells
        own = {cells[i].node_class for i, nodes in enumerate(claim.current_by_cell) if nodes}
        for node_class in sorted(own or {cell.node_class for cell in cells}):
            of_class = [i for i, cell in enumerate(cells) if cell.node_class == node_class]
            for nodes in range(claim.min_nodes, claim.max_nodes + 1):
                usable = of_class
                if nodes < claim.current_nodes:
                    usable = [i for i in of_class if claim.current_by_cell[i]]
                if nodes <= sum(cells[i].nodes for i in usable):
                    yield nodes, usable

    def _add_choice(self, claim: Claim, nodes: int, cells: list[int]) -> _Choice:
        column = len(self.gains)
        choice = _Choice(
            claim, nodes, column, {cell: column + 1 + i for i, cell in enumerate(cells)}
        )
        share = float(claim.values[nodes] - claim.values[0]) / nodes
        self.gains += [0.0, *(share * self._yields[cell] for cell in cells)]
        self._choices.append(choice)
        draft = self.draft
        columns = list(choice.cells.values())
        is_all_of_it = draft.add_row(0, 0)
        draft.add_entries(is_all_of_it, [column], -nodes)
        draft.add_entries(is_all_of_it, columns, 1)
        draft.add_entries([self._supply[cell] for cell in cells], columns, 1)
        if claim.owner in self._quotas:
            draft.add_entries(self._quotas[claim.owner], [column], nodes)
        if self._power is not None:
            power_w = [self._problem.cells[cell].power_w for cell in cells]
            draft.add_entries(self._power, columns, power_w)
        return choice

    def _forbid_migration(self, choice: _Choice) -> None:
        """Let a job that grows keep its nodes of each cell, and one that shrinks get none."""
        present = choice.claim.current_by_cell
        is_growing = choice.nodes >= choice.claim.current_nodes
        for cell, column in choice.cells.items():
            if present[cell]:
                row = self.draft.add_row(*((0, np.inf) if is_growing else (-np.inf, 0)))
                self.draft.add_entries(row, [column, choice.column], [1, -present[cell]])

    def by_cell(self, solution: NDArray[np.int64]) -> dict[str, tuple[int, ...]]:
        """Read off each job's nodes by cell."""
        none = (0,) * len(self._problem.cells)
        found = {claim.job_id: none for claim in self._problem.claims}
        for choice in self._choices:
            if solution[choice.column] == 1:
                nodes = list(none)
                for cell, column in choice.cells.items():
                    nodes[cell] = int(solution[column])
                found[choice.claim.job_id] = tuple(nodes)
        return found
