"""An emulated device and link: the examples' steps last as long as stated here.

Two cores cannot show how eight nodes scale. So these examples do all their mathematics for real,
on small models, and then wait until the step has taken as long as one slow device a worker, joined
by one slow link, would have needed. Nothing of this is in the library, and no number learned from
these jobs says anything about real hardware.

A step of n workers at a global batch of B rows takes

    flops_per_row * ceil(B / n) / DEVICE_FLOPS_PER_S
    + 2 * (n - 1) / n * gradient_bytes / LINK_BYTES_PER_S + 2 * (n - 1) * LINK_LATENCY_S

where the second line is a ring all-reduce of the gradients after the backward pass, without
overlap. With EMULATED_DEVICE=off in the environment nothing waits; the mathematics is the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

DEVICE_FLOPS_PER_S = 250e6
LINK_BYTES_PER_S = 6e6
LINK_LATENCY_S = 0.001


@dataclass(frozen=True, slots=True)
class EmulatedDevice:
    """What one model needs of the device and the link."""

    #: Forward and backward pass, as PyTorch's own counter has them.
    flops_per_row: float
    gradient_bytes: int

    @classmethod
    def for_model(cls, model: nn.Module, flops_per_row: float) -> EmulatedDevice:
        return cls(flops_per_row, sum(4 * p.numel() for p in model.parameters()))

    def step_s(self, rows: int, workers: int) -> float:
        """Return how long a step takes on a worker that has so many of its rows."""
        hops = 2 * (workers - 1)
        exchange_s = hops / workers * self.gradient_bytes / LINK_BYTES_PER_S
        return self.flops_per_row * rows / DEVICE_FLOPS_PER_S + exchange_s + hops * LINK_LATENCY_S

    def rates(self, global_batch: int, most_workers: int = 8) -> list[float]:
        """Return the samples/s of 0, 1, ... workers: the true curve, for comparison."""
        steps_s = [self.step_s(-(-global_batch // n), n) for n in range(1, most_workers + 1)]
        return [0.0, *(round(global_batch / step_s, 2) for step_s in steps_s)]

    @contextmanager
    def step(self, rows: int, workers: int) -> Iterator[None]:
        """Run the step's mathematics, then wait until the stated time has passed."""
        ends_at_s = time.monotonic() + self.step_s(rows, workers)
        yield
        if os.environ.get("EMULATED_DEVICE") != "off":
            time.sleep(max(0.0, ends_at_s - time.monotonic()))
