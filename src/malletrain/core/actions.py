"""What we want done. Each action ends in exactly one event that says whether it worked."""

from __future__ import annotations

from msgspec import Struct


class Rescale(Struct, frozen=True, tag=True):
    """Make these nodes the members of the job's next generation.

    From no nodes it starts the job, to no nodes it suspends it with its state saved. Joiners are
    warmed up while the present members train on. Ends in `RescaleDone` or `RescaleFailed`.
    """

    job_id: str
    generation: int
    #: In rank order, survivors first.
    node_ids: tuple[str, ...]


class Stop(Struct, frozen=True, tag=True):
    """End the workers of a job that is over; its state is not wanted. Ends in `RescaleDone`."""

    job_id: str
    generation: int


class ReleaseNodes(Struct, frozen=True, tag=True):
    """Give leaving nodes back at once: nobody uses them. Ends in `NodesLost`."""

    node_ids: tuple[str, ...]


class WakeAt(Struct, frozen=True, tag=True):
    """Ends in `WokeUp`."""

    at_s: float


Action = Rescale | Stop | ReleaseNodes | WakeAt
