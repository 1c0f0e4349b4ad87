"""Common random numbers: a draw is a function of a seed and of what is drawn, never of when.

Two policies that ask for the same quantity ("the crash of node x in interval 3") get the same
answer, whatever else either has drawn before.

A seed and a key are mixed into 64 bits by multiply-xorshift, one round a part of the key, and
SplitMix64's finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from statistics import NormalDist

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = 0x9E37_79B9_7F4A_7C15
_ODD = 0xD129_0B26_88CC_1A37
_STANDARD = NormalDist()


def uniform(seed: int, *key: int | str) -> float:
    """Return a number in [0, 1)."""
    return (_bits(seed, key) >> 11) * 2.0**-53


def normal(seed: int, *key: int | str) -> float:
    """Return a number of mean 0 and standard deviation 1."""
    # Halves keep 0 and 1 out, which have no quantile; with 53 bits the last would round to 1.
    return _STANDARD.inv_cdf(((_bits(seed, key) >> 12) + 0.5) * 2.0**-52)


def exponential(seed: int, mean: float, *key: int | str) -> float:
    """Return a number of this mean, 0 or more: the time to the next of independent events."""
    return -mean * math.log1p(-uniform(seed, *key))


def _bits(seed: int, key: tuple[int | str, ...]) -> int:
    state = 0
    # The seed is mixed like a part: else neighbouring seeds would share draws of integer keys.
    for part in (seed, *key):
        number = _number(part) if isinstance(part, str) else part
        state = ((state ^ number) * _ODD + _GOLDEN) & _MASK
        state ^= state >> 32
    state = ((state ^ state >> 30) * 0xBF58_476D_1CE4_E5B9) & _MASK
    state = ((state ^ state >> 27) * 0x94D0_49BB_1331_11EB) & _MASK
    return state ^ state >> 31


@lru_cache(maxsize=65536)
def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
