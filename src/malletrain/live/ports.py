"""What the control plane is given from outside, beside `clock.Clock` and `store.EventStore`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

_T = TypeVar("_T")


class Connection(Protocol):
    """An agent's connection, whatever carries it."""

    async def receive(self) -> bytes | None:
        """Return the next message; None once the connection is closed.

        Raises:
            WireError: what came cannot be a message.
        """
        ...

    async def send(self, data: bytes) -> None:
        """Return when the data is on its way.

        Raises:
            OSError: the connection is closed.
        """
        ...

    async def close(self, reason: str) -> None: ...


class Batch(Protocol):
    """The batch system, as far as the controller talks to it."""

    @property
    def max_nodes(self) -> int | None:
        """The most nodes that it could ever give; None where nobody knows."""
        ...

    async def add_nodes(self, count: int) -> None:
        """Ask for nodes; their agents call when they are there.

        Raises:
            BatchError: it does not want to.
        """
        ...

    async def remove_node(self, node_id: str, *, is_abrupt: bool) -> None:
        """Take a node back with its grace period, or at once.

        Raises:
            BatchError: it does not want to.
        """
        ...

    async def stop(self) -> None:
        """Give every node back, and return once they are gone."""
        ...


class Offload(Protocol):
    """Runs what blocks or computes, away from the event loop where there is one to spare."""

    async def __call__(self, call: Callable[[], _T]) -> _T: ...


async def in_thread(call: Callable[[], _T]) -> _T:
    """Run it in a thread of its own."""
    return await asyncio.to_thread(call)


class JobPaths(Protocol):
    """Where a job's files lie, for the controller and its nodes alike."""

    def log_dir(self, job_id: str) -> Path: ...

    def checkpoint_dir(self, job_id: str) -> Path: ...
