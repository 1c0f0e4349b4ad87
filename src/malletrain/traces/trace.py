"""A trace as a replay takes it, and how a user says what the log leaves open."""

from __future__ import annotations

import enum

from msgspec import Struct

from malletrain.traces.intervals import IdleInterval


class TraceFormat(enum.Enum):
    IDLE = "idle"
    SWF = "swf"
    SACCT = "sacct"
    SACCT_JSON = "sacct-json"
    CSV = "csv"


class TraceOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the user said of a log; None (or nothing) is what was not said."""

    #: None: found by looking at the first line.
    format: TraceFormat | None = None
    #: The size of the machine, for logs that do not name its nodes.
    nodes: int | None = None
    #: The columns of a dump without a header line.
    columns: tuple[str, ...] = ()
    #: For logs that count processors.
    processors_per_node: int | None = None
    #: The clock that wrote the log's local times: a name (Europe/Berlin) or an offset (+01:00).
    time_zone: str | None = None
    #: From the first start of a job: what is cut off since jobs before it are not in the log.
    warm_up_s: float | None = None
    #: Back from the last end of a job: what is cut off since jobs after it are not in the log.
    drain_s: float | None = None
    #: As long as this without any job on the machine is an outage and not idle time.
    outage_s: float | None = None


class Trace(Struct, frozen=True, kw_only=True):
    """When which nodes of a machine were idle; times are seconds from the trace's start."""

    source: str
    #: When the trace's start was, in epoch seconds; None where the log does not say.
    origin_epoch_s: float | None
    length_s: float
    #: All of the machine's nodes, idle or not; None where neither log nor user says.
    num_machine_nodes: int | None
    #: Sorted by (from_s, node), within `[0, length_s]`; a node's own neither overlap nor touch.
    intervals: tuple[IdleInterval, ...]
    #: What was assumed, mended or left out, in words with counts.
    notes: tuple[str, ...]
