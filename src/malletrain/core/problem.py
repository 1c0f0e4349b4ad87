"""The allocation problem and its answer, as every allocator takes and gives them.

They live in the core, below the allocators, so that `decide` can state a problem without knowing
who solves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from malletrain.errors import InvariantError


@dataclass(frozen=True, slots=True)
class Cell:
    """Nodes that are alike for the allocator: one class, one group."""

    nodes: int
    node_class: str = ""
    group: str = ""
    #: How long they are likely to stay; None where nothing is known.
    lifetime_s: float | None = None
    #: Throughput of a node of this class over that of the reference class.
    speed: float = 1.0
    power_w: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """What a job would make of each number of nodes.

    `values[n]` is the worth of n nodes over the horizon, shape `(max_nodes + 1,)`, float64; the
    papers' `T * rate(n) - [n > c] * up_s * rate(c) - [n < c] * down_s * rate(c)` under the samples
    objective (BFTrainer, section 3.3). `values[0]` is the worth of none; entries strictly between
    0 and `min_nodes` are not allowed and are ignored.
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


def checked(problem: Problem, allocation: Allocation) -> Allocation:
    """Return the allocation if it fits the problem.

    Raises:
        InvariantError: a count is out of its job's bounds, too many nodes are given away, or the
            stated value is not what the counts are worth. Solvers that work with continuous
            helper variables have returned such answers after rounding.
    """
    total = 0
    value = 0.0
    for claim in problem.claims:
        count = allocation.counts[claim.job_id]
        if count != 0 and not claim.min_nodes <= count <= claim.max_nodes:
            raise InvariantError(
                f"allocator gave {claim.job_id} {count} nodes, "
                f"outside {claim.min_nodes}..{claim.max_nodes}"
            )
        total += count
        value += float(claim.values[count])
    if total > problem.nodes:
        raise InvariantError(f"allocator gave away {total} nodes of {problem.nodes}")
    if not problem.cells and abs(value - allocation.value) > 1e-6 * max(1.0, abs(value)):
        raise InvariantError(
            f"allocator states a value of {allocation.value}, its counts are worth {value}"
        )
    return allocation
