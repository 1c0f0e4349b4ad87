from __future__ import annotations

import pytest
from msgspec.structs import replace

from malletrain.sim.moments import Moment, moments
from malletrain.sim.settings import LedgerKind, ReplayOptions, WorldSettings
from malletrain.traces.intervals import IdleInterval
from tests.sim.scenes import drawn_intervals, idle

Brief = tuple[float, list[str], list[str], list[str]]


def brief(intervals: list[IdleInterval], **options: object) -> list[Brief]:
    return [as_brief(moment) for moment in moments(intervals, ReplayOptions(**options))]


def as_brief(moment: Moment) -> Brief:
    return (moment.at_s, moment.asked, moment.lost, [i.node for i in moment.joined])


def test_what_happens_at_one_time_is_one_moment() -> None:
    trace = [idle("a", 0, 50), idle("b", 0, 80, "kill"), idle("c", 50, 80), idle("a", 80, 90)]
    assert brief(trace) == [
        (0, [], [], ["a", "b"]),
        (50, ["a"], [], ["c"]),
        (80, ["c"], ["b"], ["a"]),
        (90, ["a"], [], []),
    ]


def test_times_never_run_backwards_and_every_node_leaves() -> None:
    trace = drawn_intervals(3)
    lived = list(moments(trace, ReplayOptions()))
    times = [moment.at_s for moment in lived]
    assert times == sorted(set(times))
    assert sum(len(m.joined) for m in lived) == len(trace)
    assert sum(len(m.asked) + len(m.lost) for m in lived) == len(trace)


def test_no_trace_has_no_moments() -> None:
    assert brief([]) == []


@pytest.mark.parametrize(
    "options",
    [{"ledger": LedgerKind.PAPERS}, {"world": WorldSettings(grace_s=0.0)}],
    ids=["papers", "no grace"],
)
def test_without_a_grace_period_there_is_no_notice(options: dict[str, object]) -> None:
    assert brief([idle("a", 0, 50)], **options) == [(0, [], [], ["a"]), (50, [], ["a"], [])]


def test_a_part_of_the_trace_starts_with_the_nodes_that_are_idle_then() -> None:
    trace = [idle("gone", 0, 20), idle("a", 0, 50), idle("b", 40, 95), idle("late", 90, 99)]
    assert brief(trace, from_s=30.0, until_s=80.0) == [
        (30, [], [], ["a"]),
        (40, [], [], ["b"]),
        (50, ["a"], [], []),
        (80, ["b"], [], []),
    ]


def test_a_pilot_takes_its_time_and_misses_what_is_shorter() -> None:
    world = WorldSettings(pilot_start_s=15.0)
    assert brief([idle("a", 0, 15), idle("b", 10, 50)], world=world) == [
        (25, [], [], ["b"]),
        (50, ["b"], [], []),
    ]


def test_crashes_are_the_same_for_one_seed_and_end_an_interval_early_without_notice() -> None:
    trace = [idle(f"n{number}", 0.0, 86_400.0) for number in range(400)]
    options = ReplayOptions(world=WorldSettings(crashes_per_node_day=0.5), seed=1)
    first = list(moments(trace, options))
    assert first == list(moments(trace, options))
    assert first != list(moments(trace, replace(options, seed=2)))
    crashed = [node for moment in first for node in moment.lost]
    # 1 - exp(-1/2) of them, give or take three standard deviations.
    assert len(crashed) == pytest.approx(400 * 0.393, abs=30)
    assert all(moment.at_s < 86_400.0 for moment in first if moment.lost)
