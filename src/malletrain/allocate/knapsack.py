"""The multiple-choice knapsack problem, solved to proven optimality in milliseconds.

    maximise    sum_j values_j(n_j)
    subject to  sum_j n_j <= nodes,   n_j one of claim j's allowed choices

The way is that of Pisinger's minimal algorithm (EJOR 83, 1995): relax, then close the gap in a
small core.

1. *Price.* Relaxing the supply puts a price on a node. At price p each claim takes the choice
   that is best for it alone, on its values' concave envelope; p * nodes plus what all claims then
   net bounds the optimum from above. The best price is found by intersecting the tangents of this
   bound on both sides, over fewer and fewer choices.
2. *Losses.* At that price every choice has a loss against its claim's best, and every idle node
   costs the price. An allocation falls short of the bound by exactly the sum of its losses and
   the cost of its idle nodes: its shortfall. A choice whose loss alone is no less than the
   shortfall of a known allocation is in no better one.
3. *Core.* A dynamic programme over the few choices of least loss finds the best allocation that
   uses no others. All others are short by at least the least loss left out, so the programme is
   repeated with more choices until that is no less than the shortfall found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from malletrain.allocate.menu import Floats, Ints, Menu

#: Choices in the first core, and by how much each next one has more.
_FIRST_CORE = 64
_CORE_GROWTH = 4

#: Shortfalls below this share of all worth are rounding.
_ROUNDING = 1e-14


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Counts that fit."""

    #: Shape `(num_claims,)`.
    counts: Ints
    #: Proved: no counts that fit are worth more by more than this; 0.0 where they are optimal.
    max_missing: float


def pack(menu: Menu, nodes: int, work_limit: int) -> Packing:
    """Find the best counts within `nodes`; every claim must be allowed 0.

    `work_limit` bounds the cells of dynamic programmes that are filled in.
    """
    price, fewest, most = _price(menu, nodes)
    if price == 0.0:
        return Packing(most, 0.0)
    net, best = menu.net(price)
    losses = np.subtract(np.repeat(best, menu.sizes), net, out=net)
    base = _with_ties(fewest, most, nodes)
    start = _Core(
        menu=menu,
        price=price,
        losses=losses,
        base=base,
        idle=nodes - int(base.sum()),
        rounding=_ROUNDING * (float(np.abs(best).sum()) + price * nodes),
    )
    return _close(start, work_limit)


def _price(menu: Menu, nodes: int) -> tuple[float, Ints, Ints]:
    """Return the best price, and counts optimal at it: some that fit, and some that do not.

    Where all claims' favourites fit, the price is 0 and both are these.
    """
    most = menu.counts_at(0.0)
    num_most = int(most.sum())
    if num_most <= nodes:
        return 0.0, most, most
    fewest = np.zeros_like(most)
    part, claims = menu, np.arange(most.size)
    while True:
        gained = menu.values[menu.at(most)[claims]] - menu.values[menu.at(fewest)[claims]]
        low, high = int(fewest[claims].sum()), int(most[claims].sum())
        price = float(gained.sum()) / (high - low)
        counts = part.counts_at(price)
        num_fitting = nodes - int(fewest.sum()) + low
        num_counts = int(counts.sum())
        if not low < num_counts < high:
            return price, fewest, most
        (fewest if num_counts <= num_fitting else most)[claims] = counts
        claims = np.flatnonzero(most > fewest)
        part = menu.between(claims, fewest[claims], most[claims])


def _with_ties(fewest: Ints, most: Ints, nodes: int) -> Ints:
    """Move claims from fewest to most, which costs nothing, as long as they fit."""
    counts = fewest.copy()
    tied = np.flatnonzero(most > fewest)
    steps = (most - fewest)[tied]
    order = np.argsort(steps, kind="stable")
    num_fitting = np.searchsorted(np.cumsum(steps[order]), nodes - int(fewest.sum()), side="right")
    moved = tied[order[:num_fitting]]
    counts[moved] = most[moved]
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class _Core:
    """What the search for the last bit starts from; see the module's text for the words."""

    menu: Menu
    price: float
    #: Shape `(num_choices,)`, of the whole menu.
    losses: Floats
    #: Shape `(num_claims,)`: counts that fit and have no losses, from which deviations count.
    base: Ints
    #: Nodes that the base leaves.
    idle: int
    rounding: float


