"""The multiple-choice knapsack problem, solved to proven optimality in milliseconds.

    maximise    sum_j values_j(n_j)
    subject to  sum_j n_j <= nodes,   n_j one of claim j's allowed choices

The way is that of Pisinger's minimal algorithm (EJOR 83, 1995): relax, then close the gap in a
small core.

1. *Price.* Relaxing the supply puts a price on a node. At price p each claim takes the choice
   that is best for it alone, on its values' concave envelope; p * nodes plus what all claims then
   net bounds the optimum from above. The best price is found by intersecting the tangents of this
   bound on both sides, over fewer and fewer choices, and among the last few by sorting the steps of
   their envelopes.
2. *Losses.* At that price every choice has a loss against its claim's best, and every idle node
   costs the price. An allocation falls short of the bound by exactly the sum of its losses and
   the cost of its idle nodes: its shortfall. A choice whose loss alone is no less than the
   shortfall of a known allocation is in no better one.
3. *Core.* A dynamic programme over the few choices of least loss finds the best allocation that
   uses no others. A better one has a choice that was left out: what the programme knows tells at
   once which of these could be the only one, and two of them lose at least twice the least loss
   left out. Where no choice remains, the best found is the optimum; else the programme is
   repeated with the choices that remain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import inf
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from malletrain.allocate.menu import Floats, Ints, Menu

#: So few choices are looked at one by one: that is faster than by arrays.
_FEW_CHOICES = 128

#: Choices in the first core, and by how much each next one has more.
_FIRST_CORE = 64
_CORE_GROWTH = 4

#: What it takes to start on a row of cells, in cells.
_STEP_CELLS = 1000

#: Shortfalls below this share of all worth are rounding.
_ROUNDING = 1e-14


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Counts that fit."""

    #: Shape `(num_claims,)`: a count for each copy of each row, in the order of rows.
    counts: Ints
    #: Proved: no counts that fit are worth more by more than this; 0.0 where they are optimal.
    max_missing: float


def pack(menu: Menu, nodes: int, work_limit: int, guesses: Sequence[float] = ()) -> Packing:
    """Find the best counts within `nodes`; every row must be allowed 0.

    `guesses` are rising prices of a node among which the best one is likely to be: good ones save
    time.

    `work_limit` bounds the cells of dynamic programmes that are filled in, with what it takes to
    start on them.
    """
    if menu.starts.size == 0:
        return Packing(np.empty(0, dtype=np.intp), 0.0)
    price, fewest, most = _price(menu, nodes, guesses)
    core = _core(menu, nodes, price, fewest, most)
    best, max_missing = _close(core, work_limit)
    return Packing(_spread(core, best.moves, menu.copies), max_missing)


def _price(menu: Menu, nodes: int, guesses: Sequence[float]) -> tuple[float, Ints, Ints]:
    """Return the best price, and counts optimal at it: some that fit, and some that do not.

    Where all claims' favourites fit, the price is 0 and both are these.
    """
    blocks = menu.blocks()
    fewest, most = np.zeros(menu.starts.size, dtype=np.intp), None
    first, last = 0, len(guesses)
    while first < last:
        middle = (first + last) // 2
        counts = _counts_at(blocks, guesses[middle])
        if menu.total(counts) > nodes:
            most, first = counts, middle + 1
        else:
            fewest, last = counts, middle
    if most is None:
        most = _counts_at(blocks, 0.0)
        if menu.total(most) <= nodes:
            return 0.0, most, most
    rows, lowest, highest, num_settled = np.arange(most.size), fewest.copy(), most.copy(), 0
    while True:
        is_open = highest > lowest
        num_settled += int((lowest * menu.copies[rows])[~is_open].sum())
        rows, lowest, highest = rows[is_open], lowest[is_open], highest[is_open]
        part = menu.between(rows, lowest, highest)
        if part.values.size <= _FEW_CHOICES:
            price, fewest[rows], most[rows] = _price_of_few(part, nodes - num_settled)
            return price, fewest, most
        # Both bounds are lines in the price; the next price is where they meet.
        starts = menu.starts[rows]
        gained = menu.values[starts + highest] - menu.values[starts + lowest]
        low, high = part.total(lowest), part.total(highest)
        price = float((gained * part.copies).sum()) / (high - low)
        counts = _counts_at(part.blocks(), price)
        num_counts = part.total(counts)
        if not low < num_counts < high:
            return price, fewest, most
        if num_settled + num_counts <= nodes:
            fewest[rows] = lowest = counts
        else:
            most[rows] = highest = counts


