from __future__ import annotations

import io
import statistics
from collections import Counter
from pathlib import Path

import pytest

from demo import trace
from malletrain.traces.intervals import IdleInterval, IntervalEnd, read

BUNDLED = Path(__file__).parents[2] / "examples" / "demo-trace.csv"
WEEK_S = 7 * 86400.0


@pytest.fixture(scope="module")
def week() -> list[IdleInterval]:
    groups = [[f"g{g}n{n}" for n in range(3)] for g in range(150)]
    return trace.draw(groups, WEEK_S, seed=1)


def test_intervals_are_heavy_tailed_like_the_published_ones(week: list[IdleInterval]) -> None:
    lengths = [interval.to_s - interval.from_s for interval in week]
    assert statistics.median(lengths) == pytest.approx(475, rel=0.03)
    assert statistics.mean(lengths) == pytest.approx(1192, rel=0.03)


def test_a_quarter_of_the_leave_events_takes_a_whole_group(week: list[IdleInterval]) -> None:
    nodes_leaving = Counter((i.node.split("n")[0], round(i.to_s, 3)) for i in week)
    large = sum(nodes == 3 for nodes in nodes_leaving.values())
    assert large / len(nodes_leaving) == pytest.approx(0.25, abs=0.01)


def test_a_node_has_one_interval_at_a_time(week: list[IdleInterval]) -> None:
    busy_from_s: dict[str, float] = {}
    for interval in week:
        assert busy_from_s.get(interval.node, 0.0) <= interval.from_s < interval.to_s
        busy_from_s[interval.node] = interval.to_s


def test_the_bundled_trace_is_what_the_function_makes() -> None:
    made = io.StringIO()
    trace.write(trace.demo_intervals(), made)
    assert BUNDLED.read_text() == made.getvalue()
    assert list(read(BUNDLED.read_text().splitlines(), "bundled")) == trace.demo_intervals()


def test_the_demo_meets_what_it_promises() -> None:
    intervals = trace.demo_intervals()
    by_150_s = 150 * trace.SPEED
    assert len({interval.node for interval in intervals}) == 8
    events = sum((i.from_s < by_150_s) + (i.to_s < by_150_s) for i in intervals)
    assert events >= 30
    assert [i.end for i in intervals if i.to_s < by_150_s].count(IntervalEnd.KILL) == 1
    assert all(
        i.to_s <= trace.BLACKOUT_FROM_S or i.from_s >= trace.BLACKOUT_TO_S for i in intervals
    )
    before = [i for i in intervals if i.to_s == trace.BLACKOUT_FROM_S]
    assert len(before) >= 4
