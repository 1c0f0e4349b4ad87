"""Make the idle intervals that the demo's nodes follow: `python -m demo.trace > FILE`.

Nothing is taken from a real machine's log. What is imitated of published ones: an idle interval is
475 s in the median and 1,192 s in the mean (a log-normal has that), and a quarter of the leave
events are large and sudden, a whole group of nodes at once. The bundled file is the hour that a
demo needs of a longer trace: intervals that reach over its edges are cut there, so its own median
and mean are 503 s and 876 s.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from malletrain.traces.intervals import IdleInterval, IntervalEnd, write

MEDIAN_IDLE_S = 475.0
MEAN_IDLE_S = 1192.0
#: Between two idle intervals of a node lies a job of the main scheduler; some are longer.
MEAN_GAP_S = 60.0
#: Leaves of one node alone for each leave of the whole group.
LONE_LEAVES = 3

#: How many trace seconds pass in a second of the demo.
SPEED = 20.0
DEMO_GROUPS = {"a": 3, "b": 3, "c": 2}
_SEED = 11816
_FROM_S = 30.0 * 3600
_LENGTH_S = 400.0 * SPEED
#: An agent would hardly have started.
_SHORTEST_S = 2.0 * SPEED
#: A node that was taken back stays away for this long: its grace period must have ended.
_SHORTEST_GAP_S = 6.0 * SPEED
#: All nodes are taken at once, and for a while there is none.
BLACKOUT_FROM_S = 100.0 * SPEED
BLACKOUT_TO_S = 108.0 * SPEED
#: The first node to leave alone after this time is lost without notice.
_KILL_AFTER_S = 60.0 * SPEED


def draw(groups: Iterable[Sequence[str]], until_s: float, seed: int) -> list[IdleInterval]:
    """Return the idle intervals of all groups until at least `until_s`."""
    random_ = random.Random(seed)  # noqa: S311  # a trace to replay, no secret
    drawn = (interval for nodes in groups for interval in _group(nodes, until_s, random_))
    return _sorted(drawn)


def _group(nodes: Sequence[str], until_s: float, random_: random.Random) -> list[IdleInterval]:
    """Let nodes leave alone some times, then all of them together, again and again."""
    intervals: list[IdleInterval] = []
    start_s = 0.0
    while start_s < until_s:
        idle_s = {node: [_draw_idle_s(random_)] for node in nodes}
        for _ in range(LONE_LEAVES):
            least = min(nodes, key=lambda node: sum(idle_s[node]))
            idle_s[least].append(_draw_idle_s(random_))
        gaps_s = {n: [random_.expovariate(1 / MEAN_GAP_S) for _ in idle_s[n]] for n in nodes}
        length_s = max(sum(idle_s[n]) + sum(gaps_s[n]) for n in nodes)
        for node in nodes:
            shares = [random_.random() for _ in gaps_s[node]]
            slack_s = length_s - sum(idle_s[node]) - sum(gaps_s[node])
            at_s = start_s
            for lasts_s, gap_s, share in zip(idle_s[node], gaps_s[node], shares, strict=True):
                at_s += gap_s + slack_s * share / sum(shares)
                intervals.append(IdleInterval(node=node, from_s=at_s, to_s=at_s + lasts_s))
                at_s += lasts_s
        start_s += length_s
    return intervals


def _draw_idle_s(random_: random.Random) -> float:
    spread = math.sqrt(2 * math.log(MEAN_IDLE_S / MEDIAN_IDLE_S))
    return MEDIAN_IDLE_S * math.exp(random_.gauss(0.0, spread))


def demo_intervals() -> list[IdleInterval]:
    """Return the bundled trace: a window of a drawn one, with a kill and a time without nodes."""
    groups = [[f"{g}{i + 1}" for i in range(size)] for g, size in DEMO_GROUPS.items()]
    drawn = draw(groups, _FROM_S + _LENGTH_S, _SEED)
    window = [_windowed(interval) for interval in drawn]
    parts = _sorted(part for interval in window for part in _with_blackout(interval))
    return _with_kill(_with_gaps(parts))


def _windowed(interval: IdleInterval) -> IdleInterval:
    from_s = max(interval.from_s - _FROM_S, 0.0)
    to_s = min(interval.to_s - _FROM_S, _LENGTH_S)
    group = interval.node.rstrip("0123456789")
    return replace(interval, from_s=round(from_s, 1), to_s=round(to_s, 1), group=group)


def _with_blackout(interval: IdleInterval) -> list[IdleInterval]:
    before = replace(interval, to_s=min(interval.to_s, BLACKOUT_FROM_S))
    after = replace(interval, from_s=max(interval.from_s, BLACKOUT_TO_S))
    return [part for part in (before, after) if part.from_s < part.to_s]


def _with_gaps(intervals: list[IdleInterval]) -> list[IdleInterval]:
    kept: list[IdleInterval] = []
    away_until_s: dict[str, float] = {}
    for interval in intervals:
        from_s = max(interval.from_s, away_until_s.get(interval.node, 0.0))
        if interval.to_s - from_s >= _SHORTEST_S:
            kept.append(replace(interval, from_s=from_s))
            away_until_s[interval.node] = interval.to_s + _SHORTEST_GAP_S
    return _sorted(kept)


def _sorted(intervals: Iterable[IdleInterval]) -> list[IdleInterval]:
    return sorted(intervals, key=lambda interval: (interval.from_s, interval.node))


def _with_kill(intervals: list[IdleInterval]) -> list[IdleInterval]:
    ends = [interval.to_s for interval in intervals]
    alone = [i for i in intervals if i.to_s > _KILL_AFTER_S and ends.count(i.to_s) == 1]
    victim = min(alone, key=lambda interval: interval.to_s)
    return [replace(i, end=IntervalEnd.KILL) if i == victim else i for i in intervals]


if __name__ == "__main__":
    write(demo_intervals(), sys.stdout)
