"""What the control plane is given from outside.

Beside what is here: `clock.Clock`, `store.EventStore`, `batch.base.BatchSystem` and
`core.problem.Allocator`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from malletrain.core.events import DecisionTaken

_T = TypeVar("_T")


class Connection(Protocol):
    """An agent's connection, whatever carries it."""

    @property
    def was_silent(self) -> bool:
        """Whether it ended because the agent's side gave no sign of life any more."""
        ...

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


class Offload(Protocol):
    """Runs what blocks or computes, away from the event loop where there is one to spare."""

    async def __call__(self, call: Callable[[], _T]) -> _T: ...


async def in_thread(call: Callable[[], _T]) -> _T:
    """Run it in a thread of its own."""
    return await asyncio.to_thread(call)


class Hands(Protocol):
    """Carries out what was decided; what comes of each action comes back as an event."""

    def execute(self, decision: DecisionTaken) -> None: ...


class JobPaths(Protocol):
    """Where a job's files lie, for the controller and its nodes alike."""

    def log_dir(self, job_id: str) -> Path: ...

    def checkpoint_dir(self, job_id: str) -> Path: ...
