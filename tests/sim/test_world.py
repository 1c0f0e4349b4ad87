"""What the world does to a job or two, by small examples that are calculated by hand.

The curve is 10 samples/s a node. An order takes 0.02 s, a worker 10 s to start; a rescale stalls
the job by 4 s up and 2 s down; a step takes 0.5 s.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from malletrain import draws
from malletrain.core.events import (
    AnyEvent,
    JobFinished,
    JobSubmitted,
    NodesJoined,
    NodesLeaving,
    NodesLost,
    RescaleDone,
    RescaleFailed,
)
from malletrain.core.settings import CoreSettings, HorizonSettings, ObjectiveKind
from malletrain.sim.results import PolicyResult
from malletrain.sim.settings import LedgerKind, ReplayOptions, WorldSettings
from malletrain.traces.intervals import IdleInterval
from malletrain.workloads.workload import MalleableJob
from tests.sim.scenes import idle, job, replay, workload

#: From an order to a job's first step.
START_S = 0.02 + 10.0
ALWAYS = idle("n0", 0, 1000)
#: Growing pays, whatever it costs.
FAR_SIGHTED = CoreSettings(
    objective=ObjectiveKind.SAMPLES, horizon=HorizonSettings(fixed_s=10_000.0)
)


def lived(
    trace: Sequence[IdleInterval], *jobs: MalleableJob, **options: object
) -> tuple[PolicyResult, list[AnyEvent]]:
    """Replay under the true curves; return what it came to, and what was told."""
    events: list[AnyEvent] = []
    run = replay(
        sorted(trace, key=lambda interval: interval.from_s),
        workload(*(jobs or (job(),))),
        replace(ReplayOptions(core=FAR_SIGHTED), **options),
        name="freetrain-oracle",
    )
    tell = run._apply

    def listen(event: AnyEvent) -> None:
        events.append(event)
        tell(event)

    run._apply = listen
    return run.run(), events


def done(trace: Sequence[IdleInterval], *jobs: MalleableJob, **options: object) -> float:
    return lived(trace, *jobs, **options)[0].done_samples


def of_kind(events: Sequence[AnyEvent], kind: type[AnyEvent]) -> list[AnyEvent]:
    return [event for event in events if isinstance(event, kind)]


# -- the exact ledger ------------------------------------------------------------------------------


def test_a_job_alone_on_a_node_trains_all_the_time_but_for_its_start() -> None:
    result, _ = lived([ALWAYS])
    assert result.done_samples == pytest.approx(10 * (1000 - START_S))
    assert result.done_one_node_s == pytest.approx(1000 - START_S)
    node_s = result.node_s
    assert (node_s.training, node_s.rescaling) == pytest.approx((1000 - START_S, START_S))
    assert node_s.idle == node_s.preempted == node_s.profiling == 0.0


def test_a_pilot_and_a_worker_take_the_time_that_they_are_said_to_take() -> None:
    world = WorldSettings(pilot_start_s=30.0, worker_start_s=5.0, decision_delay_s=1.0)
    assert done([ALWAYS], world=world) == pytest.approx(10 * (1000 - 30 - 1 - 5))


def test_growing_costs_the_stall_and_not_the_start_of_the_joiner() -> None:
    trace = [ALWAYS, idle("n1", 100, 1000)]
    grown_s = 100 + START_S
    expected = 10 * (grown_s - START_S) + 20 * (1000 - grown_s - 4)
    assert done(trace) == pytest.approx(expected)


def test_a_planned_leave_costs_the_stall_and_loses_nothing() -> None:
    trace = [ALWAYS, idle("n1", 0, 500)]
    result, events = lived(trace)
    expected = 20 * (500.02 - START_S) + 10 * (1000 - 502.02)
    assert result.done_samples == pytest.approx(expected)
    assert (result.losses, result.redone_samples, result.scale_downs) == (0, 0.0, 1)
    (leaving,) = of_kind(events, NodesLeaving)[:1]
    assert (leaving.node_ids, leaving.deadline_at_s) == (("n1",), 530.0)
    released = of_kind(events, NodesLost)[0]
    assert (released.node_ids, released.reason) == (("n1",), "released")
    # It is given back 0.02 s after the job has left it.
    assert result.overtime_node_s == pytest.approx(2.04)
    assert result.longest_overtime_s == pytest.approx(2.04)


def test_a_loss_without_notice_costs_half_a_step_and_the_time_to_go_on() -> None:
    trace = [ALWAYS, idle("n1", 0, 500, "kill")]
    result, _ = lived(trace)
    # Told after 0.02 s, noticed 1 s later, and a shrink.
    goes_on_s = 500 + 0.02 + 1.0 + 2.0
    expected = 20 * (500 - START_S) - 20 * 0.25 + 10 * (1000 - goes_on_s)
    assert result.done_samples == pytest.approx(expected)
    assert result.redone_samples == pytest.approx(5.0)
    assert (result.losses, result.overtime_node_s) == (1, 0.0)


def test_the_loss_of_all_nodes_falls_back_to_the_last_checkpoint() -> None:
    trace = [idle("n0", 0, 900, "kill"), idle("n1", 950, 1200)]
    saved_at_s = 600 * draws.uniform(0, "checkpoint", "a")
    if saved_at_s < 300:
        saved_at_s += 600
    assert START_S < saved_at_s < 900
    result, _ = lived(trace)
    saved = 10 * (saved_at_s - START_S)
    assert result.redone_samples == pytest.approx(10 * (900 - saved_at_s))
    assert result.done_samples == pytest.approx(saved + 10 * (1200 - 950 - START_S))


def test_a_suspended_job_has_saved_everything() -> None:
    trace = [idle("n0", 0, 500), idle("n1", 600, 1000)]
    result, _ = lived(trace)
    expected = 10 * (500.02 - START_S) + 10 * (1000 - 600 - START_S)
    assert result.done_samples == pytest.approx(expected)
    assert result.redone_samples == 0.0


def test_a_grace_period_that_is_too_short_for_the_shrink_is_a_loss() -> None:
    trace = [ALWAYS, idle("n1", 0, 500)]
    result, events = lived(trace, world=WorldSettings(grace_s=1.0))
    # It stands still from the order on, and begins anew when the node is gone.
    expected = 20 * (500.02 - START_S) - 20 * 0.25 + 10 * (1000 - (501.02 + 1.0 + 2.0))
    assert result.done_samples == pytest.approx(expected)
    assert result.redone_samples == pytest.approx(5.0)
    (expired, *_) = of_kind(events, NodesLost)
    assert (expired.at_s, expired.reason) == (501.0, "the grace period is over")
    assert result.longest_overtime_s == pytest.approx(1.0)


def test_a_node_that_is_idle_again_while_we_hold_it_joins_once_it_was_given_back() -> None:
    trace = [idle("n0", 0, 500), idle("n0", 501, 1000)]
    result, events = lived(trace)
    back_s = 500.02 + 2.0 + 0.02
    lost = [event for event in of_kind(events, NodesLost) if event.at_s < 1000]
    joined = of_kind(events, NodesJoined)
    assert [event.at_s for event in lost] == pytest.approx([back_s])
    assert [event.at_s for event in joined] == pytest.approx([0.0, back_s])
    assert result.node_s.offered == pytest.approx(1000.0)
    expected = 10 * (500.02 - START_S) + 10 * (1000 - back_s - START_S)
    assert result.done_samples == pytest.approx(expected)


def test_a_node_that_is_asked_for_twice_leaves_by_the_first_deadline() -> None:
    trace = [idle("n0", 0, 500), idle("n0", 501, 502), idle("n1", 0, 1000)]
    slow = job(scale_down_s=100.0)
    result, events = lived(trace, slow)
    (lost, *_) = of_kind(events, NodesLost)
    assert (lost.at_s, lost.node_ids) == (530.0, ("n0",))
    assert len(of_kind(events, NodesLeaving)) == 1
    assert result.longest_overtime_s == pytest.approx(30.0)
    assert len(of_kind(events, NodesJoined)) == 1


def test_a_joiner_that_is_lost_comes_not_back_into_the_rescale() -> None:
    trace = [ALWAYS, idle("n1", 100, 105, "kill"), idle("n1", 106, 1000)]
    result, events = lived(trace)
    rescales = of_kind(events, RescaleDone)
    assert [event.node_ids for event in rescales][:3] == [("n0",), ("n0",), ("n0", "n1")]
    assert result.losses == 0


def test_a_job_is_as_fast_as_its_slowest_node() -> None:
    world = WorldSettings(slow_node_share=1.0, slow_node_speed=0.7)
    assert done([ALWAYS], world=world) == pytest.approx(7 * (1000 - START_S))


def test_an_order_whose_message_is_lost_is_late_by_the_retry() -> None:
    world = WorldSettings(lost_message_share=1.0, message_retry_s=5.0)
    assert done([ALWAYS], world=world) == pytest.approx(10 * (1000 - START_S - 5.0))


def test_stalls_can_be_set_and_multiplied() -> None:
    trace = [ALWAYS, idle("n1", 0, 500)]
    world = WorldSettings(scale_down_s=0.5, cost_factor=4.0)
    expected = 20 * (500.02 - START_S) + 10 * (1000 - 502.02)
    assert done(trace, world=world) == pytest.approx(expected)


def test_a_job_ends_when_its_work_is_done_and_makes_room_for_the_next() -> None:
    jobs = [job(name, work_samples=1000.0) for name in ("a", "b")]
    result, events = lived([ALWAYS], *jobs, max_parallel=1)
    ended = [event.at_s for event in of_kind(events, JobFinished)]
    assert ended == pytest.approx([START_S + 100, 2 * (START_S + 100)])
    submitted = [event.at_s for event in of_kind(events, JobSubmitted)]
    assert submitted == pytest.approx([0.0, START_S + 100])
    assert [each.done_samples for each in result.jobs] == [1000.0, 1000.0]
    assert result.makespan_s == pytest.approx(ended[-1])


def test_a_list_that_repeats_never_runs_dry() -> None:
    result, _ = lived([ALWAYS], job(work_samples=1000.0), max_parallel=1, repeat=True)
    finished = int(1000 // (START_S + 100))
    assert [each.id for each in result.jobs][:3] == ["a", "a#2", "a#3"]
    assert (result.jobs_finished, result.jobs_unfinished) == (finished, 1)
    assert result.makespan_s is None


def test_endless_jobs_finish_never() -> None:
    result, _ = lived([ALWAYS], job(work_samples=1000.0), endless=True)
    assert (result.jobs_finished, result.jobs_unfinished) == (0, 1)
    assert result.done_samples == pytest.approx(10 * (1000 - START_S))


def test_what_remains_of_node_lifetimes_is_told_where_it_is_known() -> None:
    for knows in (False, True):
        _, events = lived([ALWAYS], world=WorldSettings(knows_node_ends=knows))
        (joined,) = of_kind(events, NodesJoined)
        assert joined.nodes[0].expected_end_at_s == (1000.0 if knows else None)


def test_a_suspension_that_a_crash_overtakes_is_no_end() -> None:
    trace = [idle("n0", 0, 500), idle("n1", 600, 1000)]
    result, events = lived(trace, job(scale_down_s=50.0))
    (failed,) = of_kind(events, RescaleFailed)
    assert (failed.at_s, failed.node_ids) == (530.0, ())
    saved_at_s = 600 * draws.uniform(0, "checkpoint", "a")
    saved = 10 * max(saved_at_s - START_S, 0.0) if saved_at_s < 500.02 else 0.0
    assert result.done_samples == pytest.approx(saved + 10 * (1000 - 600 - START_S))


def test_nothing_that_happens_at_the_end_counts_any_more() -> None:
    result, events = lived([idle("n0", 0, 1000, "kill")], until_s=800.0)
    assert result.done_samples == pytest.approx(10 * (800 - START_S))
    assert not of_kind(events, NodesLost)
    assert result.node_s.offered == pytest.approx(800.0)


# -- the papers' ledger ----------------------------------------------------------------------------


def papers(
    trace: Sequence[IdleInterval], *jobs: MalleableJob
) -> tuple[PolicyResult, list[AnyEvent]]:
    return lived(trace, *jobs, ledger=LedgerKind.PAPERS)


def test_papers_a_start_is_free_and_takes_no_time() -> None:
    assert papers([ALWAYS])[0].done_samples == pytest.approx(10_000.0)


def test_papers_a_rescale_takes_no_time_and_is_charged_at_the_rate_before() -> None:
    result, _ = papers([ALWAYS, idle("n1", 100, 1000)])
    assert result.done_samples == pytest.approx(10 * 100 - 4 * 10 + 20 * 900)
    assert result.node_s.rescaling == pytest.approx(4 * 1)


def test_papers_the_whole_cost_is_charged_though_the_next_event_comes_sooner() -> None:
    trace = [ALWAYS, idle("n1", 1, 2)]
    dear = job(scale_up_s=50.0)
    # Up at 1 s, and the node is gone at 2 s: a loss costs one shrink at the rate before it.
    assert papers(trace, dear)[0].done_samples == pytest.approx(
        10 * 1 - 50 * 10 + 20 * 1 - 2 * 20 + 10 * 998
    )
    short = [idle("n0", 0, 5), idle("n1", 1, 2)]
    assert papers(short, dear)[0].done_samples == pytest.approx(
        10 * 1 - 50 * 10 + 20 * 1 - 2 * 20 + 10 * 3
    ), "progress goes backwards, and below zero"


def test_papers_jobs_come_in_only_when_nodes_come_or_go() -> None:
    trace = [idle("n0", 0, 1000), idle("n1", 100, 200)]
    result, events = papers(trace, job(max_nodes=1, submitted_at_s=50.0))
    (submitted,) = of_kind(events, JobSubmitted)
    assert submitted.at_s == 100.0
    assert result.done_samples == pytest.approx(10 * 900)


def test_papers_a_job_that_is_done_holds_its_nodes_until_nodes_come_or_go() -> None:
    trace = [ALWAYS, idle("n1", 400, 500)]
    result, events = papers(trace, job(max_nodes=1, work_samples=1000.0))
    (finished,) = of_kind(events, JobFinished)
    assert (finished.at_s, finished.samples) == (400.0, 1000.0)
    assert result.done_samples == 1000.0
    assert result.node_s.training == pytest.approx(400.0)


def test_papers_a_loss_is_charged_once_however_many_nodes_it_takes() -> None:
    trace = [idle(f"n{number}", 0, 500 if number > 1 else 1000) for number in range(4)]
    result, _ = papers(trace)
    assert result.done_samples == pytest.approx(40 * 500 - 2 * 40 + 20 * 500)
    assert result.losses == 1


def test_papers_nothing_is_charged_to_a_job_that_a_loss_left_below_its_minimum() -> None:
    trace = [idle("n0", 0, 1000), idle("n1", 0, 500), idle("n2", 600, 1000)]
    result, _ = papers(trace, job(min_nodes=2, max_nodes=2))
    assert result.done_samples == pytest.approx(20 * 500 - 2 * 20 + 20 * 400)
