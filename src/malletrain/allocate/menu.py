"""All claims of a problem side by side, checked, in the flat arrays that solvers work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from malletrain.core.problem import Claim, Problem
from malletrain.errors import InvariantError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.intp]

#: 128 KiB of values.
_BLOCK_CHOICES = 16384


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """Choice n of row r is at `starts[r] + n`; a choice that is not allowed is worth -inf.

    Claims that are alike share a row: identical jobs would make a solver go through all ways of
    swapping them.
    """

    #: Shape `(num_choices,)`.
    values: Floats
    #: Shape `(num_choices,)`: the n of each choice.
    nodes: NDArray[np.int32]
    #: Shape `(num_rows,)`.
    starts: Ints
    #: Shape `(num_rows,)`: how many choices each row has.
    sizes: Ints
    #: Shape `(num_rows,)`: how many claims each row stands for.
    copies: Ints

    @classmethod
    def of_values(cls, values: Sequence[Floats], copies: Sequence[int] | None = None) -> Menu:
        """Lay out copies of the values, a row each, as they are."""
        nodes, starts, sizes = _layout(tuple([v.size for v in values]))
        flat = np.concatenate(values, dtype=np.float64) if values else np.empty(0)
        num_claims = np.ones_like(sizes) if copies is None else np.array(copies, dtype=np.intp)
        return cls(flat, nodes, starts, sizes, num_claims)

    def at(self, counts: Ints) -> Ints:
        """Where the choices are by which each row gets its count."""
        return self.starts + counts

    def blocks(self) -> list[Menu]:
        """Cut the menu between rows: temporary arrays of a block stay in the processor's cache.

        Fresh memory for long ones would cost several times what is computed with them.
        """
        if self.values.size <= _BLOCK_CHOICES:
            return [self]
        cuts = np.searchsorted(self.starts, np.arange(0, self.values.size, _BLOCK_CHOICES))
        rows = np.unique(np.append(cuts, self.starts.size)).tolist()
        ends = [*self.starts.tolist(), self.values.size]
        return [
            Menu(
                values=self.values[ends[first] : ends[last]],
                nodes=self.nodes[ends[first] : ends[last]],
                starts=self.starts[first:last] - ends[first],
                sizes=self.sizes[first:last],
                copies=self.copies[first:last],
            )
            for first, last in pairwise(rows)
        ]

    def net(self, price: float) -> tuple[Floats, Floats]:
        """Return every choice's value less its nodes' price, and each row's best such value."""
        net: Floats = np.multiply(self.nodes, price, dtype=np.float64)
        np.subtract(self.values, net, out=net)
        return net, np.maximum.reduceat(net, self.starts)

    def losses(self, price: float) -> Floats:
        """Return by how much every choice is worse than its row's best at this price."""
        net, best = self.net(price)
        return np.subtract(np.repeat(best, self.sizes), net, out=net)


@lru_cache(maxsize=16)
def _layout(row_sizes: tuple[int, ...]) -> tuple[NDArray[np.int32], Ints, Ints]:
    """Return a menu's nodes, starts and sizes, read-only."""
    sizes = np.array(row_sizes, dtype=np.intp)
    starts = np.cumsum(sizes) - sizes
    nodes = np.arange(sizes.sum(), dtype=np.int32)
    nodes -= np.repeat(starts.astype(np.int32), sizes)
    for array in (nodes, starts, sizes):
        array.flags.writeable = False
    return nodes, starts, sizes


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A problem's claims as a menu, and which claims each of its rows stands for."""

    menu: Menu
    #: Shape `(num_claims,)`: claim indices, those of one row together, in the order of rows.
    order: Ints

    @classmethod
    def of(cls, problem: Problem, *, sets_owners_apart: bool = False) -> Offer:
        """Lay out what each claim may have of the problem's nodes.

        Raises:
            InvariantError: a claim, or the problem, is not well formed.
        """
        claims = problem.claims
        check_problem(problem)
        for claim in claims:
            check_bounds(claim)
            check_finite(claim)
        members = _same(claims, sets_owners_apart=sets_owners_apart)
        if len({claims[row[0]].values.item(-1) for row in members}) < len(members):
            members = _alike(claims, members, sets_owners_apart=sets_owners_apart)
        kinds = [claims[row[0]] for row in members]
        order = np.array([index for row in members for index in row], dtype=np.intp)
        menu = Menu.of_values([c.values for c in kinds], [len(row) for row in members])
        gaps = [(i, c.min_nodes) for i, c in enumerate(kinds) if c.min_nodes > 1]
        starts = menu.starts.tolist()
        for row, min_nodes in gaps:
            menu.values[starts[row] + 1 : starts[row] + min_nodes] = -np.inf
        if menu.sizes.max(initial=0) > problem.nodes + 1:
            menu.values[menu.nodes > problem.nodes] = -np.inf
        return cls(menu, order)

    def first_claims(self) -> Ints:
        """Return the index of each row's first claim."""
        firsts: Ints = self.order[np.cumsum(self.menu.copies) - self.menu.copies]
        return firsts


