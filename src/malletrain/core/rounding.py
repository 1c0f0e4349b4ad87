"""Roundings of what nobody knows better: equal questions then meet again, and are answered once."""

from __future__ import annotations

import math


def rounded(value: float, step: float) -> float:
    """Return the nearest whole power of `1 + step`: within about half a step of a positive value.

    What is not positive stays as it is.
    """
    if value <= 0:
        return value
    width = math.log1p(step)
    return math.exp(round(math.log(value) / width) * width)
