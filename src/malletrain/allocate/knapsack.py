"""The multiple-choice knapsack problem, solved to proven optimality in milliseconds.

    maximise    sum_j values_j(n_j)
    subject to  sum_j n_j <= nodes,   n_j one of claim j's allowed choices

The way is that of Pisinger's minimal algorithm (EJOR 83, 1995): relax, then close the gap in a
small core.

1. *Price.* Relaxing the supply puts a price on a node. At price p each claim takes the choice
   that is best for it alone, on its values' concave envelope; p * nodes plus what all claims then
   net bounds the optimum from above. The best price is that of the envelopes' step at which the
   supply ends, taken in order of their slopes; between two prices few steps remain to be sorted.
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

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, repeat
from math import inf
from operator import getitem, mul, sub

import numpy as np
from numpy.typing import NDArray

from malletrain.allocate.menu import Floats, Ints, Menu
from malletrain.allocate.rows import Row

#: So few steps of envelopes are sorted.
_FEW_STEPS = 128

#: The price of a node is mostly among these times what the next ones are worth to jobs.
_PRICES_OVER_NEXT = (0.95, 1.0, 1.05, 1.1, 1.16, 1.22, 1.28)

#: Choices in the first core, and by how much each next one has more.
_FIRST_CORE = 64
_CORE_GROWTH = 4

#: What it takes to start on a row of cells, in cells.
_STEP_CELLS = 1000

#: Shortfalls below this share of all worth are rounding.
_ROUNDING = 1e-14


@dataclass(frozen=True, slots=True)
class Packing:
    """Counts that fit."""

    #: For each row, the counts of its copies.
    counts: list[list[int]]
    #: Proved: no counts that fit are worth more by more than this; 0.0 where they are optimal.
    max_missing: float


def pack(rows: Sequence[Row], copies: Sequence[int], nodes: int, work_limit: int) -> Packing:
    """Find the best counts within `nodes` for so many copies of each row.

    `work_limit` bounds the cells of dynamic programmes that are filled in, with what it takes to
    start on them.
    """
    favourites = [row.corners[-1] for row in rows]
    if sum(map(mul, favourites, copies)) <= nodes:
        return Packing([[count] * n for count, n in zip(favourites, copies, strict=True)], 0.0)
    start = _start(rows, copies, nodes, *_price(rows, copies, nodes))
    if start.shortfall <= start.rounding:
        return Packing(start.spread(()), 0.0)
    best, max_missing = _close(_core(start, rows, nodes), work_limit)
    return Packing(start.spread(best.moves), max_missing)


def _price(
    rows: Sequence[Row], copies: Sequence[int], nodes: int
) -> tuple[float, list[int], list[int]]:
    """Return the best price, and counts optimal at it: the highest that fit and lowest that do not.

    Of rows whose favourites do not fit.
    """
    corners, falls = [row.corners for row in rows], [row.falls for row in rows]
    # Steps taken of each envelope.
    fewest, most = [0] * len(rows), list(map(len, falls))

    def try_price(price: float) -> bool:
        nonlocal fewest, most
        fall = repeat(-price)
        taken = list(map(bisect_left, falls, fall, fewest, most))
        does_fit: bool = sum(map(mul, map(getitem, corners, taken), copies)) <= nodes
        if does_fit:
            fewest = taken
        else:
            most = taken
        return does_fit

    known = sorted([row.worth_of_next for row in rows if row.worth_of_next > 0])
    guesses = [known[len(known) // 2] * factor for factor in _PRICES_OVER_NEXT] if known else []
    first, last = 0, len(guesses)
    while first < last:
        middle = (first + last) // 2
        if try_price(guesses[middle]):
            last = middle
        else:
            first = middle + 1
    while True:
        left = list(map(sub, most, fewest))
        most_left = max(left)
        if sum(left) <= _FEW_STEPS or most_left == 1:
            break
        row = left.index(most_left)
        try_price(-falls[row][(fewest[row] + most[row]) // 2])

    idle = nodes - sum(map(mul, map(getitem, corners, fewest), copies))
    steps = [
        (falls[row][step], row, (corners[row][step + 1] - corners[row][step]) * copies[row])
        for row, (first, last) in enumerate(zip(fewest, most, strict=True))
        for step in range(first, last)
    ]
    steps.sort()
    taken = list(accumulate([size for *_, size in steps]))
    least = steps[bisect_right(taken, idle)][0]
    most = fewest.copy()
    for fall, row, _ in steps:
        if fall > least:
            break
        most[row] += 1
        if fall < least:
            fewest[row] += 1
    return -least, list(map(getitem, corners, fewest)), list(map(getitem, corners, most))


@dataclass(frozen=True, slots=True)
class _Start:
    """Counts at the best price from which the search for the last bit starts; they fit."""

    price: float
    copies: Sequence[int]
    #: By row.
    base: list[int]
    #: A row of whose copies the last so many have another count: (row, copies, count).
    split: tuple[int, int, int] | None
    #: Nodes that are left.
    idle: int
    #: Shortfalls that differ by less than this are equal.
    rounding: float

    @property
    def shortfall(self) -> float:
        return self.price * self.idle

    def spread(self, moves: tuple[tuple[int, int], ...]) -> list[list[int]]:
        """Return the copies' counts after moves of the core's rows."""
        counts = [[count] * n for count, n in zip(self.base, self.copies, strict=True)]
        num_rows = len(counts)
        next_copy = dict.fromkeys(range(num_rows), 0)
        origins = {}
        if self.split is not None:
            origin, num_moved, count = self.split
            origins[num_rows] = origin
            next_copy[num_rows] = self.copies[origin] - num_moved
            counts[origin][next_copy[num_rows] :] = [count] * num_moved
        for row, count in moves:
            counts[origins.get(row, row)][next_copy[row]] = count
            next_copy[row] += 1
        return counts


def _start(  # noqa: PLR0917 - what `_price` returns comes last
    rows: Sequence[Row],
    copies: Sequence[int],
    nodes: int,
    price: float,
    fewest: list[int],
    most: list[int],
) -> _Start:
    """Move claims from fewest to most, which costs nothing, as long as they fit."""
    base, split = fewest.copy(), None
    idle = nodes - sum(map(mul, fewest, copies))
    growths = [(most[row] - count, row) for row, count in enumerate(fewest) if most[row] > count]
    for step, row in sorted(growths):
        num_moved = min(copies[row], idle // step)
        if num_moved == 0:
            break
        idle -= num_moved * step
        if num_moved < copies[row]:
            split = (row, num_moved, most[row])
            break
        base[row] = most[row]
    worths = [abs(row.values.item(count)) for row, count in zip(rows, base, strict=True)]
    rounding = _ROUNDING * (sum(map(mul, worths, copies)) + price * nodes)
    return _Start(price, copies, base, split, idle, rounding)


@dataclass(frozen=True, slots=True, eq=False)
class _Core:
    """The start in arrays; see the module's text for the words."""

    #: Copies split off are a further row.
    menu: Menu
    price: float
    #: Shape `(num_rows,)`: counts that fit and have no losses, from which deviations count.
    base: Ints
    idle: int
    rounding: float


def _core(start: _Start, rows: Sequence[Row], nodes: int) -> _Core:
    values = [row.values for row in rows]
    copies, base = list(start.copies), list(start.base)
    if start.split is not None:
        row, num_moved, count = start.split
        values.append(values[row])
        copies[row] -= num_moved
        copies.append(num_moved)
        base.append(count)
    menu = Menu.of_values(values, copies)
    menu.values[menu.nodes > nodes] = -inf
    base_array = np.array(base, dtype=np.intp)
    return _Core(menu, start.price, base_array, start.idle, start.rounding)


@dataclass(frozen=True, slots=True)
class _Best:
    """The best deviations from the base found so far: a row and a count for each claim moved."""

    moves: tuple[tuple[int, int], ...]
    shortfall: float


def _close(core: _Core, work_limit: int) -> tuple[_Best, float]:
    """Return the best deviations, and by how much at most they are not the best there are."""
    best = _with_one_move(core, _Best((), core.price * core.idle))
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