def _same(claims: Sequence[Claim], *, sets_owners_apart: bool) -> list[list[int]]:
    """Group claims that differ in nothing that an allocator looks at and share their values."""
    groups: dict[object, list[int]] = {}
    for index, claim in enumerate(claims):
        owner = claim.owner if sets_owners_apart else ""
        key = (id(claim.values), claim.current_nodes, claim.min_nodes, owner)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _alike(
    claims: Sequence[Claim], members: list[list[int]], *, sets_owners_apart: bool
) -> list[list[int]]:
    """Join the groups of `_same` whose values are equal though they are not shared."""
    groups: dict[object, list[int]] = {}
    for row in members:
        claim = claims[row[0]]
        owner = claim.owner if sets_owners_apart else ""
        key = (claim.values.tobytes(), claim.current_nodes, claim.min_nodes, owner)
        groups.setdefault(key, []).extend(row)
    return list(groups.values())


def check_problem(problem: Problem) -> None:
    """Raise InvariantError if the problem is not well formed, its claims' values aside."""
    if problem.nodes < 0:
        raise InvariantError(f"the problem has {problem.nodes} nodes; it needs 0 or more")
    if not 0 < problem.horizon_s < np.inf:
        raise InvariantError(f"the problem's horizon is {problem.horizon_s} s; it must be positive")
    if len({c.job_id for c in problem.claims}) != len(problem.claims):
        raise InvariantError("two claims of the problem are of one job; a job has one claim")
    for owner, quota in problem.quotas.items():
        if quota < 0:
            raise InvariantError(f"the quota of {owner} is {quota} nodes; it must be 0 or more")
    if problem.power_cap_w is not None and not problem.cells:
        raise InvariantError("the problem has a power cap but no cells that say what a node draws")
    if problem.cells:
        _check_cells(problem)


def _check_cells(problem: Problem) -> None:
    if sum(cell.nodes for cell in problem.cells) != problem.nodes:
        raise InvariantError(f"the cells do not add up to the problem's {problem.nodes} nodes")
    for claim in problem.claims:
        present = claim.current_by_cell
        if sum(present) != claim.current_nodes or len(present) not in (0, len(problem.cells)):
            raise InvariantError(
                f"the claim of {claim.job_id} has {claim.current_nodes} nodes, by cell {present}"
            )
        classes = {
            cell.node_class for nodes, cell in zip(present, problem.cells, strict=False) if nodes
        }
        if len(classes) > 1:
            raise InvariantError(f"the claim of {claim.job_id} has nodes of {sorted(classes)}")


def check_bounds(claim: Claim) -> None:
    """Raise InvariantError if the claim's bounds and values do not belong together."""
    if (
        not 1 <= claim.min_nodes <= claim.max_nodes
        or len(claim.values) != claim.max_nodes + 1
        or claim.current_nodes < 0
    ):
        raise InvariantError(
            f"the claim of {claim.job_id} has bounds {claim.min_nodes}..{claim.max_nodes}, "
            f"{len(claim.values)} values and {claim.current_nodes} present nodes; it needs "
            "1 <= min <= max, max + 1 values and no negative count"
        )


def check_finite(claim: Claim) -> None:
    """Raise InvariantError if an allowed choice of the claim has no finite worth."""
    values = claim.values
    if np.isfinite(values).all():
        return
    allowed = np.r_[0, claim.min_nodes : claim.max_nodes + 1]
    for count in allowed[~np.isfinite(values[allowed])][:1].tolist():
        raise InvariantError(
            f"the worth of {count} nodes to {claim.job_id} is {values[count]}; "
            "an allocator needs finite values"
        )
