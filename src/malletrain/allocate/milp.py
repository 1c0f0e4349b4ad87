"""The allocation as a mixed-integer linear programme: slower, but it can say more than counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from malletrain.allocate.cells import solve_cells
from malletrain.allocate.highs import Draft, maximise
from malletrain.allocate.menu import Menu, Offer
from malletrain.allocate.standing import stand
from malletrain.core.problem import Allocation, Problem, checked
from malletrain.errors import InvariantError


@dataclass(frozen=True, slots=True)
class MilpAllocator:
    """Solves the count form, or the cell form where the problem has cells, with HiGHS.

    **Count form.** `z[j, n]` is 1 if claim j gets n nodes, for n = 0 and min_j <= n <= max_j::

        maximise    sum_jn values_j(n) z[j, n]
        subject to  sum_n z[j, n] = 1                        for each claim j
                    sum_jn n z[j, n] <= nodes
                    sum_jn n z[j, n] <= quota_o              over the claims of each owner o

    Its relaxation is as tight as the envelopes of the values, whatever their shape. Claims that
    are alike share columns, which then count claims.

    **Cell form.** A cell c is the nodes of one class in one group. `z[j, k, n]` is 1 if claim j
    gets n nodes of class k, and `y[j, k, n, c]` are how many of them are in cell c, of class k::

        maximise    sum_j values_j(0)
                    + sum_jknc y[j, k, n, c] yield_c (values_j(n) - values_j(0)) / n
        subject to  z[j, 0] + sum_kn z[j, k, n] = 1          for each claim j: one class
                    sum_c y[j, k, n, c] = n z[j, k, n]
                    sum_jkn y[j, k, n, c] <= nodes_c         for each cell c
                    sum_jknc power_c y[j, k, n, c] <= power cap
                    quotas as above

    where yield_c is the class's speed times the share of the horizon that a node of the cell is
    likely to stay. No job migrates: one that runs keeps its class, y is at least its present
    nodes of each cell where n is no less than it has (`y >= present_c z`), and at most these where
    n is less (`y <= present_c z`). Groups are kept apart so that this can be said; a job's spread
    over groups costs nothing here and is left to placement.

    The answer is rounded, checked and valued anew. At the time limit it is the best found, with
    the bound that was proved; the standing allocation (`standing`) where that is as good, or where
    nothing was found. Within the time limit the same problem always gets the same answer.
    """

    #: HiGHS keeps it; the rest of the work is small beside it.
    time_limit_s: float = 10.0

    def allocate(self, problem: Problem) -> Allocation:
        offer = Offer.of(problem, sets_owners_apart=bool(problem.quotas))
        standing = checked(problem, stand(problem))
        if not problem.claims:
            return replace(standing, bound=0.0, proved_optimal=True)
        if problem.cells:
            found = solve_cells(problem, self.time_limit_s)
        else:
            found = solve_counts(problem, offer, offer.menu, self.time_limit_s)
        if found is None or not _fits(problem, found):
            return standing
        # Among equals, nothing moves.
        best = found if found.value > standing.value + 1e-9 * abs(standing.value) else standing
        bound = best.value if found.proved_optimal else max(found.bound, best.value)
        return checked(
            problem,
            replace(best, bound=min(bound, standing.bound), proved_optimal=found.proved_optimal),
        )


def _fits(problem: Problem, allocation: Allocation) -> bool:
    """Tell whether a solver's answer survived its rounding."""
    try:
        checked(problem, allocation)
    except InvariantError:
        return False
    return True


def solve_counts(
    problem: Problem, offer: Offer, menu: Menu, time_limit_s: float
) -> Allocation | None:
    """Solve the count form over `menu`, which has the offer's rows; None if nothing was found."""
    choices = np.flatnonzero(np.isfinite(menu.values))
    rows = np.repeat(np.arange(menu.sizes.size), menu.sizes)[choices]
    nodes = menu.nodes[choices].astype(np.float64)
    columns = np.arange(choices.size)
    draft = Draft()
    for copies in menu.copies.tolist():
        draft.add_row(copies, copies)
    draft.add_entries(rows, columns, np.ones(choices.size))
    draft.add_entries(draft.add_row(-np.inf, problem.nodes), columns, nodes)
    owners = np.array([problem.claims[i].owner for i in offer.first_claims().tolist()])[rows]
    for owner, quota in problem.quotas.items():
        own = np.flatnonzero(owners == owner)
        draft.add_entries(draft.add_row(-np.inf, quota), own, nodes[own])
    outcome = maximise(draft.program(menu.values[choices]), time_limit_s)
    if outcome.solution is None:
        return None
    by_copy = np.repeat(menu.nodes[choices], np.maximum(0, outcome.solution))
    if by_copy.size != len(problem.claims):
        return None
    counts = np.empty(by_copy.size, dtype=np.intp)
    counts[offer.order] = by_copy
    value = sum(
        float(claim.values[count])
        for claim, count in zip(problem.claims, counts.tolist(), strict=True)
    )
    return Allocation(
        counts={c.job_id: count for c, count in zip(problem.claims, counts.tolist(), strict=True)},
        value=value,
        bound=outcome.bound,
        proved_optimal=outcome.is_optimal,
    )
