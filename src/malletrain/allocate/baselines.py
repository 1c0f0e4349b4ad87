"""Allocators to compare with; no site would choose one of them.

Those that solve nothing know counts and quotas only, and state as their bound what the jobs would
be worth if each had the nodes to itself: it is proved, and seldom tight.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from malletrain.allocate.menu import Offer
from malletrain.allocate.milp import solve_counts
from malletrain.allocate.standing import bound_without_rivals
from malletrain.core.problem import Allocation, Claim, Problem, checked
from malletrain.errors import UserError


class FifoAllocator:
    """Gives each job in turn its maximum, or what is left if that is its minimum: rigid jobs."""

    def allocate(self, problem: Problem) -> Allocation:
        _check(problem, "fifo")
        room = _Room(problem)
        counts: dict[str, int] = {}
        for claim in problem.claims:
            count = min(claim.max_nodes, room.left(claim))
            counts[claim.job_id] = count if count >= claim.min_nodes else 0
            room.take(claim, counts[claim.job_id])
        return _answer(problem, counts)


class EqualShareAllocator:
    """Gives all jobs the same number of nodes, as far as bounds allow; needs no curves.

    Nodes go one by one to the job that has the fewest, the first of equals. A job that its minimum
    would take past what is left waits. This is the heuristic that BFTrainer compares with.
    """

    def allocate(self, problem: Problem) -> Allocation:
        _check(problem, "equal-share")
        return _answer(problem, _fill(problem, lambda _claim, count, _step: count))


class GreedyAllocator:
    """Gives the next node to the job that gains most by it, until none gains.

    From none a job goes to its minimum at once. Exact where all values are concave, which rescale
    costs prevent: a step past the present count costs more than it gains, though a longer one
    would pay.
    """

    def allocate(self, problem: Problem) -> Allocation:
        _check(problem, "greedy")

        def order(claim: Claim, count: int, step: int) -> float | None:
            gain = float(claim.values[count + step] - claim.values[count]) / step
            return -gain if gain > 0 else None

        return _answer(problem, _fill(problem, order))


@dataclass(frozen=True, slots=True)
class PapersMilpWithHalfRangeBug:
    """The papers' programme as their public code states it, with its two defects.

    `progMIP.py` of BFTrainer's replayer forbids migration by `|new - old| >= changed nodes` or its
    opposite, switched by a big M of nodes + 1. Both hold at once, one relaxed by M, so that twice
    the change is at most M: no job may change by more than half the nodes there are, plus one. A
    minimum above M makes all of it infeasible. And where the solver proves no optimum in time, the
    code applies a map of zeros: every job loses all its nodes.
    """

    time_limit_s: float = 30.0

    def allocate(self, problem: Problem) -> Allocation:
        _check(problem, "papers-milp-half-range-bug")
        offer = Offer.of(problem, sets_owners_apart=bool(problem.quotas))
        zeros = _answer(problem, {claim.job_id: 0 for claim in problem.claims})
        big_m = problem.nodes + 1
        if not problem.claims or any(claim.min_nodes > big_m for claim in problem.claims):
            return zeros
        menu = offer.menu
        present = [problem.claims[i].current_nodes for i in offer.first_claims().tolist()]
        # Their map has present nodes only.
        start = np.repeat(np.minimum(present, problem.nodes), menu.sizes)
        allowed = np.where(np.abs(menu.nodes - start) <= big_m // 2, menu.values, -np.inf)
        found = solve_counts(problem, offer, replace(menu, values=allowed), self.time_limit_s)
        if found is None or not found.proved_optimal:
            return zeros
        return checked(problem, replace(found, bound=zeros.bound, proved_optimal=False))


def _check(problem: Problem, name: str) -> None:
    if problem.cells:
        raise UserError(
            f"the {name} allocator counts nodes of one kind, but the problem has cells "
            '(classes, lifetimes, power): set live.allocator = "milp"'
        )
    Offer.of(problem)


class _Room:
    """What is left of the nodes and of each owner's quota."""

    def __init__(self, problem: Problem) -> None:
        self._nodes = problem.nodes
        self._quotas = dict(problem.quotas)

    def left(self, claim: Claim) -> int:
        return min(self._nodes, self._quotas.get(claim.owner, self._nodes))

    def take(self, claim: Claim, nodes: int) -> None:
        self._nodes -= nodes
        if claim.owner in self._quotas:
            self._quotas[claim.owner] -= nodes


def _fill(problem: Problem, order: Callable[[Claim, int, int], float | None]) -> dict[str, int]:
    """Let jobs take steps, the least `order(claim, count, step)` first; None ends a job's."""
    room = _Room(problem)
    counts = [0] * len(problem.claims)
    heap: list[tuple[float, int, int]] = []

    def offer_step(index: int) -> None:
        claim, count = problem.claims[index], counts[index]
        step = 1 if count else claim.min_nodes
        rank = order(claim, count, step) if count < claim.max_nodes else None
        if rank is not None:
            heapq.heappush(heap, (rank, index, step))

    for index in range(len(problem.claims)):
        offer_step(index)
    while heap:
        _rank, index, step = heapq.heappop(heap)
        claim = problem.claims[index]
        if step <= room.left(claim):
            room.take(claim, step)
            counts[index] += step
            offer_step(index)
    return {claim.job_id: count for claim, count in zip(problem.claims, counts, strict=True)}


def _answer(problem: Problem, counts: dict[str, int]) -> Allocation:
    value = math.fsum(float(claim.values[counts[claim.job_id]]) for claim in problem.claims)
    bound = max(value, bound_without_rivals(problem))
    return checked(problem, Allocation(counts, value, bound, proved_optimal=value == bound))
