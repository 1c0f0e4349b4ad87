"""Traces of idle intervals: when each node of a machine was free, and how it was taken back.

CSV with a header line, sorted by start: ``node,idle_from_s,idle_to_s`` and two columns that may
be missing: ``end``, how it is taken back (``planned``, the default: with the grace period;
``kill``: without notice), and ``group``, its cabinet or switch (default: its name without the
number at its end).
"""

from __future__ import annotations

import csv
import enum
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TextIO

from msgspec import Struct

from malletrain.errors import TraceError

_NEEDED = ("node", "idle_from_s", "idle_to_s")
_COLUMNS = (*_NEEDED, "end", "group")


class IntervalEnd(enum.Enum):
    PLANNED = "planned"
    KILL = "kill"


class IdleInterval(Struct, frozen=True, kw_only=True):
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
    rows = csv.DictReader(lines, strict=True)
    try:
        _check_header(rows.fieldnames)
        yield from _in_order(_interval(row) for row in rows)
    except (TraceError, csv.Error) as error:
        line = max(rows.reader.line_num, 1)
        raise TraceError(f"{source}, line {line}: {error}") from error


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


def _check_header(names: Iterable[str] | None) -> None:
    found = list(names or ())
    if missing := [name for name in _NEEDED if name not in found]:
        raise TraceError(f"the first line must name the columns; {', '.join(missing)} is missing")
    if unknown := [name for name in found if name not in _COLUMNS]:
        raise TraceError(f"unknown column {unknown[0]}: there may be {', '.join(_COLUMNS)}")


def _interval(row: Mapping[str | None, str | None]) -> IdleInterval:
    if None in row or None in row.values():
        raise TraceError("it has another number of columns than the first line")
    node = (row["node"] or "").strip()
    if not node or "/" in node:
        raise TraceError(f"{node!r} is no node's name")
    from_s, to_s = _seconds(row, "idle_from_s"), _seconds(row, "idle_to_s")
    if to_s <= from_s:
        raise TraceError(f"idle_to_s {to_s:g} is not after idle_from_s {from_s:g}")
    end = row.get("end") or IntervalEnd.PLANNED.value
    if end not in {kind.value for kind in IntervalEnd}:
        raise TraceError(f"end is {end!r}: it may be planned or kill")
    group = row.get("group") or node.rstrip("0123456789")
    return IdleInterval(node=node, from_s=from_s, to_s=to_s, end=IntervalEnd(end), group=group)


def _seconds(row: Mapping[str | None, str | None], column: str) -> float:
    try:
        seconds = float(row[column] or "")
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        raise TraceError(f"{column} is {row[column]!r}: it must be seconds, 0 or more")
    return seconds


def write(intervals: Iterable[IdleInterval], to: TextIO) -> None:
    """Write a trace that `read` reads back, sorted, times to the tenth of a second."""
    rows = csv.writer(to, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for i in sorted(intervals, key=lambda interval: (interval.from_s, interval.node)):
        rows.writerow([i.node, f"{i.from_s:.1f}", f"{i.to_s:.1f}", i.end.value, i.group])
