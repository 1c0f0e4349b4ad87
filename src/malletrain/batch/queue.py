"""What a batch system with a queue (Slurm, PBS) can do for the scavenger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Survey:
    """What one batched set of queries found. A host is a node's name in the batch system."""

    at_s: float
    #: Own pilots that wait in the queue -> the walltime that each asks for, s.
    waiting: Mapping[str, float] = field(default_factory=dict)
    #: Own pilots that run, by host.
    running: Mapping[str, str] = field(default_factory=dict)
    #: Hosts that nobody uses and that are ours to take -> epoch s at which somebody else is to have
    #: them (a planned start, a reservation); infinite where nobody is.
    idle: Mapping[str, float] = field(default_factory=dict)
    #: The same of every host that somebody else is to have, idle or not.
    wanted_at_s: Mapping[str, float] = field(default_factory=dict)
    #: Hosts that are being taken out of service (drained, down, in maintenance) -> the state.
    unfit: Mapping[str, str] = field(default_factory=dict)


class Queue(Protocol):
    """One batch system's programs. Every method raises `BatchError` where they fail."""

    async def survey(self) -> Survey:
        """Ask about all nodes and own pilots.

        Raises:
            BatchError: the answer is empty, failed or makes no sense. It never means "no nodes".
        """
        ...

    async def is_up(self) -> bool:
        """Say whether the scheduler answers, by the cheapest check there is."""
        ...

    async def submit(self, count: int, walltime_s: float) -> tuple[str, ...]:
        """Queue so many pilots, one node each, as one array; return their ids."""
        ...

    async def cancel(self, pilot_ids: tuple[str, ...]) -> None:
        """Take pilots out of the queue, or end them; unknown ones are no error."""
        ...
