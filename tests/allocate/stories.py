"""Small problems and their true answers, for the tests of this folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import strategies as st

from malletrain.core.problem import Cell, Claim, Problem, cells_worth


def claim(
    job_id: str,
    values: Sequence[float],
    *,
    min_nodes: int = 1,
    current: int = 0,
    owner: str = "",
    by_cell: tuple[int, ...] = (),
) -> Claim:
    return Claim(
        job_id=job_id,
        min_nodes=min_nodes,
        max_nodes=len(values) - 1,
        current_nodes=sum(by_cell) or current,
        values=np.array(values, dtype=np.float64),
        owner=owner,
        current_by_cell=by_cell,
    )


def problem(*claims: Claim, nodes: int, **more: object) -> Problem:
    return Problem(claims=claims, nodes=nodes, horizon_s=100.0, **more)  # type: ignore[arg-type]


def rescaling(rates: Sequence[float], current: int, up_s: float, down_s: float) -> list[float]:
    """The papers' objective over a horizon of 100 s."""
    here = rates[current]
    return [
        100 * rate - up_s * here * (n > current) - down_s * here * (n < current)
        for n, rate in enumerate(rates)
    ]


def _allowed(one: Claim) -> list[int]:
    return [0, *range(one.min_nodes, one.max_nodes + 1)]


def best_counts(asked: Problem) -> float:
    """The worth of the best counts, by trying all."""
    return max(
        sum(float(c.values[n]) for c, n in zip(asked.claims, counts, strict=True))
        for counts in itertools.product(*map(_allowed, asked.claims))
        if sum(counts) <= asked.nodes and _within_quotas(asked, counts)
    )


def _within_quotas(asked: Problem, counts: Sequence[int]) -> bool:
    return all(
        sum(n for c, n in zip(asked.claims, counts, strict=True) if c.owner == owner) <= quota
        for owner, quota in asked.quotas.items()
    )


def _cell_choices(asked: Problem, one: Claim) -> Iterator[tuple[int, ...]]:
    present = one.current_by_cell or (0,) * len(asked.cells)
    for by_cell in itertools.product(*(range(cell.nodes + 1) for cell in asked.cells)):
        classes = {c.node_class for c, n in zip(asked.cells, by_cell, strict=True) if n}
        moves = [new - old for new, old in zip(by_cell, present, strict=True)]
        is_migration = max(moves) > 0 and min(moves) < 0
        if sum(by_cell) in _allowed(one) and len(classes) <= 1 and not is_migration:
            yield by_cell


def best_cells(asked: Problem) -> float:
    """The worth of the best nodes by cell, by trying all."""
    best = -np.inf
    for answer in itertools.product(*(list(_cell_choices(asked, c)) for c in asked.claims)):
        used = [sum(column) for column in zip(*answer, strict=True)]
        power_w = sum(n * cell.power_w for n, cell in zip(used, asked.cells, strict=True))
        if (
            all(n <= cell.nodes for n, cell in zip(used, asked.cells, strict=True))
            and (asked.power_cap_w is None or power_w <= asked.power_cap_w)
            and _within_quotas(asked, [sum(by_cell) for by_cell in answer])
        ):
            worth = sum(
                cells_worth(asked, c, by_cell)
                for c, by_cell in zip(asked.claims, answer, strict=True)
            )
            best = max(best, worth)
    return best


@st.composite
def claims(draw: st.DrawFn, index: int, most: int = 6) -> Claim:
    """Values of any shape: whole ones, so that ties are common, curves with costs, or anything."""
    min_nodes = draw(st.integers(1, 3))
    max_nodes = draw(st.integers(min_nodes, max(min_nodes, most)))
    current = draw(st.sampled_from([0, *range(min_nodes, max_nodes + 1)]))
    kind = draw(st.sampled_from(["whole", "curve", "any"]))
    if kind == "whole":
        values = [float(draw(st.integers(-4, 12))) for _ in range(max_nodes + 1)]
    elif kind == "curve":
        power = draw(st.sampled_from([0.5, 0.8, 1.0, 1.3]))
        rates = [float(n) ** power for n in range(max_nodes + 1)]
        values = rescaling(rates, current, draw(st.floats(0, 60)), draw(st.floats(0, 60)))
    else:
        values = [draw(st.floats(-1e3, 1e3)) for _ in range(max_nodes + 1)]
    owner = draw(st.sampled_from(["ada", "bob"]))
    return claim(f"job{index}", values, min_nodes=min_nodes, current=current, owner=owner)


@st.composite
def count_problems(draw: st.DrawFn) -> Problem:
    drawn: list[Claim] = []
    for index in range(draw(st.integers(0, 4))):
        if drawn and draw(st.booleans()):
            twin = drawn[-1]
            drawn.append(
                claim(
                    f"job{index}",
                    twin.values.tolist(),
                    min_nodes=twin.min_nodes,
                    current=twin.current_nodes,
                    owner=draw(st.sampled_from(["ada", "bob"])),
                )
            )
        else:
            drawn.append(draw(claims(index)))
    quotas = draw(st.dictionaries(st.sampled_from(["ada", "eve"]), st.integers(0, 8)))
    return problem(*drawn, nodes=draw(st.integers(0, 14)), quotas=quotas)


@st.composite
def cell_problems(draw: st.DrawFn) -> Problem:
    cells = tuple(
        Cell(
            nodes=draw(st.integers(0, 2)),
            node_class=node_class,
            group=group,
            lifetime_s=draw(st.sampled_from([None, 25.0, 80.0])),
            speed=1.5 if node_class == "fast" else 1.0,
            power_w=300.0 if node_class == "fast" else 200.0,
        )
        for node_class, group in (("fast", "left"), ("slow", "left"), ("slow", "right"))
    )
    free = [cell.nodes for cell in cells]
    drawn = []
    for index in range(draw(st.integers(1, 3))):
        one = draw(claims(index, most=3))
        own = draw(st.sampled_from([(0,), (1, 2)]))
        by_cell = [0] * len(cells)
        for i in own:
            by_cell[i] = draw(st.integers(0, free[i]))
        if not one.min_nodes <= sum(by_cell) <= one.max_nodes:
            by_cell = [0] * len(cells)
        free = [left - n for left, n in zip(free, by_cell, strict=True)]
        drawn.append(
            claim(
                one.job_id,
                one.values.tolist(),
                min_nodes=one.min_nodes,
                owner=one.owner,
                by_cell=tuple(by_cell) if sum(by_cell) else (),
            )
        )
    return problem(
        *drawn,
        nodes=sum(cell.nodes for cell in cells),
        cells=cells,
        quotas=draw(st.dictionaries(st.just("ada"), st.integers(0, 4))),
        power_cap_w=draw(st.sampled_from([None, 500.0, 900.0])),
    )
