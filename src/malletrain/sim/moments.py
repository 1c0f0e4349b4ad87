"""The trace as the world lives it: moments at which nodes come and go."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from malletrain.sim import draws
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
    #: (end, node, whether it ends without notice)
    ends: list[tuple[float, str, bool]] = []
    moment = Moment(-1.0)
    for interval in _lived(intervals, options):
        while ends and ends[0][0] <= interval.from_s:
            if ends[0][0] != moment.at_s:
                yield moment
                moment = Moment(ends[0][0])
            _leave(moment, *heapq.heappop(ends))
        if interval.from_s != moment.at_s:
            yield moment
            moment = Moment(interval.from_s)
        moment.joined.append(interval)
        is_abrupt = interval.end is IntervalEnd.KILL
        heapq.heappush(ends, (interval.to_s, interval.node, is_abrupt))
    while ends:
        if ends[0][0] != moment.at_s:
            yield moment
            moment = Moment(ends[0][0])
        _leave(moment, *heapq.heappop(ends))
    yield moment


def _leave(moment: Moment, _at_s: float, node: str, is_abrupt: bool) -> None:
    (moment.lost if is_abrupt else moment.asked).append(node)


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
