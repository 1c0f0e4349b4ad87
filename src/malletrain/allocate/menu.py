"""All claims of a problem side by side, checked, in the flat arrays that solvers work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from malletrain.core.problem import Claim, Problem
from malletrain.errors import InvariantError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.intp]

#: What staying put is worth beside an equal alternative, relative to the job's best worth. Above
#: the rounding of sums over thousands of jobs, far below what a curve can be known to.
STAY_BONUS = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """Choice n of claim j is at `starts[j] + n`; a choice that is not allowed is worth -inf."""

    #: Shape `(num_choices,)`.
    values: Floats
    #: Shape `(num_choices,)`: the n of each choice, as floats for the arithmetic done with them.
    nodes: Floats
    #: Shape `(num_claims,)`.
    starts: Ints
    #: Shape `(num_claims,)`: how many choices each claim has.
    sizes: Ints

    @classmethod
    def of(cls, problem: Problem) -> Menu:
        """Lay out what each claim may have of the problem's nodes.

        Raises:
            InvariantError: a claim, or the problem, is not well formed.
        """
        claims = problem.claims
        _check_problem(problem)
        min_nodes = np.array([c.min_nodes for c in claims], dtype=np.intp)
        max_nodes = np.array([c.max_nodes for c in claims], dtype=np.intp)
        sizes = np.array([len(c.values) for c in claims], dtype=np.intp)
        _check_bounds(claims, min_nodes, max_nodes, sizes)
        menu = cls.from_values([c.values for c in claims])
        gaps = np.flatnonzero(min_nodes > 1)
        for start, first in zip(menu.starts[gaps].tolist(), min_nodes[gaps].tolist(), strict=True):
            menu.values[start + 1 : start + first] = -np.inf
        num_allowed = menu.values.size - int((min_nodes - 1).sum())
        if np.count_nonzero(np.isfinite(menu.values)) != num_allowed:
            _raise_not_finite(claims)
        if max_nodes.max(initial=0) > problem.nodes:
            menu.values[menu.nodes > problem.nodes] = -np.inf
        return menu

    @classmethod
    def from_values(cls, values: Sequence[Floats]) -> Menu:
        """Lay out copies of the values as they are."""
        sizes = np.array([len(v) for v in values], dtype=np.intp)
        starts = np.cumsum(sizes) - sizes
        flat = np.concatenate(values, dtype=np.float64) if values else np.empty(0)
        nodes = np.arange(flat.size, dtype=np.float64)
        nodes -= np.repeat(starts.astype(np.float64), sizes)
        return cls(flat, nodes, starts, sizes)

    def reward_staying(self, claims: Sequence[Claim]) -> None:
        """Add a bonus to each claim's present count, so that nothing moves without gain."""
        current = np.array([c.current_nodes for c in claims], dtype=np.intp)
        scale = np.abs(np.maximum.reduceat(self.values, self.starts))
        mean = float(scale.mean()) or 1.0
        stays = np.flatnonzero(current < self.sizes)
        bonus = STAY_BONUS * (scale + 1e-3 * mean)
        self.values[self.starts[stays] + current[stays]] += bonus[stays]

    def at(self, counts: Ints) -> Ints:
        """Where the choices are by which each claim gets its count."""
        return self.starts + counts

    def net(self, price: float) -> tuple[Floats, Floats]:
        """Return every choice's value less its nodes' price, and each claim's best such value."""
        net = price * self.nodes
        np.subtract(self.values, net, out=net)
        return net, np.maximum.reduceat(net, self.starts)

    def counts_at(self, price: float) -> Ints:
        """Return the count that is best for each claim where a node costs `price`: the lowest."""
        net, best = self.net(price)
        hits = np.flatnonzero(net == np.repeat(best, self.sizes))
        first = hits[np.searchsorted(hits, self.starts)]
        return self.nodes[first].astype(np.intp)

    def between(self, claims: Ints, lowest: Ints, highest: Ints) -> Menu:
        """Return the menu of some claims that is left between two counts, both included.

        Its `nodes` still say the full counts, so its claims' choices do not start at 0 nodes.
        """
        sizes = highest - lowest + 1
        starts = np.cumsum(sizes) - sizes
        chosen = np.arange(int(sizes.sum())) + np.repeat(
            self.starts[claims] + lowest - starts, sizes
        )
        return Menu(self.values[chosen], self.nodes[chosen], starts, sizes)


def _check_problem(problem: Problem) -> None:
    if problem.nodes < 0:
        raise InvariantError(f"the problem has {problem.nodes} nodes; it needs 0 or more")
    if not 0 < problem.horizon_s < np.inf:
        raise InvariantError(f"the problem's horizon is {problem.horizon_s} s; it must be positive")
    if len({c.job_id for c in problem.claims}) != len(problem.claims):
        raise InvariantError("two claims of the problem are of one job; a job has one claim")
    for owner, quota in problem.quotas.items():
        if quota < 0:
            raise InvariantError(f"the quota of {owner} is {quota} nodes; it must be 0 or more")
    if problem.cells and sum(cell.nodes for cell in problem.cells) != problem.nodes:
        raise InvariantError(f"the cells do not add up to the problem's {problem.nodes} nodes")
    if problem.power_cap_w is not None and not problem.cells:
        raise InvariantError("the problem has a power cap but no cells that say what a node draws")


def _check_bounds(claims: Sequence[Claim], min_nodes: Ints, max_nodes: Ints, sizes: Ints) -> None:
    is_wrong = (min_nodes < 1) | (max_nodes < min_nodes) | (sizes != max_nodes + 1)
    for index in np.flatnonzero(is_wrong)[:1].tolist():
        claim = claims[index]
        raise InvariantError(
            f"the claim of {claim.job_id} has bounds {claim.min_nodes}..{claim.max_nodes} and "
            f"{len(claim.values)} values; it needs 1 <= min <= max and max + 1 values"
        )
    for claim in claims:
        if claim.current_nodes < 0:
            raise InvariantError(
                f"the claim of {claim.job_id} has {claim.current_nodes} present nodes"
            )


def _raise_not_finite(claims: Sequence[Claim]) -> None:
    for claim in claims:
        allowed = np.r_[0, claim.min_nodes : claim.max_nodes + 1]
        for count in allowed[~np.isfinite(claim.values[allowed])][:1].tolist():
            raise InvariantError(
                f"the worth of {count} nodes to {claim.job_id} is {claim.values[count]}; "
                "an allocator needs finite values"
            )
