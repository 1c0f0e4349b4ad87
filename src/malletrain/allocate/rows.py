"""What the exact solver asks of a claim again and again, found once for claims that are alike.

Decisions follow one another closely, and most claims stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np

from malletrain.allocate.menu import Floats, check_bounds, check_finite
from malletrain.core.problem import Claim

#: What staying put is worth beside an equal alternative, relative to the job's worth. Above
#: the rounding of sums over thousands of jobs, far below what a curve can be known to.
STAY_BONUS = 1e-9

_REMEMBERED = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The choices of claims that are alike: identical jobs would make a solver try all swaps."""

    #: Shape `(max_nodes + 1,)`; a choice that is not allowed is worth -inf.
    values: Floats
    #: Corners of the values' concave envelope, from 0 nodes on as far as it rises.
    corners: tuple[int, ...]
    #: The slopes between them, negated: they rise.
    falls: tuple[float, ...]
    #: What the second node more is worth, as the first one pays for the rescale; 0 if unknown.
    worth_of_next: float = 0.0

    @classmethod
    def of(cls, values: Floats, worth_of_next: float = 0.0) -> Row:
        corners, falls = _envelope(values.tolist())
        return cls(values, tuple(corners), tuple(falls), worth_of_next)


@lru_cache(maxsize=4 * _REMEMBERED)
def row_of(claim: Claim) -> Row:
    """Return the claim's row; the same one for all that are alike.

    Raises:
        InvariantError: the claim is not well formed.
    """
    check_bounds(claim)
    check_finite(claim)
    return _row(claim.values.tobytes(), claim.min_nodes, claim.current_nodes)


@lru_cache(maxsize=_REMEMBERED)
def _row(all_values: bytes, min_nodes: int, current: int) -> Row:
    values = np.frombuffer(all_values).copy()
    values[1:min_nodes] = -inf
    worth_of_next = 0.0
    if 0 < current < values.size - 2 and values[current + 1] > -inf:
        worth_of_next = float(values[current + 2] - values[current + 1])
    if current < values.size:
        # So that nothing moves without gain.
        scale = float(abs(values.max()) + abs(values[0]))
        values[current] += STAY_BONUS * (scale or 1.0)
    values.flags.writeable = False
    return Row.of(values, worth_of_next)


def _envelope(values: list[float]) -> tuple[list[int], list[float]]:
    """Return the corners of the concave envelope as far as it rises, and its slopes negated."""
    corners, falls = [0], [-inf]
    for count in range(1, len(values)):
        value = values[count]
        if value == -inf:
            continue
        last = corners[-1]
        fall = (values[last] - value) / (count - last)
        while fall <= falls[-1]:
            corners.pop()
            falls.pop()
            last = corners[-1]
            fall = (values[last] - value) / (count - last)
        if fall < 0:
            corners.append(count)
            falls.append(fall)
    return corners, falls[1:]
