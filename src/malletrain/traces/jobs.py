"""Jobs of a machine's main scheduler, as its logs tell of them."""

from __future__ import annotations

from msgspec import Struct

from malletrain.errors import TraceError

#: More than any machine has, and 30,000 years: a slip of the pen would fill memory or overflow.
MOST_NODES = 1_000_000
MOST_S = 1e12


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


def whole_nodes(nodes: float) -> int:
    """Return a number of nodes as a log has it.

    Raises:
        TraceError: no job can have so many.
    """
    if not (nodes <= MOST_NODES and nodes == int(nodes)):
        raise TraceError(
            f"a job of {nodes:.12g} nodes: it must be a whole number, {MOST_NODES:,} at most"
        )
    return int(nodes)


def known_time_s(at_s: float) -> float:
    """Return a time or duration as a log has it.

    Raises:
        TraceError: it is beyond all reason.
    """
    if not abs(at_s) <= MOST_S:
        raise TraceError(f"a time of {at_s:.12g} s: it must be {MOST_S:.12g} s at most")
    return at_s
