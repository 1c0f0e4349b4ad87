"""The default allocator: exact over counts, in milliseconds for a thousand jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from malletrain.allocate.knapsack import Packing, pack
from malletrain.allocate.menu import Floats, Ints, Menu
from malletrain.core.problem import Allocation, Problem, checked
from malletrain.errors import UserError


@dataclass(frozen=True, slots=True)
class ExactAllocator:
    """Finds the optimum of the count form and proves it.

    Nodes of one class are interchangeable, so the papers' matrix of jobs and nodes (BFTrainer,
    section 3.4) comes down to one count a job: `knapsack` solves that. Among equals it stays at
    the present allocation: a gain below a billionth of a job's best worth moves nothing, and
    optimal is meant to within that.

    A quota makes the problem one of knapsacks in a knapsack. Quotas that the optimum without them
    meets change nothing; the jobs of an owner over quota become one claim, whose worth of each
    count is that of its best division among them.
    """

    #: Most table cells to fill in before the best answer so far is given, with its bound: about a
    #: nanosecond and a half each. A thousand mixed jobs take some ten thousand.
    work_limit: int = 200_000_000

    def allocate(self, problem: Problem) -> Allocation:
        if problem.cells:
            raise UserError(
                "the exact allocator counts nodes of one kind, but the problem has cells "
                '(classes, lifetimes, power): set the allocator to "milp"'
            )
        claims = problem.claims
        menu = Menu.of(problem)
        if not claims:
            return checked(problem, Allocation({}, 0.0, 0.0, True))
        worth = menu.values.copy()
        menu.reward_staying(claims)
        packing = _pack_within_quotas(problem, menu, self.work_limit)
        value = float(worth[menu.at(packing.counts)].sum())
        is_optimal = packing.max_missing == 0.0
        bound = value
        if not is_optimal:
            bound = float(menu.values[menu.at(packing.counts)].sum()) + packing.max_missing
        counts = dict(zip([c.job_id for c in claims], packing.counts.tolist(), strict=True))
        return checked(problem, Allocation(counts, value, bound, is_optimal))


def _pack_within_quotas(problem: Problem, menu: Menu, work_limit: int) -> Packing:
    packing = pack(menu, problem.nodes, work_limit)
    members: dict[str, list[int]] = {}
    while True:
        over = _owners_over_quota(problem, packing.counts)
        if not over:
            return packing
        for owner in over:
            members[owner] = [i for i, c in enumerate(problem.claims) if c.owner == owner]
        packing = _pack_with_shared(problem, menu, members, work_limit)


def _owners_over_quota(problem: Problem, counts: Ints) -> list[str]:
    used = dict.fromkeys(problem.quotas, 0)
    if used:
        for claim, count in zip(problem.claims, counts.tolist(), strict=True):
            if claim.owner in used:
                used[claim.owner] += count
    return [owner for owner, nodes in used.items() if nodes > problem.quotas[owner]]


def _pack_with_shared(
    problem: Problem, menu: Menu, members: dict[str, list[int]], work_limit: int
) -> Packing:
    """Pack with one claim for all the jobs of each owner in `members`."""
    single = sorted(set(range(len(problem.claims))) - {i for ids in members.values() for i in ids})
    rows = np.split(menu.values, menu.starts[1:])
    shares = {
        owner: _Share.of([rows[i] for i in ids], min(problem.quotas[owner], problem.nodes))
        for owner, ids in members.items()
    }
    joint = Menu.from_values(
        [rows[i] for i in single] + [share.values for share in shares.values()]
    )
    packing = pack(joint, problem.nodes, work_limit)
    counts = np.zeros(len(problem.claims), dtype=np.intp)
    counts[single] = packing.counts[: len(single)]
    for owner, count in zip(members, packing.counts[len(single) :].tolist(), strict=True):
        counts[members[owner]] = shares[owner].split(count)
    return Packing(counts, packing.max_missing)


@dataclass(frozen=True, slots=True, eq=False)
class _Share:
    """What an owner's jobs together make of each number of nodes."""

    #: Shape `(quota + 1,)`; -inf where the jobs cannot use exactly so many.
    values: Floats
    #: For each job, shape `(quota + 1,)`: its count in the best division of so many nodes among
    #: it and the jobs before it.
    counts: list[Ints]

    @classmethod
    def of(cls, jobs: Sequence[Floats], quota: int) -> _Share:
        values = np.full(quota + 1, -np.inf)
        values[0] = 0.0
        counts = []
        for job in jobs:
            own = job[: quota + 1]
            # padded[k + i] is the others' worth of k - (own.size - 1 - i) nodes.
            padded = np.concatenate([np.full(own.size - 1, -np.inf), values])
            windows = np.lib.stride_tricks.sliding_window_view(padded, own.size)
            totals = windows + own[::-1]
            best = totals.argmax(axis=1)
            values = totals[np.arange(quota + 1), best]
            counts.append(own.size - 1 - best)
        return cls(values, counts)

    def split(self, nodes: int) -> list[int]:
        """Return each job's count in the best division of exactly so many nodes."""
        parts: list[int] = []
        for counts in reversed(self.counts):
            parts.append(int(counts[nodes]))
            nodes -= parts[-1]
        return parts[::-1]
