"""The trace as the world lives it: moments at which nodes come and go."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from msgspec.structs import replace

from malletrain import draws
from malletrain.sim.settings import LedgerKind, ReplayOptions
from malletrain.traces.intervals import IdleInterval, IntervalEnd

_DAY_S = 86_400.0


@dataclass(slots=True)
class Moment:
    at_s: float
    #: Nodes that the main scheduler wants back, with notice; and those that are gone at once.
    asked: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    joined: list[IdleInterval] = field(default_factory=list)


def moments(intervals: Iterable[IdleInterval], options: ReplayOptions) -> Iterator[Moment]:
    """Yield the moments of intervals that are sorted by their starts, in order of time."""
    for at_s, changes in groupby(_changes(_lived(intervals, options)), key=itemgetter(0)):
        moment = Moment(at_s)
        for _, interval, is_start in changes:
            if is_start:
                moment.joined.append(interval)
            elif interval.end is IntervalEnd.KILL:
                moment.lost.append(interval.node)
            else:
                moment.asked.append(interval.node)
        yield moment


def _changes(intervals: Iterable[IdleInterval]) -> Iterator[tuple[float, IdleInterval, bool]]:
    """Yield (time, interval, whether it starts then), ends first."""
    ends: list[tuple[float, str, IdleInterval]] = []
    for interval in intervals:
        while ends and ends[0][0] <= interval.from_s:
            yield ends[0][0], heapq.heappop(ends)[2], False
        yield interval.from_s, interval, True
        heapq.heappush(ends, (interval.to_s, interval.node, interval))
    while ends:
        yield ends[0][0], heapq.heappop(ends)[2], False


def _lived(intervals: Iterable[IdleInterval], options: ReplayOptions) -> Iterator[IdleInterval]:
    """Cut the intervals to the replayed part, less the pilot's start, and let nodes crash."""
    world = options.world
    has_notice = options.ledger is LedgerKind.EXACT and world.grace_s > 0
    until_s = float("inf") if options.until_s is None else options.until_s
    for interval in intervals:
        start_s = max(interval.from_s, options.from_s) + world.pilot_start_s
        end_s = min(interval.to_s, until_s)
        is_abrupt = interval.end is IntervalEnd.KILL or not has_notice
        if world.crashes_per_node_day > 0:
            mean_s = _DAY_S / world.crashes_per_node_day
            key = ("crash", interval.node, int(interval.from_s))
            crash_s = start_s + draws.exponential(options.seed, mean_s, *key)
            if crash_s < end_s:
                end_s, is_abrupt = crash_s, True
        if start_s < end_s:
            end = IntervalEnd.KILL if is_abrupt else IntervalEnd.PLANNED
            yield replace(interval, from_s=start_s, to_s=end_s, end=end)