def _price_of_few(part: Menu, nodes: int) -> tuple[float, list[int], list[int]]:
    """Return what `_price` does, where each row's first choice fits and its last does not."""
    counts, values = part.nodes.tolist(), part.values.tolist()
    copies = part.copies.tolist()
    starts = part.starts.tolist()
    ends = [*starts[1:], len(values)]
    left = nodes - sum(counts[start] * n for start, n in zip(starts, copies, strict=True))
    #: (worth a node, row, count after it, nodes it takes)
    steps: list[tuple[float, int, int, int]] = []
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        corners, slopes = _envelope(counts[start:end], values[start:end])
        for (before, after), slope in zip(pairwise(corners), slopes, strict=True):
            steps.append((slope, row, after, (after - before) * copies[row]))
    steps.sort(key=itemgetter(0), reverse=True)
    taken = list(accumulate(size for *_, size in steps))
    price = steps[bisect_right(taken, left)][0]
    fewest = [counts[start] for start in starts]
    most = list(fewest)
    for slope, row, count, _ in steps:
        if slope > price:
            fewest[row] = count
        if slope >= price:
            most[row] = count
    return price, fewest, most


def _envelope(counts: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    """Return the corners of the concave envelope, and the falling slopes between them."""
    corners, worths, slopes = [counts[0]], [values[0]], [inf]
    for count, value in zip(counts, values, strict=True):
        if count == counts[0] or value == -inf:
            continue
        slope = (value - worths[-1]) / (count - corners[-1])
        while slope >= slopes[-1]:
            corners.pop()
            worths.pop()
            slopes.pop()
            slope = (value - worths[-1]) / (count - corners[-1])
        corners.append(count)
        worths.append(value)
        slopes.append(slope)
    return corners, slopes[1:]


def _counts_at(blocks: list[Menu], price: float) -> Ints:
    if len(blocks) == 1:
        return blocks[0].counts_at(price)
    return np.concatenate([block.counts_at(price) for block in blocks])


@dataclass(frozen=True, slots=True, eq=False)
class _Core:
    """What the search for the last bit starts from; see the module's text for the words."""

    #: Its first rows are those of the whole menu, but with copies split off into further rows.
    menu: Menu
    price: float
    #: Shape `(num_rows,)`: counts that fit and have no losses, from which deviations count.
    base: Ints
    #: The row of the whole menu that each row is of.
    origins: list[int]
    #: Nodes that the base leaves.
    idle: int
    #: Shortfalls that differ by less than this are equal.
    rounding: float


def _core(menu: Menu, nodes: int, price: float, fewest: Ints, most: Ints) -> _Core:
    """Move claims from fewest to most, which costs nothing, as long as they fit."""
    base = fewest.copy()
    origins = list(range(base.size))
    idle = nodes - menu.total(fewest)
    for row in sorted(np.flatnonzero(most > fewest).tolist(), key=lambda r: most[r] - fewest[r]):
        step = int(most[row] - fewest[row])
        num_moved = min(int(menu.copies[row]), idle // step)
        if num_moved == 0:
            break
        idle -= num_moved * step
        num_staying = int(menu.copies[row]) - num_moved
        if num_staying == 0:
            base[row] = most[row]
            continue
        copies = np.append(menu.copies, num_moved)
        copies[row] = num_staying
        menu = replace(Menu.of_values([*menu.rows(), menu.rows()[row]]), copies=copies)
        base = np.append(base, most[row])
        origins.append(row)
        break
    worth = np.abs(menu.values[menu.at(base)]) * menu.copies
    rounding = _ROUNDING * (float(worth.sum()) + price * nodes)
    return _Core(menu, price, base, origins, idle, rounding)


@dataclass(frozen=True, slots=True)
class _Best:
    """The best deviations from the base found so far: a row and a count for each claim moved."""

    moves: tuple[tuple[int, int], ...]
    shortfall: float


def _spread(core: _Core, moves: tuple[tuple[int, int], ...], copies: Ints) -> Ints:
    """Return each copy's count, in the order of the whole menu's rows."""
    counts = np.repeat(core.base[: copies.size], copies)
    first_copy = np.cumsum(copies) - copies
    next_copy: dict[int, int] = {}
    for row in range(copies.size, core.base.size):
        # What was split off is at the end of its origin's copies.
        origin = core.origins[row]
        next_copy[row] = int(first_copy[origin] + core.menu.copies[origin])
        counts[next_copy[row] : int(first_copy[origin] + copies[origin])] = core.base[row]
    for row, count in moves:
        copy = next_copy.get(row, int(first_copy[core.origins[row]]))
        counts[copy] = count
        next_copy[row] = copy + 1
    return counts


def _close(core: _Core, work_limit: int) -> tuple[_Best, float]:
    """Return the best deviations, and by how much at most they are not the best there are."""
    best = _Best((), core.price * core.idle)
    if best.shortfall <= core.rounding:
        return best, 0.0
    best = _with_one_move(core, best)
    pool = _useful(core, best.shortfall)
    core_size = _FIRST_CORE
    floor = 0.0
    while True:
        pool = pool.only(pool.losses < best.shortfall - core.rounding)
        if pool.losses.size == 0:
            return best, 0.0
        is_chosen, next_floor = pool.least(core_size)
        is_rest = ~is_chosen
        rest = pool.only(is_rest)
        table = _Table(core, best, pool.only(is_chosen), rest, work_limit)
        table.fill()
        best = table.best
        work_limit = table.work_left
        if work_limit <= 0:
            return best, max(0.0, best.shortfall - floor)
        floor = next_floor
        # Better counts have a choice of the rest: it, and another of the rest or none such.
        least = rest.losses + np.minimum(floor, table.least_shortfall(core.idle - rest.steps))
        is_chosen[is_rest] = least < best.shortfall - core.rounding
        if not is_chosen[is_rest].any():
            return best, 0.0
        pool = pool.only(is_chosen)
        core_size *= _CORE_GROWTH


def _with_one_move(core: _Core, best: _Best) -> _Best:
    """Try every deviation of one claim alone."""
    menu = core.menu
    # What a row may have then are its first choices: the maxima of every second slice.
    ends = menu.starts + np.minimum(menu.sizes, core.base + core.idle + 1)
    slices = np.stack([menu.starts, ends], axis=1).ravel()
    if ends[-1] == menu.values.size:
        slices = slices[:-1]
    gains = np.maximum.reduceat(menu.values, slices)[::2] - menu.values[menu.at(core.base)]
    row = int(gains.argmax())
    if gains[row] <= core.rounding:
        return best
    count = int(menu.values[menu.starts[row] : ends[row]].argmax())
    return _Best(((row, count),), best.shortfall - float(gains[row]))


@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """Choices other than the base's that may be in better counts: deviations, by row."""

    #: Ascending.
    rows: Ints
    #: By how many nodes each deviates from the base.
    steps: Ints
    losses: Floats

    def only(self, is_kept: NDArray[np.bool_]) -> _Pool:
        return _Pool(self.rows[is_kept], self.steps[is_kept], self.losses[is_kept])

    def least(self, size: int) -> tuple[NDArray[np.bool_], float]:
        """Choose about `size`; no other has less loss than the second result."""
        if self.losses.size <= size:
            return np.ones(self.losses.size, dtype=np.bool_), np.inf
        is_chosen = self.losses <= np.partition(self.losses, size)[size]
        return is_chosen, float(self.losses[~is_chosen].min(initial=np.inf))


def _useful(core: _Core, shortfall: float) -> _Pool:
    choices, losses = [], []
    first_row = first_choice = 0
    for block in core.menu.blocks():
        last_row = first_row + block.starts.size
        block_losses = block.losses(core.price)
        block_losses[block.at(core.base[first_row:last_row])] = np.inf
        useful = np.flatnonzero(block_losses < shortfall)
        choices.append(useful + first_choice)
        losses.append(block_losses[useful])
        first_row, first_choice = last_row, first_choice + block.values.size
    places = np.concatenate(choices)
    rows = np.searchsorted(core.menu.starts, places, side="right") - 1
    return _Pool(rows, core.menu.nodes[places] - core.base[rows], np.concatenate(losses))


@dataclass(frozen=True, slots=True, eq=False)
class _Deviations:
    """What the claims of one row may do: by how many nodes to deviate, at which loss."""

    row: int
    copies: int
    steps: list[int]
    losses: list[float]


def _deviations(core: _Core, chosen: _Pool) -> list[_Deviations]:
    """Gather the chosen choices by row; least loss first."""
    firsts = np.flatnonzero(np.diff(chosen.rows, prepend=-1))
    gathered = [
        _Deviations(
            row=int(chosen.rows[first]),
            copies=int(core.menu.copies[chosen.rows[first]]),
            steps=chosen.steps[first:last].tolist(),
            losses=chosen.losses[first:last].tolist(),
        )
        for first, last in pairwise([*firsts.tolist(), chosen.rows.size])
    ]
    return sorted(gathered, key=lambda deviations: min(deviations.losses))


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """One claim's turn: which of its deviations leads best to each sum, -1 for none."""

    deviations: _Deviations
    lowest_sum: int
    choices: NDArray[np.int32]


class _Table:
    """A dynamic programme over sums of deviations: what is the least loss that gives each sum.

    Only sums that can still end in better counts are kept: of less loss than the best shortfall,
    and within reach of the idle nodes.
    """

    def __init__(
        self, core: _Core, best: _Best, chosen: _Pool, rest: _Pool, work_limit: int
    ) -> None:
        gathered = _deviations(core, chosen)
        self.best = best
        self.work_left = work_limit
        self._core = core
        self._gathered = gathered
        self._turns: list[_Turn] = []
        #: `_losses[i]` is the least loss of the sum `_lowest_sum + i`.
        self._lowest_sum = 0
        self._losses = np.zeros(1)
        #: What the claims still to come, and one choice of the rest, can add and take away at most.
        self._rest_up = int(rest.steps.max(initial=0))
        self._rest_up += sum(max(0, *d.steps) * d.copies for d in gathered)
        self._rest_down = int(rest.steps.min(initial=0))
        self._rest_down += sum(min(0, *d.steps) * d.copies for d in gathered)

    def fill(self) -> None:
        """Take all claims in turn, until the work limit; `best` is then the best of all."""
        for deviations in self._gathered:
            up, down = max(0, *deviations.steps), min(0, *deviations.steps)
            rest_up = self._rest_up - up * deviations.copies
            rest_down = self._rest_down - down * deviations.copies
            for _ in range(deviations.copies):
                self._rest_up -= up
                self._rest_down -= down
                if self.work_left <= 0:
                    return
                if not self._take_turn(deviations):
                    break  # Neither would any more claims that are the same.
                self._end_here()
            self._rest_up, self._rest_down = rest_up, rest_down

    def least_shortfall(self, idle: Ints) -> Floats:
        """Return the least shortfall of the table's claims alone if so many nodes are idle."""
        if self._losses.size == 0:
            return np.full(idle.size, np.inf)
        sums = self._lowest_sum + np.arange(self._losses.size)
        least = np.minimum.accumulate(self._losses - self._core.price * sums)
        index = np.minimum(idle - self._lowest_sum, sums.size - 1)
        found = least[np.maximum(index, 0)] + self._core.price * idle
        return np.where(index < 0, np.inf, found)

    def _take_turn(self, deviations: _Deviations) -> bool:
        """Let one claim deviate or not; False if that leads to no sum at less loss."""
        core, shortfall = self._core, self.best.shortfall
        highest_sum = self._lowest_sum + self._losses.size - 1
        least_end = core.idle - int(shortfall / core.price)
        lowest = max(self._lowest_sum + min(0, *deviations.steps), least_end - self._rest_up)
        highest = min(highest_sum + max(0, *deviations.steps), core.idle - self._rest_down)
        # A sum that stays at the shortfall is as good as out of reach.
        losses = np.full(max(0, highest - lowest + 1), shortfall)
        choices = np.full(losses.size, -1, dtype=np.int32)
        options = [(0, 0.0), *zip(deviations.steps, deviations.losses, strict=True)]
        for choice, (step, loss) in enumerate(options, start=-1):
            first, last = max(lowest, self._lowest_sum + step), min(highest, highest_sum + step)
            if first > last or loss >= shortfall:
                continue
            shift = step + self._lowest_sum
            reached = self._losses[first - shift : last - shift + 1] + loss
            target = slice(first - lowest, last - lowest + 1)
            is_better = reached < losses[target]
            np.copyto(losses[target], reached, where=is_better)
            np.copyto(choices[target], choice, where=is_better)
            self.work_left -= reached.size + _STEP_CELLS
        self._turns.append(_Turn(deviations, lowest, choices))
        self._lowest_sum, self._losses = lowest, losses
        return bool((choices >= 0).any())

    def _end_here(self) -> None:
        """Note the best end if no more claims deviate."""
        core = self._core
        ends = self._losses[: max(0, core.idle - self._lowest_sum + 1)]
        if ends.size == 0:
            return
        left = core.idle - self._lowest_sum - np.arange(ends.size)
        shortfalls = ends + core.price * left
        index = int(shortfalls.argmin())
        if shortfalls[index] < self.best.shortfall - core.rounding:
            moves = self._trace(self._lowest_sum + index)
            self.best = _Best(moves, float(shortfalls[index]))

    def _trace(self, end_sum: int) -> tuple[tuple[int, int], ...]:
        moves = []
        for turn in reversed(self._turns):
            choice = turn.choices[end_sum - turn.lowest_sum]
            if choice >= 0:
                row, step = turn.deviations.row, turn.deviations.steps[choice]
                moves.append((row, int(self._core.base[row]) + step))
                end_sum -= step
        return tuple(moves)