@dataclass(frozen=True, slots=True, eq=False)
class _Best:
    """The best counts found so far, and their shortfall."""

    counts: Ints
    shortfall: float


def _close(core: _Core, work_limit: int) -> Packing:
    best = _Best(core.base, core.price * core.idle)
    if best.shortfall <= core.rounding:
        return Packing(best.counts, 0.0)
    best = _with_one_move(core, best)
    core.losses[core.menu.at(core.base)] = np.inf  # to stay at the base is no deviation
    core_size = _FIRST_CORE
    floor = 0.0
    while True:
        useful = np.flatnonzero(core.losses < best.shortfall - core.rounding)
        if useful.size == 0:
            return Packing(best.counts, 0.0)
        chosen, next_floor = _least(core, useful, core_size, best.shortfall)
        groups = _groups(core, chosen)
        table = _Table(core, best, groups, work_limit)
        table.fill()
        best = table.best
        work_limit = table.work_left
        if work_limit <= 0:
            return Packing(best.counts, max(0.0, best.shortfall - floor))
        floor = next_floor
        if best.shortfall <= floor + core.rounding:
            return Packing(best.counts, 0.0)
        core_size *= _CORE_GROWTH


def _with_one_move(core: _Core, best: _Best) -> _Best:
    """Try every deviation of one claim alone."""
    menu = core.menu
    left = np.repeat((core.base + core.idle).astype(np.float64), menu.sizes)
    left -= menu.nodes
    shortfalls = core.price * left
    shortfalls += core.losses
    shortfalls[left < 0] = np.inf
    choice = int(shortfalls.argmin())
    if shortfalls[choice] >= best.shortfall:
        return best
    counts = core.base.copy()
    counts[np.searchsorted(menu.starts, choice, side="right") - 1] = menu.nodes[choice]
    return _Best(counts, float(shortfalls[choice]))


