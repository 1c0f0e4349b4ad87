"""Allocators: who gets how many nodes. They take a `Problem` and give an `Allocation`, purely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from malletrain.allocate.baselines import (
    EqualShareAllocator,
    FifoAllocator,
    GreedyAllocator,
    PapersMilpWithHalfRangeBug,
)
from malletrain.allocate.exact import ExactAllocator
from malletrain.allocate.milp import MilpAllocator
from malletrain.core.problem import Allocator
from malletrain.errors import ConfigError

#: By the name that the configuration has.
ALLOCATORS: dict[str, Callable[[], Allocator]] = {
    "exact": ExactAllocator,
    "milp": MilpAllocator,
    "fifo": FifoAllocator,
    "equal-share": EqualShareAllocator,
    "greedy": GreedyAllocator,
    "papers-milp-half-range-bug": PapersMilpWithHalfRangeBug,
}


def allocator(name: str, time_limit_s: float | None = None) -> Allocator:
    """Return the allocator of this name, with this limit if it is one that knows time.

    Raises:
        ConfigError: there is none.
    """
    if name not in ALLOCATORS:
        raise ConfigError(f"there is no allocator {name!r}; there are {', '.join(ALLOCATORS)}")
    made = ALLOCATORS[name]()
    if time_limit_s is not None and isinstance(made, MilpAllocator | PapersMilpWithHalfRangeBug):
        return replace(made, time_limit_s=time_limit_s)
    return made
