"""What one policy gains over another, from replays paired by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Gain:
    """A relative gain, 0.1 for a tenth more, with its 95% interval over `n` pairs."""

    mean: float
    #: None where a single pair says nothing of the spread.
    low: float | None
    high: float | None
    n: int


def gain(main: Sequence[float], other: Sequence[float]) -> Gain | None:
    """Return how much more `main` is than `other`, pair by pair; None where `other` has a zero.

    Pairs that share a seed share their chance, which a comparison pair by pair takes out. The
    interval is Student's for the mean of the pairs' relative gains.

    Raises:
        ValueError: there are no pairs, or one of a pair is missing.
    """
    ratios = [ours / theirs - 1.0 if theirs else None for ours, theirs in _pairs(main, other)]
    relative = [ratio for ratio in ratios if ratio is not None]
    if len(relative) < len(ratios):
        return None
    mean, n = statistics.fmean(relative), len(relative)
    if n == 1:
        return Gain(mean, None, None, n)
    half = student_quantile(n - 1) * statistics.stdev(relative) / math.sqrt(n)
    return Gain(mean, mean - half, mean + half, n)


def _pairs(main: Sequence[float], other: Sequence[float]) -> list[tuple[float, float]]:
    if not main:
        raise ValueError("a gain needs at least one pair")
    return list(zip(main, other, strict=True))


def student_quantile(freedom: int) -> float:
    """Return the t that Student's |t| of so many degrees of freedom stays below with 95%."""
    low, high = 0.0, math.pi / 2
    # The bounds halve until they are neighbours among the floats.
    while low < (middle := (low + high) / 2) < high:
        if _probability_within(middle, freedom) < _CONFIDENCE:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _probability_within(angle: float, freedom: int) -> float:
    """Return P(|T| < sqrt(freedom) * tan(angle)), exactly: a finite sum for whole degrees.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    is_odd = freedom % 2
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for power in range(1 + is_odd, freedom, 2):
        total += term
        term *= power / (power + 1) * math.cos(angle) ** 2
    if is_odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
