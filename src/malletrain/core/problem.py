"""The allocation problem and its answer, as every allocator takes and gives them.

They live in the core, below the allocators, so that `decide` can state a problem without knowing
who solves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from malletrain.errors import InvariantError


@dataclass(frozen=True, slots=True)
class Cell:
    """Nodes that are alike for the allocator: one class, one group."""

    nodes: int
    node_class: str = ""
    group: str = ""
    #: How long they are likely to stay; None where nothing is known, which counts as for good.
    lifetime_s: float | None = None
    #: Throughput of a node of this class over that of the reference class.
    speed: float = 1.0
    power_w: float = 0.0


class Claim(Struct, frozen=True, eq=False):
    """What a job would make of each number of nodes.

    `values[n]` is the worth of n nodes over the horizon, shape `(max_nodes + 1,)`, float64; the
    papers' `T * rate(n) - [n > c] * up_s * rate(c) - [n < c] * down_s * rate(c)` under the samples
    objective (BFTrainer, section 3.3). `values[0]` is the worth of none; entries strictly between
    0 and `min_nodes` are not allowed and are ignored. Claims of jobs that are alike may share one
    array.
    """

    job_id: str
    min_nodes: int
    max_nodes: int
    current_nodes: int
    values: NDArray[np.float64]
    owner: str = ""
    #: Present nodes by cell, in the order of `Problem.cells`; empty for the count form.
    current_by_cell: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Maximise the sum of `values[count]` over jobs: counts are 0 or within bounds, and fit."""

    claims: tuple[Claim, ...]
    #: Nodes there are in all; the sum over `cells` where they are given.
    nodes: int
    horizon_s: float
    cells: tuple[Cell, ...] = ()
    #: Owner -> most nodes at once.
    quotas: Mapping[str, int] = field(default_factory=dict)
    power_cap_w: float | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """An answer that fits its problem. `bound` is proved: no answer is worth more."""

    #: Job id -> nodes, for every claim.
    counts: Mapping[str, int]
    value: float
    bound: float
    proved_optimal: bool
    #: Job id -> nodes by cell, where the problem has cells.
    by_cell: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """How far the answer may be from the optimum, relative to the bound."""
        return (
            0.0
            if self.bound == self.value
            else (self.bound - self.value) / max(abs(self.bound), 1e-12)
        )


class Allocator(Protocol):
    """Solves a problem; the same problem always gets the same answer."""

    def allocate(self, problem: Problem) -> Allocation: ...


def cells_worth(problem: Problem, claim: Claim, by_cell: Sequence[int]) -> float:
    """Return what nodes of these cells are worth to the claim.

    What n nodes gain over none, `values[n] - values[0]`, is shared equally among them; a node
    keeps of its share the part of the horizon that it is likely to stay, times its class's speed.
    """
    count = sum(by_cell)
    worth_of_none = float(claim.values[0])
    if count == 0:
        return worth_of_none
    used = sum(
        nodes * cell_yield(problem, cell)
        for nodes, cell in zip(by_cell, problem.cells, strict=True)
    )
    return worth_of_none + (float(claim.values[count]) - worth_of_none) * used / count


def cell_yield(problem: Problem, cell: Cell) -> float:
    """Return what a node of the cell yields, relative to a reference node that stays."""
    if cell.lifetime_s is None:
        return cell.speed
    return cell.speed * min(1.0, max(0.0, cell.lifetime_s) / problem.horizon_s)


def checked(problem: Problem, allocation: Allocation) -> Allocation:
    """Return the allocation if it fits the problem.

    Raises:
        InvariantError: a count is out of its job's bounds, more nodes, quota or power is given
            away than there is, a job would have to migrate or mix classes, or the stated value is
            not what the allocation is worth. Solvers that work with continuous helper variables
            have returned such answers after rounding.
    """
    claims = problem.claims
    job_ids = [claim.job_id for claim in claims]
    if len(allocation.counts) != len(claims) or not allocation.counts.keys() >= set(job_ids):
        raise InvariantError("the allocator's answer is not for the jobs of its problem")
    total = 0
    value = 0.0
    for claim, count in zip(claims, map(allocation.counts.__getitem__, job_ids), strict=True):
        if count and not claim.min_nodes <= count <= claim.max_nodes:
            raise InvariantError(
                f"allocator gave {claim.job_id} {count} nodes, "
                f"outside {claim.min_nodes}..{claim.max_nodes}"
            )
        total += count
        if problem.cells:
            by_cell = allocation.by_cell.get(claim.job_id, ())
            _check_cells_of_job(problem, claim, by_cell, count)
            value += cells_worth(problem, claim, by_cell)
        else:
            value += claim.values.item(count)
    if total > problem.nodes:
        raise InvariantError(f"allocator gave away {total} nodes of {problem.nodes}")
    _check_quotas(problem, allocation)
    _check_supply_of_cells(problem, allocation)
    tolerance = 1e-6 * max(1.0, abs(value))
    if abs(value - allocation.value) > tolerance:
        raise InvariantError(
            f"allocator states a value of {allocation.value}, its answer is worth {value}"
        )
    if allocation.bound < value - tolerance:
        raise InvariantError(
            f"allocator states a bound of {allocation.bound}, its answer is worth {value}"
        )
    return allocation


def _check_cells_of_job(
    problem: Problem, claim: Claim, by_cell: tuple[int, ...], count: int
) -> None:
    if len(by_cell) != len(problem.cells) or sum(by_cell) != count or min(by_cell) < 0:
        raise InvariantError(f"allocator gave {claim.job_id} {count} nodes, by cell {by_cell}")
    classes = {cell.node_class for nodes, cell in zip(by_cell, problem.cells, strict=True) if nodes}
    if len(classes) > 1:
        raise InvariantError(f"allocator gave {claim.job_id} nodes of {sorted(classes)}, not one")
    present = claim.current_by_cell or (0,) * len(problem.cells)
    grown = sum(new > old for new, old in zip(by_cell, present, strict=True))
    shrunk = sum(new < old for new, old in zip(by_cell, present, strict=True))
    if grown and shrunk:
        raise InvariantError(f"allocator moved {claim.job_id} from {present} to {by_cell} by cell")


def _check_quotas(problem: Problem, allocation: Allocation) -> None:
    if not problem.quotas:
        return
    used = dict.fromkeys(problem.quotas, 0)
    for claim in problem.claims:
        if claim.owner in used:
            used[claim.owner] += allocation.counts[claim.job_id]
    for owner, nodes in used.items():
        if nodes > problem.quotas[owner]:
            raise InvariantError(
                f"allocator gave {owner} {nodes} nodes, the quota is {problem.quotas[owner]}"
            )


def _check_supply_of_cells(problem: Problem, allocation: Allocation) -> None:
    if not problem.cells:
        return
    power_w = 0.0
    for index, cell in enumerate(problem.cells):
        used = sum(by_cell[index] for by_cell in allocation.by_cell.values())
        power_w += used * cell.power_w
        if used > cell.nodes:
            raise InvariantError(
                f"allocator gave away {used} of {cell.nodes} nodes of {cell.node_class!r} "
                f"in {cell.group!r}"
            )
    if problem.power_cap_w is not None and power_w > problem.power_cap_w * (1 + 1e-9):
        raise InvariantError(f"allocator would draw {power_w} W of {problem.power_cap_w} W")