def _least(core: _Core, useful: Ints, size: int, shortfall: float) -> tuple[Ints, float]:
    """Choose about the `size` choices of least loss; no other has less than the second result."""
    if useful.size <= size:
        return useful, shortfall
    losses = core.losses[useful]
    # All of equal loss come together, or identical claims would need many rounds.
    is_chosen = losses <= np.partition(losses, size)[size] + core.rounding
    return useful[is_chosen], float(losses[~is_chosen].min(initial=shortfall))


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Claims with the same deviations: by how many nodes, at which loss."""

    claims: list[int]
    steps: list[int]
    losses: list[float]


def _groups(core: _Core, chosen: Ints) -> list[_Group]:
    """Group the chosen choices by claim, and claims that are alike; least loss first."""
    owners = np.searchsorted(core.menu.starts, chosen, side="right") - 1
    steps = core.menu.nodes[chosen].astype(np.intp) - core.base[owners]
    losses = core.losses[chosen]
    firsts = np.flatnonzero(np.diff(owners, prepend=-1))
    lasts = np.append(firsts[1:], chosen.size)
    alike: dict[bytes, _Group] = {}
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        key = steps[first:last].tobytes() + losses[first:last].tobytes()
        if key not in alike:
            alike[key] = _Group([], steps[first:last].tolist(), losses[first:last].tolist())
        alike[key].claims.append(int(owners[first]))
    return sorted(alike.values(), key=lambda group: min(group.losses))


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """One claim's turn: which of its group's deviations leads best to each sum, -1 for none."""

    group: _Group
    claim: int
    lowest_sum: int
    choices: NDArray[np.int32]


class _Table:
    """A dynamic programme over sums of deviations: `sums[d]` is the least loss that gives d.

    Only sums that can still end in better counts are kept: of less loss than the best shortfall,
    and within reach of the idle nodes.
    """

    def __init__(self, core: _Core, best: _Best, groups: list[_Group], work_limit: int) -> None:
        self.best = best
        self.work_left = work_limit
        self._core = core
        self._groups = groups
        self._rows: list[_Row] = []
        self._lowest_sum = 0
        self._losses = np.zeros(1)
        #: What the claims still to come can add and take away at most.
        self._rest_up = sum(max(0, *g.steps) * len(g.claims) for g in groups)
        self._rest_down = sum(min(0, *g.steps) * len(g.claims) for g in groups)

    def fill(self) -> None:
        """Take all claims in turn, until the work limit; `best` is then the best of all."""
        ending: tuple[int, int] | None = None
        shortfall = self.best.shortfall
        for group in self._groups:
            up, down = max(0, *group.steps), min(0, *group.steps)
            for index, claim in enumerate(group.claims):
                self._rest_up -= up
                self._rest_down -= down
                if not self._add_row(group, claim, shortfall):
                    # Neither would any more claims that are the same.
                    num_skipped = len(group.claims) - index - 1
                    self._rest_up -= up * num_skipped
                    self._rest_down -= down * num_skipped
                    break
                end_sum, end_shortfall = self._cheapest_end()
                if end_shortfall < shortfall - self._core.rounding:
                    shortfall, ending = end_shortfall, (len(self._rows), end_sum)
                if self.work_left <= 0:
                    break
        if ending:
            self.best = _Best(self._trace(*ending), shortfall)

    def _add_row(self, group: _Group, claim: int, shortfall: float) -> bool:
        """Let the claim deviate or not; False if that leads to no sum at less loss."""
        core = self._core
        least_end = core.idle - int(shortfall / core.price)
        lowest = max(self._lowest_sum + min(0, *group.steps), least_end - self._rest_up)
        highest_now = self._lowest_sum + self._losses.size - 1
        highest = min(highest_now + max(0, *group.steps), core.idle - self._rest_down)
        width = max(0, highest - lowest + 1)
        losses = np.full(width, np.inf)
        choices = np.full(width, -1, dtype=np.int32)
        self.work_left -= width * (len(group.steps) + 1)
        for choice, (step, loss) in enumerate(
            zip([0, *group.steps], [0.0, *group.losses], strict=True), start=-1
        ):
            first = max(lowest, self._lowest_sum + step)
            last = min(highest, highest_now + step)
            if first > last:
                continue
            source = self._losses[
                first - step - self._lowest_sum : last - step - self._lowest_sum + 1
            ]
            target = slice(first - lowest, last - lowest + 1)
            reached = source + loss
            is_better = reached < np.minimum(losses[target], shortfall)
            losses[target][is_better] = reached[is_better]
            choices[target][is_better] = choice
        self._rows.append(_Row(group, claim, lowest, choices))
        self._lowest_sum, self._losses = lowest, losses
        return bool((choices >= 0).any())

    def _cheapest_end(self) -> tuple[int, float]:
        """Return the sum to end with if no more claims deviate, and its shortfall."""
        core = self._core
        ends = self._losses[: max(0, core.idle - self._lowest_sum + 1)]
        if ends.size == 0:
            return 0, np.inf
        left = core.idle - self._lowest_sum - np.arange(ends.size)
        shortfalls = ends + core.price * left
        index = int(shortfalls.argmin())
        return self._lowest_sum + index, float(shortfalls[index])

    def _trace(self, num_rows: int, end_sum: int) -> Ints:
        counts = self._core.base.copy()
        for row in reversed(self._rows[:num_rows]):
            choice = row.choices[end_sum - row.lowest_sum]
            if choice >= 0:
                step = row.group.steps[choice]
                counts[row.claim] += step
                end_sum -= step
        return counts
