from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from malletrain.report.replay_page import render, write_replay_report
from malletrain.report.replay_table import headline
from malletrain.sim.results import NodeSeconds, ReplayResult
from tests.report.parsed_page import ParsedPage
from tests.report.replay_story import CURVES, replay


@pytest.fixture(scope="module")
def result() -> ReplayResult:
    return replay()


@pytest.fixture(scope="module")
def page(result: ReplayResult) -> ParsedPage:
    return ParsedPage(render(result))


def test_the_page_is_whole_and_needs_nothing_else(page: ParsedPage) -> None:
    page.assert_it_is_whole()


def test_the_first_words_are_the_administrators(result: ReplayResult, page: ParsedPage) -> None:
    assert headline(result) in page.text
    assert page.text.index(headline(result)) < page.text.index("Policies beside each other")


def test_the_page_tells_the_replay(page: ParsedPage) -> None:
    for word in (
        "made-up.csv",
        "a made-up day: three models",
        "equal-share",
        "Means over 3 seeds.",
        "95% interval of their mean (Student",
        "each point is the mean of 5 minutes",
        "Off by 3.0% on average; the true rate is within the interval at 7 of 7 scales.",
        "horizon = 120",
        "3 lines whose end is before their start were left out.",
        "No policy ended all jobs with every seed",
        *CURVES,
    ):
        assert word in page.text
    assert "interrupted" not in page.text


def test_what_users_named_is_text() -> None:
    evil = '<script>alert("$x^")</script>'
    result = replay(
        policies=["malletrain", evil], seeds=1, jobs=6, curves=[evil, "$", "_of_mine", "名"]
    )
    named = replace(
        result,
        trace=replace(result.trace, source=evil),
        workload=evil,
        settings=(evil,),
        assumptions=(evil,),
    )
    page = ParsedPage(render(named))
    page.assert_it_is_whole()
    assert page.text.count(evil) >= 6
    assert "_of_mine" in page.text


def test_one_seed_has_no_interval_and_says_so() -> None:
    text = ParsedPage(render(replay(seeds=1, jobs=6))).text
    assert "gains have no interval" in text
    assert "±" not in text


def test_makespans_are_compared_where_jobs_ended() -> None:
    result = replay(jobs=6)
    ended = tuple(
        replace(run, makespan_s=7200.0 if run.policy == "malletrain" else 9000.0)
        for run in result.policies
    )
    text = ParsedPage(render(replace(result, policies=ended))).text
    assert "2.50 hours" in text
    assert "+25.0%" in text


def test_endless_jobs_have_no_completion_times() -> None:
    page = ParsedPage(render(replay(policies=["malletrain"], seeds=1, jobs=6, is_endless=True)))
    page.assert_it_is_whole()
    assert "No job finished" in page.text


def test_an_interrupted_replay_says_so(result: ReplayResult) -> None:
    partial = replace(result, policies=result.policies[:4], is_complete=False)
    page = ParsedPage(render(partial))
    page.assert_it_is_whole()
    assert "This replay was interrupted" in page.text
    nothing = ParsedPage(render(replace(result, policies=(), is_complete=False)))
    nothing.assert_it_is_whole()
    assert "No policy was replayed." in nothing.text
    assert "Policies beside each other" not in nothing.text


def test_a_policy_that_did_nothing_can_be_shown() -> None:
    result = replay(policies=["fifo"], seeds=1, jobs=3)
    (run,) = result.policies
    zeros = (0.0,) * len(run.series.offered_nodes)
    idle = NodeSeconds(
        offered=1.0, training=0.0, rescaling=0.0, profiling=0.0, preempted=0.0, idle=1.0
    )
    series = replace(
        run.series, nodes_by_class={}, samples_per_s=zeros, goodput_samples_per_s=zeros
    )
    nothing = replace(run, done_samples=0.0, node_s=idle, series=series, jobs=(), curves=())
    page = ParsedPage(render(replace(result, policies=(nothing,))))
    page.assert_it_is_whole()
    assert "What was learned" not in page.text


def test_a_trace_without_idle_time_can_be_shown(result: ReplayResult) -> None:
    trace = replace(
        result.trace,
        intervals=0,
        idle_node_s=0.0,
        duration_bounds_s=(),
        share_of_count=(),
        share_of_time=(),
        join_sizes=(),
        leave_sizes=(),
    )
    page = ParsedPage(render(replace(result, trace=trace, policies=())))
    assert "Your machine had no idle node in 24 hours." in page.text


def test_a_trace_that_none_ever_joins_or_leaves_can_be_shown(result: ReplayResult) -> None:
    trace = replace(result.trace, join_sizes=(), leave_sizes=())
    ParsedPage(render(replace(result, trace=trace, policies=()))).assert_it_is_whole()


def test_a_large_replay_stays_small_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    policies = [f"policy-{index}" for index in range(20)]
    models = [f"model-{index}" for index in range(50)]
    write_replay_report(replay(policies, 2, 1000, models), tmp_path / "replay.html")
    html = (tmp_path / "replay.html").read_text(encoding="utf-8")
    page = ParsedPage(html)
    page.assert_it_is_whole()
    assert len(html) < 2_000_000
    assert "The 12 models that used most node-seconds, of 50." in page.text
    assert "the first 6 of 20 policies" in page.text
    assert "the first 7 of 20 policies" in page.text
    assert "30 more used less" in page.text
    assert "43 other classes" in page.text
    assert all(policy in page.text for policy in policies)
