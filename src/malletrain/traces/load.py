"""Load a log of any known format as the trace of a machine's idle nodes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from malletrain.errors import TraceError
from malletrain.traces import intervals
from malletrain.traces.intervals import IdleInterval
from malletrain.traces.trace import Trace, TraceOptions


def load(path: Path, options: TraceOptions) -> Trace:
    """Return the trace of a log.

    Raises:
        TraceError: a line of it is wrong, or no node is ever idle.
    """
    with path.open(encoding="utf-8", newline="") as lines:
        merged, num_merged = _merged(intervals.read(lines, path.name))
    return Trace(
        source=path.name,
        origin_epoch_s=None,
        length_s=max((interval.to_s for interval in merged), default=0.0),
        num_machine_nodes=options.nodes,
        intervals=tuple(merged),
        notes=(f"intervals that began as the node's last one ended, joined: {num_merged:,}",),
    )


def _merged(sorted_: Iterable[IdleInterval]) -> tuple[list[IdleInterval], int]:
    merged: dict[str, IdleInterval] = {}
    done: list[IdleInterval] = []
    num_merged = 0
    for interval in sorted_:
        last = merged.get(interval.node)
        if last is not None and last.to_s == interval.from_s:
            num_merged += 1
            merged[interval.node] = replace(last, to_s=interval.to_s, end=interval.end)
            continue
        if last is not None:
            done.append(last)
        merged[interval.node] = interval
    done.extend(merged.values())
    if not done:
        raise TraceError("no node is ever idle")
    done.sort(key=lambda interval: (interval.from_s, interval.node))
    return done, num_merged
