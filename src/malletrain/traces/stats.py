"""Statistics of a trace: how much is idle, in what pieces, and how it comes and goes."""

from __future__ import annotations

from msgspec import Struct


class TraceSummary(Struct, frozen=True, kw_only=True):
    """What a trace offers, whoever uses it."""

    source: str
    length_s: float
    #: Nodes that are idle at any time.
    nodes: int
    intervals: int
    #: Moments at which any node becomes idle or leaves, and the median time between two.
    events: int
    median_event_gap_s: float
    idle_node_s: float
    mean_idle_nodes: float
    median_idle_nodes: float
    #: Of the machine's whole time; None where its size is not known.
    idle_share: float | None
    median_interval_s: float
    mean_interval_s: float
    p95_interval_s: float
    #: Upper bounds of the duration classes; the last class is open.
    duration_bounds_s: tuple[float, ...]
    #: Shares of the number of intervals, and of the idle time, by duration class.
    share_of_count: tuple[float, ...]
    share_of_time: tuple[float, ...]
    #: Of the nodes idle for so long, the share that leaves within the next minute.
    ages_s: tuple[float, ...]
    share_leaving_by_age: tuple[float, ...]
    #: How many nodes become idle or leave at one moment: (nodes, moments), sorted.
    join_sizes: tuple[tuple[int, int], ...]
    leave_sizes: tuple[tuple[int, int], ...]
