"""The default allocator: exact over counts, in milliseconds for a thousand jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np

from malletrain.allocate.knapsack import Packing, pack
from malletrain.allocate.menu import Floats, Ints, check_problem
from malletrain.allocate.rows import Row, row_of
from malletrain.core.problem import Allocation, Claim, Problem, checked
from malletrain.errors import UserError

_Kind = TypeVar("_Kind", bound=Hashable)


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
        check_problem(problem)
        claims = problem.claims
        rows = list(map(row_of, claims))
        if problem.quotas:
            kinds = [(row, claim.owner) for row, claim in zip(rows, claims, strict=True)]
            tally = Counter(kinds)
            packing = _pack_within_quotas(problem, tally, self.work_limit)
            counts = _by_claim(kinds, tally, packing)
        else:
            copies = Counter(rows)
            packing = pack(list(copies), list(copies.values()), problem.nodes, self.work_limit)
            counts = _by_claim(rows, copies, packing)
        value = sum(map(_worth, claims, counts))
        answer = Allocation(
            counts=dict(zip([claim.job_id for claim in claims], counts, strict=True)),
            value=value,
            bound=value + packing.max_missing,
            proved_optimal=packing.max_missing == 0.0,
        )
        return checked(problem, answer)


def _worth(claim: Claim, count: int) -> float:
    return float(claim.values.item(count))


def _by_claim(kinds: Sequence[_Kind], tally: Iterable[_Kind], packing: Packing) -> list[int]:
    """Return each claim's count, given those of the copies of each kind."""
    of_kind = {kind: counts[0] for kind, counts in zip(tally, packing.counts, strict=True)}
    by_claim = list(map(of_kind.__getitem__, kinds))
    for kind, counts in zip(of_kind, packing.counts, strict=True):
        if counts[0] != counts[-1] or min(counts) != max(counts):
            places = [index for index, one in enumerate(kinds) if one == kind]
            for index, count in zip(places, counts, strict=True):
                by_claim[index] = count
    return by_claim


def _pack_within_quotas(
    problem: Problem, tally: Mapping[tuple[Row, str], int], work_limit: int
) -> Packing:
    rows, copies = [row for row, _ in tally], list(tally.values())
    packing = pack(rows, copies, problem.nodes, work_limit)
    owners = [owner for _, owner in tally]
    shared: dict[str, list[int]] = {}
    while True:
        used = dict.fromkeys(problem.quotas, 0)
        for owner, counts in zip(owners, packing.counts, strict=True):
            if owner in used:
                used[owner] += sum(counts)
        over = {owner for owner, nodes in used.items() if nodes > problem.quotas[owner]}
        if not over:
            return packing
        for index, owner in enumerate(owners):
            if owner in over:
                shared.setdefault(owner, []).append(index)
        packing = _pack_shared(problem, rows, copies, shared, work_limit)


def _pack_shared(
    problem: Problem,
    rows: Sequence[Row],
    copies: Sequence[int],
    shared: dict[str, list[int]],
    work_limit: int,
) -> Packing:
    """Pack with one claim for all the rows of each owner in `shared`."""
    in_shared = {index for members in shared.values() for index in members}
    single = [index for index in range(len(rows)) if index not in in_shared]
    shares = [
        _Share.of(
            [rows[index].values for index in members for _ in range(copies[index])],
            min(problem.quotas[owner], problem.nodes),
        )
        for owner, members in shared.items()
    ]
    packing = pack(
        [*(rows[index] for index in single), *(Row.of(share.values) for share in shares)],
        [*(copies[index] for index in single), *(1 for _ in shares)],
        problem.nodes,
        work_limit,
    )
    counts: dict[int, list[int]] = dict(zip(single, packing.counts, strict=False))
    totals = packing.counts[len(single) :]
    for members, share, (total,) in zip(shared.values(), shares, totals, strict=True):
        parts = iter(share.split(total))
        counts |= {index: list(islice(parts, copies[index])) for index in members}
    return Packing([counts[index] for index in range(len(rows))], packing.max_missing)


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
