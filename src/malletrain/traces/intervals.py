"""Traces of idle intervals: when each node of a machine was free, and how it was taken back.

CSV with a header line, sorted by start: ``node,idle_from_s,idle_to_s`` and two columns that may
be missing: ``end``, how it is taken back (``planned``, the default: with the grace period;
``kill``: without notice), and ``group``, its cabinet or switch (default: its name without the
number at its end).

A log that is not sorted is refused, with its line: who plays one follows it as it is read.
"""

from __future__ import annotations

import csv
import enum
import math
from collections.abc import Iterable, Iterator
from typing import TextIO

from msgspec import Struct

from malletrain.errors import TraceError
from malletrain.traces.files import UnreadableError, quoted
from malletrain.traces.jobs import MOST_S

_NEEDED = ("node", "idle_from_s", "idle_to_s")
_COLUMNS = (*_NEEDED, "end", "group")


class IntervalEnd(enum.Enum):
    PLANNED = "planned"
    KILL = "kill"


_END = {"": IntervalEnd.PLANNED} | {end.value: end for end in IntervalEnd}


# Without garbage collection: a log has hundreds of thousands, and none can be part of a cycle.
class IdleInterval(Struct, frozen=True, kw_only=True, gc=False):
    """One node is free from one time of the trace to another."""

    node: str
    from_s: float
    to_s: float
    end: IntervalEnd = IntervalEnd.PLANNED
    group: str = ""


def read(lines: Iterable[str], source: str) -> Iterator[IdleInterval]:
    """Yield the intervals of a trace, one line at a time.

    Raises:
        TraceError: a line is no interval, out of order, or overlaps another of its node's;
            `source` and the line's number say where.
    """
    rows = csv.reader(lines, strict=True)
    try:
        header = next(rows, [])
        _check_header(header)
        yield from _in_order(_intervals(rows, header))
    except UnreadableError:
        raise
    except (TraceError, csv.Error) as error:
        raise TraceError(f"{source}, line {max(rows.line_num, 1)}: {error}") from error


def _in_order(intervals: Iterable[IdleInterval]) -> Iterator[IdleInterval]:
    last_from_s = -math.inf
    free_at_s: dict[str, float] = {}
    for interval in intervals:
        if interval.from_s < last_from_s:
            raise TraceError("it starts before the line above: sort by idle_from_s")
        if interval.from_s < free_at_s.get(interval.node, -math.inf):
            raise TraceError(f"it overlaps another interval of node {interval.node}")
        last_from_s = interval.from_s
        free_at_s[interval.node] = interval.to_s
        yield interval


def _check_header(found: list[str]) -> None:
    if missing := [name for name in _NEEDED if name not in found]:
        raise TraceError(f"the first line must name the columns; {', '.join(missing)} is missing")
    if unknown := [name for name in found if name not in _COLUMNS]:
        raise TraceError(f"unknown column {quoted(unknown[0])}: there may be {', '.join(_COLUMNS)}")
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise TraceError(f"the first line names the column {twice} twice")


def _intervals(rows: Iterable[list[str]], header: list[str]) -> Iterator[IdleInterval]:
    """Yield rows as intervals; by position, since there may be hundreds of thousands."""
    node_at, from_at, to_at = (header.index(name) for name in _NEEDED)
    end_at = header.index("end") if "end" in header else None
    group_at = header.index("group") if "group" in header else None
    places: dict[tuple[str, str], tuple[str, str]] = {}
    for row in filter(None, rows):
        if len(row) != len(header):
            raise TraceError("it has another number of columns than the first line")
        from_s, to_s = _seconds(row[from_at], "idle_from_s"), _seconds(row[to_at], "idle_to_s")
        if to_s <= from_s:
            raise TraceError(f"idle_to_s {to_s:g} is not after idle_from_s {from_s:g}")
        key = (row[node_at], "" if group_at is None else row[group_at])
        if (place := places.get(key)) is None:
            place = places[key] = _place(*key)
        node, group = place
        end = _END[""] if end_at is None else _END.get(row[end_at])
        if end is None:
            raise TraceError(f"end is {quoted(row[end_at or 0])}: it may be planned or kill")
        yield IdleInterval(node=node, from_s=from_s, to_s=to_s, end=end, group=group)


def _place(node: str, group: str) -> tuple[str, str]:
    node = node.strip()
    if not node or "/" in node or not node.isprintable():
        raise TraceError(f"{quoted(node)} is no node's name")
    return node, group or group_of(node)


def group_of(node: str) -> str:
    """Return the cabinet or switch that a node's name tells: the name without its last number."""
    return node.rstrip("0123456789")


def _seconds(text: str, column: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MOST_S:
        raise TraceError(f"{column} is {quoted(text)}: it must be seconds, 0 to {MOST_S:.12g}")
    return seconds


def write(intervals: Iterable[IdleInterval], to: TextIO) -> None:
    """Write a trace that `read` reads back, sorted, times to the tenth of a second."""
    rows = csv.writer(to, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for i in sorted(intervals, key=lambda interval: (interval.from_s, interval.node)):
        rows.writerow([i.node, f"{i.from_s:.1f}", f"{i.to_s:.1f}", i.end.value, i.group])
