"""Fetch the samples of a plan: in the worker itself, or ahead of time in child processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator, Sized
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from malletrain.processes import die_with_parent
from malletrain.train.data import Course, Plan, Position, mix, seed_all

#: Marks a request that has nothing to fetch: no restart bears this number.
_IDLE = -1


class Fetcher:
    """Turn indices into a batch, with the random numbers of that very step."""

    def __init__(
        self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any] | None, seed: int
    ) -> None:
        if not isinstance(dataset, Sized):
            raise TypeError(
                f"{type(dataset).__name__} has no len(): elastic training needs a data set of "
                "known size that is read by index"
            )
        self.samples = len(dataset)
        self._dataset = dataset
        self._collate = collate
        self._seed = seed

    def fetch(self, position: Position, part: int, indices: Tensor) -> Any:
        # What a data set draws (augmentation) depends on the first sample, not on who fetches.
        seed_all(mix(self._seed, position.step, part, int(indices[0])))
        if self._collate is None and isinstance(self._dataset, TensorDataset):
            return list(self._dataset[indices])
        positions = indices.tolist()
        fetch_many = getattr(self._dataset, "__getitems__", None)
        items = fetch_many(positions) if fetch_many else [self._dataset[i] for i in positions]
        return (self._collate or default_collate)(items)


class Feed:
    """Hand out the micro-batches of plans, fetched when they are asked for."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def batches(self, plan: Plan, rank: int, workers: int) -> Iterator[Any]:  # noqa: ARG002 - AheadFeed needs to know whose plans come next
        for part, indices in enumerate(plan.parts):
            yield self._fetcher.fetch(plan.position, part, indices)

    def close(self) -> None:
        """End what it started."""


class AheadFeed(Feed):
    """Hand out micro-batches that child processes fetched ahead.

    The children guess that this rank of this many workers goes on from the last plan. When that
    was wrong (a rescale, a step to be done again) what they fetched in vain is thrown away.
    """

    def __init__(self, fetcher: Fetcher, course: Course, children: int) -> None:
        super().__init__(fetcher)
        self._course = course
        self._ahead = _Ahead(course)
        loader = DataLoader(
            _Requests(fetcher),
            batch_size=None,
            sampler=self._ahead,
            num_workers=children,
            collate_fn=_as_it_is,
            worker_init_fn=partial(_begin_child, os.getpid()),
            multiprocessing_context="fork",
        )
        # Starts the children now, before there is a process group whose sockets they would keep.
        self._items: Iterator[Any] = iter(loader)
        self._expected: tuple[Position, int, int] | None = None

    def batches(self, plan: Plan, rank: int, workers: int) -> Iterator[Any]:
        if self._expected != (plan.position, rank, workers):
            self._ahead.restart(plan.position, rank, workers)
        for _ in plan.parts:
            yield self._next()
        after = plan.position.after(plan.batch_samples, self._course.epoch_samples)
        self._expected = (after, rank, workers)

    def _next(self) -> Any:
        # A half-used plan is not what is expected next.
        self._expected = None
        while True:
            restarts, batch = next(self._items)
            if restarts == self._ahead.restarts:
                return batch

    def close(self) -> None:
        self._items = iter(())


class _Ahead:
    """An endless sampler: what this rank needs next, as far as is known."""

    def __init__(self, course: Course) -> None:
        self.restarts = 0
        self._course = course
        self._at: tuple[Position, int, int] | None = None

    def restart(self, position: Position, rank: int, workers: int) -> None:
        self.restarts += 1
        self._at = (position, rank, workers)

    def __iter__(self) -> Iterator[Any]:
        while True:
            if self._at is None or self._course.is_over(self._at[0]):
                yield (_IDLE, Position(), 0, None)
                continue
            at = self._at
            plan = self._course.plan(*at)
            if not plan.parts:
                # A rank without a share must not look ahead for ever.
                yield (_IDLE, Position(), 0, None)
            for part, indices in enumerate(plan.parts):
                yield (self.restarts, plan.position, part, indices)
                if self._at is not at:
                    break
            if self._at is at:
                after = plan.position.after(plan.batch_samples, self._course.epoch_samples)
                self._at = (after, *at[1:])


class _Requests(Dataset[Any]):
    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def __getitem__(self, request: Any) -> Any:
        restarts, position, part, indices = request
        if restarts == _IDLE:
            return _IDLE, None
        return restarts, self._fetcher.fetch(position, part, indices)


def _as_it_is(item: Any) -> Any:
    return item


def _begin_child(parent_pid: int, _: int) -> None:
    """Make a child that outlives neither its worker nor a polite request to end."""
    # The batch system's SIGTERM is for the worker, which needs its data until it has left.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent(parent_pid)
    torch.set_num_threads(1)
    for descriptor, _ in tcp_sockets():
        # A copy of the process group's connection would keep it open when its owner has died.
        os.close(descriptor)


def tcp_sockets() -> set[tuple[int, int]]:
    """Return this process's connected TCP sockets: descriptor and inode."""
    found: set[tuple[int, int]] = set()
    for entry in Path("/proc/self/fd").iterdir():
        descriptor = int(entry.name)
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode) and _is_connected_tcp(descriptor):
                found.add((descriptor, status.st_ino))
    return found


def _is_connected_tcp(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        if copy.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        copy.getpeername()
        return copy.type == socket.SOCK_STREAM
