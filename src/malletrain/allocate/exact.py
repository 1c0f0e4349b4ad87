"""The default allocator: exact over counts, in milliseconds for a thousand jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from malletrain.allocate.knapsack import Packing, pack
from malletrain.allocate.menu import Floats, Ints, Menu, Offer
from malletrain.core.problem import Allocation, Problem, checked
from malletrain.errors import UserError

#: The price of a node is mostly among these times what the next ones are worth to jobs.
_PRICES_OVER_NEXT = (0.95, 1.0, 1.05, 1.1, 1.16, 1.22, 1.28)


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

    #: Most table cells to fill in before the best answer so far is given, with its bound: some
    #: 3 ns each. A thousand mixed jobs mostly take less than a million.
    work_limit: int = 200_000_000

    def allocate(self, problem: Problem) -> Allocation:
        if problem.cells:
            raise UserError(
                "the exact allocator counts nodes of one kind, but the problem has cells "
                '(classes, lifetimes, power): set live.allocator = "milp"'
            )
        offer = Offer.of(problem, sets_owners_apart=bool(problem.quotas))
        offer.reward_staying(problem.claims)
        packing = _pack_within_quotas(problem, offer, self.work_limit)
        by_claim = np.empty(len(problem.claims), dtype=np.intp)
        by_claim[offer.order] = packing.counts
        counts = by_claim.tolist()
        value = sum(
            float(claim.values[count]) for claim, count in zip(problem.claims, counts, strict=True)
        )
        answer = Allocation(
            counts={c.job_id: count for c, count in zip(problem.claims, counts, strict=True)},
            value=value,
            bound=value + packing.max_missing,
            proved_optimal=packing.max_missing == 0.0,
        )
        return checked(problem, answer)


def _pack_within_quotas(problem: Problem, offer: Offer, work_limit: int) -> Packing:
    worth = offer.worth_of_next_node(problem.claims)
    guesses = [worth * factor for factor in _PRICES_OVER_NEXT] if worth > 0 else []
    packing = pack(offer.menu, problem.nodes, work_limit, guesses)
    if not problem.quotas:
        return packing
    owners = [problem.claims[index].owner for index in offer.order.tolist()]
    row_owners = [problem.claims[index].owner for index in offer.first_claims().tolist()]
    shared: dict[str, list[int]] = {}
    while True:
        used = dict.fromkeys(problem.quotas, 0)
        for owner, count in zip(owners, packing.counts.tolist(), strict=True):
            if owner in used:
                used[owner] += count
        over = {owner for owner, nodes in used.items() if nodes > problem.quotas[owner]}
        if not over:
            return packing
        for row, owner in enumerate(row_owners):
            if owner in over:
                shared.setdefault(owner, []).append(row)
        packing = _pack_shared(problem, offer.menu, shared, work_limit)


def _pack_shared(
    problem: Problem, menu: Menu, shared: dict[str, list[int]], work_limit: int
) -> Packing:
    """Pack with one claim for all the rows of each owner in `shared`."""
    values, copies = menu.rows(), menu.copies.tolist()
    in_shared = {row for rows in shared.values() for row in rows}
    single = [row for row in range(len(values)) if row not in in_shared]
    shares = [
        _Share.of(
            [values[row] for row in rows for _ in range(copies[row])],
            min(problem.quotas[owner], problem.nodes),
        )
        for owner, rows in shared.items()
    ]
    joint = Menu.of_values(
        [*(values[row] for row in single), *(share.values for share in shares)],
        [*(copies[row] for row in single), *(1 for _ in shares)],
    )
    packing = pack(joint, problem.nodes, work_limit)
    rows_of_claims = np.repeat(np.arange(len(values)), menu.copies)
    counts = np.empty(rows_of_claims.size, dtype=np.intp)
    is_shared = np.isin(rows_of_claims, list(in_shared))
    num_single = counts.size - int(is_shared.sum())
    counts[~is_shared] = packing.counts[:num_single]
    totals = packing.counts[num_single:].tolist()
    for rows, share, total in zip(shared.values(), shares, totals, strict=True):
        counts[np.isin(rows_of_claims, rows)] = share.split(total)
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
