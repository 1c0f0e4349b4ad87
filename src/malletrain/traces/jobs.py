"""Jobs of a machine's main scheduler, as its logs tell of them."""

from __future__ import annotations

from msgspec import Struct


# Without garbage collection: a log has millions, and none can be part of a cycle.
class JobRecord(Struct, frozen=True, kw_only=True, gc=False):
    """A job that had nodes; epoch seconds where the log tells the date."""

    id: str
    submitted_at_s: float | None
    started_at_s: float
    #: Of a job that still runs: until when the log tells of it.
    ended_at_s: float
    #: When the log was written; such a job goes on until the last moment that the log knows.
    is_running: bool = False
    nodes: int
    #: Empty where the log does not name them.
    node_ids: tuple[str, ...] = ()
    #: Its nodes are neither idle nor in use.
    is_maintenance: bool = False


class JobLog(Struct, frozen=True, kw_only=True):
    """All jobs of a log: they have to be sorted by their start before nodes can be derived."""

    jobs: tuple[JobRecord, ...]
    #: As the log's header says it.
    num_machine_nodes: int | None = None
    #: False: times are counted from a moment that the log does not tell.
    has_dates: bool = True
    #: It holds every job that ran in a period of time; False: those submitted in it.
    is_of_period: bool = False
    #: Tasks of an array may bear one id.
    has_shared_ids: bool = False
