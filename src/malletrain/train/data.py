"""Which samples a worker takes: a pure function of seed, position, rank and number of workers.

The only thing that must survive a rescale is the `Position`. Every epoch visits a permutation of
the data set that depends on the seed and the epoch alone; a step takes the next rows of it, and
rank r of n the part [B*r/n, B*(r+1)/n) of those B rows. So every sample is consumed exactly once
an epoch, whatever sequence of rescales happens: there is no padding and no remainder.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Position:
    """How far the job has come, in committed steps."""

    step: int = 0
    samples: int = 0
    epoch: int = 0
    #: Samples of the epoch that are consumed.
    offset: int = 0

    def after(self, batch_samples: int, epoch_samples: int) -> Position:
        """Return the position after a step of that many samples."""
        offset = self.offset + batch_samples
        is_epoch_over = offset >= epoch_samples
        return Position(
            step=self.step + 1,
            samples=self.samples + batch_samples,
            epoch=self.epoch + is_epoch_over,
            offset=0 if is_epoch_over else offset,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What one worker does in one step."""

    position: Position
    #: Samples of the step on all workers.
    batch_samples: int
    #: Indices into the data set, one tensor a micro-batch; empty where the rank has no share.
    parts: tuple[Tensor, ...]

    @property
    def own_samples(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def indices(self) -> list[int]:
        return [index for part in self.parts for index in part.tolist()]


@dataclass(frozen=True, slots=True)
class Course:
    """What is to be trained: a data set of `epoch_samples`, in which batches, for how long."""

    epoch_samples: int
    seed: int
    #: Samples of a step with so many workers.
    batch_of: Callable[[int], int]
    is_shuffled: bool = True
    #: At most so many samples go through the model at once; None for no limit.
    micro_batch: int | None = None
    #: None trains until `work_samples`, or for ever.
    epochs: int | None = None
    work_samples: float | None = None

    def is_over(self, position: Position) -> bool:
        if self.epochs is not None and position.epoch >= self.epochs:
            return True
        return self.work_samples is not None and position.samples >= self.work_samples

    def plan(self, position: Position, rank: int, workers: int) -> Plan:
        """Return what this rank does in the step at `position`."""
        order = _epoch_order(self, position.epoch)
        rows = order[position.offset : position.offset + self.batch_of(workers)]
        count = len(rows)
        own = rows[count * rank // workers : count * (rank + 1) // workers]
        return Plan(position, count, self._split(own))

    def sample_indices(self) -> Tensor:
        """Return a batch to warm up with, about a worker's share of four."""
        share = max(1, self.batch_of(1) // 4)
        return _epoch_order(self, 0)[: min(share, self.micro_batch or share)]

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        if not len(rows):
            return ()
        if self.micro_batch is None:
            return (rows,)
        # Even parts, so that the last one is no tiny batch.
        return torch.tensor_split(rows, -(-len(rows) // self.micro_batch))


#: The permutations in use: one data set is trained at a time, and look-ahead needs the next epoch.
_orders: dict[tuple[int, int, int, bool], Tensor] = {}


def _epoch_order(course: Course, epoch: int) -> Tensor:
    key = (course.seed, epoch, course.epoch_samples, course.is_shuffled)
    order = _orders.get(key)
    if order is None:
        while len(_orders) > 1:
            del _orders[next(iter(_orders))]
        order = _orders[key] = _draw_order(*key)
    return order


def _draw_order(seed: int, epoch: int, samples: int, is_shuffled: bool) -> Tensor:
    if not is_shuffled:
        return torch.arange(samples)
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    return torch.randperm(samples, generator=generator)


def mix(*numbers: int) -> int:
    """Return 63 bits that depend on all the numbers."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def seed_all(seed: int) -> None:
    """Seed the generators of torch, Python and, where it is imported, NumPy.

    Called at every step with a mix of seed, step and rank: so a step that is done again after a
    loss, or after a resume, draws the same numbers, and no generator's state need be kept.
    """
    # Not torch.manual_seed, which takes sixty times as long.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)
