"""Statistics of a trace: how much is idle, in what pieces, and how it comes and goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from malletrain.traces.trace import Trace

#: Upper bounds of the duration classes.
_BOUNDS_S = (60.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
_AGES_S = (0.0, 60.0, 300.0, 3600.0, 6 * 3600.0)
_MINUTE_S = 60.0

_Floats = NDArray[np.float64]
_Sizes = tuple[tuple[int, int], ...]


class TraceSummary(Struct, frozen=True, kw_only=True):
    """What a trace offers, whoever uses it."""

    source: str
    length_s: float
    #: Nodes that are idle at any time.
    nodes: int
    intervals: int
    #: Moments at which any node becomes idle or leaves, and the median time between two. What
    #: begins with the trace or ends with it does so because the log does: it is none here, nor
    #: in the sizes below.
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
    join_sizes: _Sizes
    leave_sizes: _Sizes


def summary(trace: Trace) -> TraceSummary:
    """Return the statistics of a trace; it has idle time, else it could not have been loaded."""
    from_s = np.array([interval.from_s for interval in trace.intervals])
    to_s = np.array([interval.to_s for interval in trace.intervals])
    lasts_s = to_s - from_s
    idle_node_s = float(lasts_s.sum())
    capacity_s = (trace.num_machine_nodes or 0) * trace.length_s
    joins, leaves = from_s[from_s > 0], to_s[to_s < trace.length_s]
    moments_s = np.unique(np.concatenate([joins, leaves]))
    of_class = np.searchsorted(_BOUNDS_S, lasts_s, side="right")
    num_classes = len(_BOUNDS_S) + 1
    return TraceSummary(
        source=trace.source,
        length_s=trace.length_s,
        nodes=len({interval.node for interval in trace.intervals}),
        intervals=len(lasts_s),
        events=len(moments_s),
        median_event_gap_s=_median(np.diff(moments_s)),
        idle_node_s=idle_node_s,
        mean_idle_nodes=idle_node_s / trace.length_s,
        median_idle_nodes=_median_idle_nodes(from_s, to_s, trace.length_s),
        idle_share=idle_node_s / capacity_s if capacity_s else None,
        median_interval_s=_median(lasts_s),
        mean_interval_s=float(lasts_s.mean()),
        p95_interval_s=float(np.quantile(lasts_s, 0.95)),
        duration_bounds_s=_BOUNDS_S,
        share_of_count=_shares(np.bincount(of_class, minlength=num_classes)),
        share_of_time=_shares(np.bincount(of_class, weights=lasts_s, minlength=num_classes)),
        ages_s=_AGES_S,
        share_leaving_by_age=tuple(
            _share_leaving(lasts_s, to_s < trace.length_s, age_s) for age_s in _AGES_S
        ),
        join_sizes=_sizes(joins),
        leave_sizes=_sizes(leaves),
    )


def most_idle_nodes(trace: Trace, from_s: float, until_s: float) -> int:
    """Return the most nodes that are idle at once between two times."""
    pieces = [p for p in trace.intervals if p.from_s < until_s and p.to_s > from_s]
    joins_s = np.array([max(piece.from_s, from_s) for piece in pieces])
    leaves_s = np.sort([piece.to_s for piece in pieces])
    joins_s.sort()
    # As the k-th joins, those that left up to then are gone.
    idle = np.arange(1, len(pieces) + 1) - np.searchsorted(leaves_s, joins_s, side="right")
    return int(idle.max(initial=0))


def _median(values: _Floats) -> float:
    return float(np.median(values)) if len(values) else 0.0


def _median_idle_nodes(from_s: _Floats, to_s: _Floats, length_s: float) -> float:
    """Return the number of idle nodes that there are at most for half of the time."""
    ends_s = np.concatenate([from_s, to_s, [0.0, length_s]])
    changes = np.concatenate([np.ones_like(from_s), -np.ones_like(to_s), [0.0, 0.0]])
    order = np.argsort(ends_s)
    idle = changes[order].cumsum()[:-1]
    lasts_s = np.diff(ends_s[order])
    by_idle = np.argsort(idle)
    reached_s = lasts_s[by_idle].cumsum()
    return float(idle[by_idle][np.searchsorted(reached_s, length_s / 2)])


def _shares(amounts: NDArray[np.generic]) -> tuple[float, ...]:
    return tuple((amounts / amounts.sum()).tolist())


def _share_leaving(lasts_s: _Floats, has_left: NDArray[np.bool_], age_s: float) -> float:
    """Return the share of the nodes that reach an age which leave within a minute of it.

    Nodes that the trace's end takes from view in that minute say nothing and are not counted.
    """
    leave = has_left & (lasts_s >= age_s) & (lasts_s < age_s + _MINUTE_S)
    stay = lasts_s >= age_s + _MINUTE_S
    seen = int(leave.sum() + stay.sum())
    return int(leave.sum()) / seen if seen else 0.0


def _sizes(moments_s: Iterable[float]) -> _Sizes:
    """Return how many moments there are of each number of nodes, sorted."""
    return tuple(sorted(Counter(Counter(moments_s).values()).items()))


def size_at(sizes: _Sizes, share: float) -> int:
    """Return the number of nodes that a share of the moments do not exceed, 0 for no moments."""
    left = share * sum(moments for _, moments in sizes)
    for nodes, moments in sizes:
        left -= moments
        if left <= 0:
            return nodes
    return 0
