"""What to do without a solver's answer: let running jobs be, and start what fits beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from malletrain.core.problem import (
    Allocation,
    Cell,
    Claim,
    Problem,
    cell_yield,
    cells_worth,
)


def stand(problem: Problem) -> Allocation:
    """Keep the present allocation as far as it fits, then start waiting jobs in claim order.

    A job that has to shrink stays if it has its minimum. A waiting job starts with the count of
    the most worth that fits, in one class, if that is worth more than none. The bound is that of
    `bound_without_rivals`.
    """
    room = _Room(problem)
    kept = {claim.job_id: room.keep(claim) for claim in problem.claims}
    for claim in problem.claims:
        if claim.current_nodes == 0:
            kept[claim.job_id] = room.start(claim)
    value = sum(room.worth(claim, kept[claim.job_id]) for claim in problem.claims)
    return Allocation(
        counts={job_id: sum(by_cell) for job_id, by_cell in kept.items()},
        value=value,
        bound=bound_without_rivals(problem),
        proved_optimal=False,
        by_cell=kept if problem.cells else {},
    )


class _Room:
    """What is left while nodes are given away; the count form is one cell."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._cells: Sequence[Cell] = problem.cells or (Cell(problem.nodes),)
        self._free = [cell.nodes for cell in self._cells]
        self._quotas = dict(problem.quotas)
        self._power_w = math.inf if problem.power_cap_w is None else problem.power_cap_w

    def keep(self, claim: Claim) -> tuple[int, ...]:
        present = claim.current_by_cell or (
            (0,) * len(self._cells) if self._problem.cells else (claim.current_nodes,)
        )
        return self._take(claim, self._fit(claim, present, range(len(self._cells))))

    def start(self, claim: Claim) -> tuple[int, ...]:
        best = (0,) * len(self._cells)
        for node_class in sorted({cell.node_class for cell in self._cells}):
            order = [i for i, cell in enumerate(self._cells) if cell.node_class == node_class]
            order.sort(key=lambda i: -cell_yield(self._problem, self._cells[i]))
            for count in range(claim.min_nodes, claim.max_nodes + 1):
                tried = self._fit(claim, self._free, order, count)
                if sum(tried) < count:
                    break
                if self.worth(claim, tried) > self.worth(claim, best):
                    best = tried
        return self._take(claim, best)

    def worth(self, claim: Claim, by_cell: tuple[int, ...]) -> float:
        if self._problem.cells:
            return cells_worth(self._problem, claim, by_cell)
        return float(claim.values[by_cell[0]])

    def _fit(
        self, claim: Claim, wanted: Sequence[int], order: Sequence[int], most: int | None = None
    ) -> tuple[int, ...]:
        """Return what fits of the wanted nodes, filling cells in order; none if below minimum."""
        left = claim.max_nodes if most is None else most
        left = min(left, self._quotas.get(claim.owner, left))
        power_w = self._power_w
        by_cell = [0] * len(self._cells)
        for i in order:
            node_w = self._cells[i].power_w
            powered = left if node_w == 0 or math.isinf(power_w) else int(power_w / node_w)
            by_cell[i] = max(0, min(wanted[i], self._free[i], left, powered))
            left -= by_cell[i]
            power_w -= by_cell[i] * node_w
        if sum(by_cell) < claim.min_nodes:
            return (0,) * len(self._cells)
        return tuple(by_cell)

    def _take(self, claim: Claim, by_cell: tuple[int, ...]) -> tuple[int, ...]:
        for i, count in enumerate(by_cell):
            self._free[i] -= count
            self._power_w -= count * self._cells[i].power_w
        if claim.owner in self._quotas:
            self._quotas[claim.owner] -= sum(by_cell)
        return by_cell


def bound_without_rivals(problem: Problem) -> float:
    """Return what the claims would be worth if each had the best nodes to itself."""
    best_yield = max((cell_yield(problem, cell) for cell in problem.cells), default=1.0)
    bound = 0.0
    for claim in problem.claims:
        worth_of_none = float(claim.values[0])
        best = float(claim.values[claim.min_nodes :].max())
        bound += worth_of_none + max(0.0, best - worth_of_none) * best_yield
    return bound
