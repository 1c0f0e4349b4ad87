"""Stories over the core: events in, actions out. `World` checks every state on the way."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from malletrain.core.actions import ReleaseNodes, Rescale, Stop, WakeAt
from malletrain.core.apply import apply, replay
from malletrain.core.events import (
    AnyEvent,
    CheckpointSaved,
    JobCancelled,
    JobFinished,
    JobNoted,
    JobResumed,
    JobsForgotten,
    JobSuspended,
    NodeEndsForeseen,
    NodesLost,
    ProgressReported,
    RescaleDone,
    RescaleFailed,
    WokeUp,
    WorkersLost,
)
from malletrain.core.metrics import totals
from malletrain.core.model import Activity, Phase
from malletrain.core.pace import is_quiet
from malletrain.core.settings import AdvisorKind, AdvisorSettings, CoreSettings, RestartSettings
from tests.core.world import World, spec

STATIC = CoreSettings(advisor=AdvisorSettings(kind=AdvisorKind.STATIC))


@pytest.fixture
def world() -> World:
    return World(STATIC)


def test_a_job_gets_all_nodes_that_it_may_have(world: World) -> None:
    world.join("a1", "a2", "b1")
    decision = world.submit(spec("job", most=2))
    assert decision.actions == (Rescale("job", 1, ("a1", "a2")),)
    assert "job submitted" in decision.reason
    assert "job submitted: job 0\N{RIGHTWARDS ARROW}2 nodes, not measured yet" in decision.reason
    assert "proved" in decision.reason
    assert world.job("job").activity is Activity.TRAINING


def test_a_job_below_its_minimum_waits(world: World) -> None:
    world.submit(spec("job", least=2))
    assert world.join("a1").actions == ()
    assert world.job("job").activity is Activity.WAITING
    world.join("a2")
    assert world.job("job").node_ids == ("a1", "a2")


def test_two_jobs_share_and_one_grows_when_the_other_ends(world: World) -> None:
    world.join("a1", "a2", "a3", "a4")
    world.submit(spec("one"), spec("two"))
    assert len(world.job("one").node_ids) == len(world.job("two").node_ids) == 2
    world.feed(JobFinished(at_s=10.0, job_id="one", samples=1000.0))
    assert world.job("one").phase is Phase.FINISHED
    assert len(world.job("two").node_ids) == 4


def test_leaving_nodes_are_vacated_and_given_back_before_the_deadline(world: World) -> None:
    world.join("a1", "a2")
    world.submit(spec("job"))
    world.is_patient = True
    decision = world.leave("a2")
    assert decision.actions == (Rescale("job", 2, ("a1",)),)
    assert "a2" in world.cluster.nodes
    released = world.feed(
        RescaleDone(
            at_s=1.0, job_id="job", generation=2, node_ids=("a1",), stall_s=0.01, samples=0.0
        )
    )
    assert released.actions == (ReleaseNodes(("a2",)),)
    assert set(world.cluster.nodes) == {"a1"}


def test_a_node_that_left_as_told_is_no_loss_even_where_that_is_known_first(world: World) -> None:
    world.join("a1", "a2")
    world.submit(spec("job"))
    world.is_patient = True
    world.leave("a2")
    decision = world.lose("a2")
    assert decision.actions == ()
    assert world.job("job").activity is Activity.RESCALING
    world.finish()
    assert world.job("job").node_ids == ("a1",)
    ledger = world.cluster.ledger.jobs["job"]
    assert (ledger.losses, ledger.scale_downs) == (0, 1)


def test_a_node_that_died_before_it_could_leave_breaks_the_group(world: World) -> None:
    world.join("a1", "a2")
    world.submit(spec("job"))
    world.is_patient = True
    world.leave("a2")
    world.lose("a2")
    decision = world.feed(
        RescaleFailed(
            at_s=world.now_s,
            job_id="job",
            generation=2,
            reason="a node was lost while the group was changed",
            node_ids=("a1",),
            is_group_dead=True,
        )
    )
    assert decision.actions == (Rescale("job", 3, ("a1",)),)
    assert world.job("job").activity is Activity.RECOVERING


def test_a_node_that_is_asked_back_waits_for_no_joiner(world: World) -> None:
    world.join("a1", "a2")
    world.submit(spec("job"))
    world.is_patient = True
    world.join("b1", "b2")
    assert world.job("job").rescaling is not None  # it grows: joiners take their time
    decision = world.leave("a2")
    # It leaves first; with whom to go on is for later.
    assert decision.actions[0] == Rescale("job", 3, ("a1",))
    world.finish()
    assert "a2" not in world.cluster.nodes
    assert world.job("job").node_ids == ("a1", "b1", "b2")


def test_a_shrink_under_way_ends_before_the_next_begins(world: World) -> None:
    world.join("a1", "a2", "a3")
    world.submit(spec("job"))
    world.is_patient = True
    world.leave("a3")
    # Were the first begun again with each that follows, it might never end.
    assert world.leave("a2").actions == ()
    first = RescaleDone(
        at_s=1.0, job_id="job", generation=2, node_ids=("a1", "a2"), stall_s=0.01, samples=0.0
    )
    assert world.feed(first).actions == (Rescale("job", 3, ("a1",)), ReleaseNodes(("a3",)))


def test_a_job_far_too_large_for_the_machine_costs_the_others_nothing(world: World) -> None:
    world.submit(spec("huge", least=10**6, most=10**6), spec("small"))
    world.join("a1", "a2")
    assert world.job("huge").activity is Activity.WAITING
    assert world.job("small").node_ids == ("a1", "a2")


def test_a_joiner_that_is_asked_back_is_given_back_at_once(world: World) -> None:
    world.is_patient = True
    world.join("a1")
    world.submit(spec("job"))
    assert world.job("job").activity is Activity.STARTING
    decision = world.leave("a1")
    assert decision.actions == (Rescale("job", 2, ()), ReleaseNodes(("a1",)))


def test_a_free_leaving_node_is_given_back_once(world: World) -> None:
    world.join("a1")
    decision = world.leave("a1")
    assert decision.actions == (ReleaseNodes(("a1",)),)
    assert world.cluster.nodes == {}


def test_survivors_of_a_loss_go_on_at_once_and_grow_later(world: World) -> None:
    world.join("a1", "a2", "a3", "a4")
    world.submit(spec("job", most=3))
    assert world.job("job").node_ids == ("a1", "a2", "a3")
    world.is_patient = True
    decision = world.lose("a2")
    # Not together with a4: it would have to warm up while the survivors stand still.
    assert decision.actions == (Rescale("job", 2, ("a1", "a3")),)
    assert world.job("job").activity is Activity.RECOVERING
    world.finish()
    assert world.job("job").node_ids == ("a1", "a3", "a4")
    assert world.cluster.ledger.jobs["job"].losses == 1


def test_a_job_that_loses_all_its_nodes_waits_and_comes_back_from_its_checkpoint(
    world: World,
) -> None:
    world.join("a1", "a2")
    world.submit(spec("job"))
    world.train(10.0)
    world.feed(CheckpointSaved(at_s=world.now_s, job_id="job", samples=2000.0))
    world.train(5.0)
    done = world.job("job").done_samples
    world.lose("a1", "a2")
    assert world.job("job").activity is Activity.WAITING
    world.is_patient = True
    world.join("b1", at_s=100.0)
    assert world.job("job").activity is Activity.STARTING
    world.feed(
        RescaleDone(
            at_s=101.0, job_id="job", generation=2, node_ids=("b1",), stall_s=0.0, samples=2000.0
        )
    )
    ledger = world.cluster.ledger.jobs["job"]
    assert ledger.redone_samples == done - 2000.0
    # Two nodes trained 5 s for nothing.
    assert ledger.node_s.preempted == pytest.approx(10.0)
    assert world.job("job").done_samples == 2000.0


def test_no_node_at_all_and_no_job_at_all_are_fine(world: World) -> None:
    assert world.feed(WokeUp(at_s=1.0)).actions == ()
    world.submit(spec("job"))
    world.join("a1")
    world.lose("a1")
    assert world.job("job").activity is Activity.WAITING


def test_suspend_saves_and_frees_and_resume_starts_again(world: World) -> None:
    world.join("a1")
    world.submit(spec("job"))
    decision = world.feed(JobSuspended(at_s=1.0, job_id="job"))
    assert decision.actions == (Rescale("job", 2, ()),)
    assert world.job("job").held_node_ids == ()
    world.feed(JobResumed(at_s=2.0, job_id="job"))
    assert world.job("job").node_ids == ("a1",)


def test_cancel_stops_and_the_nodes_go_to_others(world: World) -> None:
    world.join("a1")
    world.submit(spec("one"))
    world.submit(spec("two"))
    decision = world.feed(JobCancelled(at_s=1.0, job_id="one"))
    assert decision.actions[0] == Stop("one", 2)
    assert world.job("one").phase is Phase.CANCELLED
    assert world.job("two").node_ids == ("a1",)


def test_a_grown_job_waits_until_the_shrinking_one_has_left(world: World) -> None:
    world.join("a1", "a2", "a3", "a4")
    world.submit(spec("slow", most=4))
    world.truth = {"slow": {4: 110.0, 2: 100.0, 1: 90.0}}
    world.train(60.0)
    world.is_patient = True
    decision = world.submit(spec("new", most=4))
    assert [type(action) for action in decision.actions] == [Rescale]
    assert decision.actions[0].job_id == "slow"
    assert "new submitted: slow 4\N{RIGHTWARDS ARROW}" in decision.reason
    assert "samples/s; then new 0\N{RIGHTWARDS ARROW}" in decision.reason
    world.finish()
    assert len(world.job("new").node_ids) == 4 - len(world.job("slow").node_ids)
    # It grew once, when all were there.
    assert world.job("new").generation == 1


def test_a_failing_script_backs_off_and_is_given_up_with_its_reason() -> None:
    settings = CoreSettings(
        advisor=AdvisorSettings(kind=AdvisorKind.STATIC),
        restart=RestartSettings(max_failures=1, first_backoff_s=2.0),
    )
    world = World(settings, is_patient=True)
    world.join("a1")
    world.submit(spec("job"))
    world.submit(spec("other"))

    def fail(generation: int) -> RescaleFailed:
        return RescaleFailed(
            at_s=world.now_s,
            job_id="job",
            generation=generation,
            reason="exited with 1",
            node_ids=(),
            is_job_fault=True,
        )

    decision = world.feed(fail(1))
    assert world.job("job").failures == 1
    # While it backs off the node serves the other job.
    assert Rescale("other", 1, ("a1",)) in decision.actions
    assert WakeAt(2.0) in decision.actions
    world.feed(JobFinished(at_s=3.0, job_id="other", samples=1.0))
    assert world.job("job").rescaling is not None
    world.feed(fail(2))
    assert world.job("job").phase is Phase.FAILED
    assert "after 2 failures" in world.job("job").note
    assert "exited with 1" in world.job("job").note


def test_the_reason_of_a_failed_job_outlives_what_its_workers_still_say() -> None:
    world = World(CoreSettings(restart=RestartSettings(max_failures=0)), is_patient=True)
    world.join("a1", "a2")
    world.submit(spec("job", least=2))
    world.finish()
    lost = WorkersLost(at_s=1.0, job_id="job", generation=1, node_ids=("a1",), reason="a crash")
    world.feed(lost)
    job = world.job("job")
    assert job.phase is Phase.FAILED
    assert "a crash" in job.note
    world.feed(replace(lost, node_ids=("a2",), reason="the peer is gone"))
    world.feed(JobNoted(at_s=2.0, job_id="job", note="a late word"))
    world.feed(
        RescaleFailed(
            at_s=3.0, job_id="job", generation=job.generation, reason="superseded", node_ids=()
        )
    )
    assert world.job("job").note == job.note


def test_a_job_cancelled_while_it_leaves_is_stopped_once(world: World) -> None:
    world.is_patient = True
    world.join("a1")
    world.submit(spec("job"))
    world.finish()
    world.feed(JobSuspended(at_s=1.0, job_id="job"))
    # Its workers may be past their loop, where they heed no order to leave.
    decision = world.feed(JobCancelled(at_s=2.0, job_id="job"))
    assert decision.actions == (Stop("job", 3),)
    assert world.feed(WokeUp(at_s=3.0)).actions == ()
    world.finish()
    assert world.job("job").held_node_ids == ()


def test_a_job_that_finished_has_no_note_of_what_it_has_overcome(world: World) -> None:
    world.join("a1")
    world.submit(spec("job"))
    world.feed(
        WorkersLost(at_s=1.0, job_id="job", generation=1, node_ids=("a1",), reason="a crash")
    )
    assert "a crash" in world.job("job").note
    world.feed(JobFinished(at_s=20.0, job_id="job", samples=1000.0))
    assert world.job("job").phase is Phase.FINISHED
    assert world.job("job").note == ""


def test_a_job_that_finished_oddly_says_how(world: World) -> None:
    world.join("a1")
    world.submit(spec("job"))
    world.feed(JobFinished(at_s=20.0, job_id="job", samples=1000.0, note="had to be killed"))
    assert world.job("job").note == "had to be killed"


def test_members_that_die_together_count_as_one_failure_and_progress_forgives_it(
    world: World,
) -> None:
    world.join("a1", "a2", "a3")
    world.submit(spec("job"))
    world.train(10.0)
    lost = [
        WorkersLost(at_s=11.0, job_id="job", generation=1, node_ids=(n,), reason="crash")
        for n in ("a1", "a2")
    ]
    world.feed(*lost)
    assert world.job("job").failures == 1
    assert world.job("job").node_ids == ("a3",)
    world.train(30.0)
    assert world.job("job").failures == 0


def test_stale_messages_change_nothing(world: World) -> None:
    world.join("a1", "a2")
    world.submit(spec("job"))
    world.leave("a1")
    before = world.cluster
    stale: list[AnyEvent] = [
        RescaleDone(
            at_s=0.0, job_id="job", generation=1, node_ids=("a1", "a2"), stall_s=9.0, samples=9.0
        ),
        RescaleFailed(at_s=0.0, job_id="job", generation=1, reason="late", node_ids=()),
        WorkersLost(at_s=0.0, job_id="job", generation=1, node_ids=("a2",), reason="late"),
        ProgressReported(
            at_s=0.0,
            job_id="job",
            generation=1,
            nodes=2,
            samples=1e9,
            steps=5,
            samples_per_s=1.0,
            variance=0.0,
        ),
        NodesLost(at_s=0.0, node_ids=("nobody",)),
        JobCancelled(at_s=0.0, job_id="nobody"),
    ]
    for event in stale:
        assert apply(before, event) == before


def test_rescale_costs_and_curves_are_learned_from_what_happens(world: World) -> None:
    world.join("a1")
    world.submit(spec("job", model_key="net"))
    world.train(10.0)
    world.join("a2")
    world.train(10.0)
    assert [o.nodes for o in world.cluster.curves["net"].observations] == [1, 2]
    cost = world.cluster.rescale_costs["net"]
    assert cost.ups == 1
    assert cost.scale_up_s < world.settings.prior.scale_up_s


def test_the_ledger_adds_up_to_what_was_offered(world: World) -> None:
    world.join("a1", "a2", "a3", at_s=0.0)
    world.train(5.0)
    world.feed(WokeUp(at_s=10.0))
    world.submit(spec("job", most=2))
    world.feed(WokeUp(at_s=40.0))
    world.lose("a1")
    world.feed(WokeUp(at_s=50.0))
    where = totals(world.cluster)
    assert where.offered == pytest.approx(3 * 40.0 + 2 * 10.0)
    assert where.training + where.rescaling == pytest.approx(2 * 30.0 + 2 * 10.0)
    assert where.idle == pytest.approx(3 * 10.0 + 30.0)


def test_jobs_that_are_over_can_be_forgotten_and_what_they_got_still_counts(world: World) -> None:
    world.join("a1", "a2", at_s=0.0)
    world.submit(spec("one", most=1), spec("two", most=1))
    world.train(10.0)
    world.feed(JobFinished(at_s=20.0, job_id="one", samples=2000.0))
    world.feed(WokeUp(at_s=30.0))
    before = world.cluster
    forgotten = JobsForgotten(at_s=30.0, job_ids=("one", "two", "nobody"))
    world.feed(forgotten)
    assert set(world.cluster.jobs) == set(world.cluster.ledger.jobs) == {"two"}
    assert totals(world.cluster) == totals(before)
    assert world.cluster.ledger.forgotten.training == pytest.approx(20.0)
    assert apply(world.cluster, forgotten) == world.cluster


def test_a_job_that_is_over_is_remembered_as_long_as_it_holds_nodes(world: World) -> None:
    world.join("a1")
    world.submit(spec("job"))
    world.is_patient = True
    world.feed(JobCancelled(at_s=1.0, job_id="job"))
    world.feed(JobsForgotten(at_s=1.0, job_ids=("job",)))
    assert world.job("job").activity is Activity.STOPPING
    world.finish()
    world.feed(JobsForgotten(at_s=2.0, job_ids=("job",)))
    assert "job" not in world.cluster.jobs


def test_foreseen_ends_are_news_that_nothing_waits_for(world: World) -> None:
    world.join("a1", "a2")
    foreseen = NodeEndsForeseen(at_s=1.0, ends_at_s={"a1": 60.0, "gone": 60.0})
    assert is_quiet(foreseen)
    assert not world.feed(foreseen).actions
    assert world.cluster.nodes["a1"].expected_end_at_s == 60.0
    world.submit(spec("job", most=1))
    assert world.job("job").node_ids == ("a2",)
    world.feed(NodeEndsForeseen(at_s=2.0, ends_at_s={"a1": None}))
    assert world.cluster.nodes["a1"].expected_end_at_s is None


def test_the_journal_rebuilds_the_state_through_its_written_form(world: World) -> None:
    world.join("a1", "a2", "b1")
    world.submit(spec("one"), spec("two", least=2))
    world.train(20.0)
    world.leave("a1")
    world.lose("b1")
    encoded = msgspec.json.encode(world.journal)
    journal = msgspec.json.decode(encoded, type=list[AnyEvent])
    assert replay(journal) == world.cluster


@pytest.mark.parametrize("kind", [AdvisorKind.INVERSE_ORDER, AdvisorKind.INFORMED])
def test_measuring_one_job_suspends_no_other(kind: AdvisorKind) -> None:
    world = World(CoreSettings(advisor=AdvisorSettings(kind=kind)))
    world.truth = {name: {n: 100 * n**0.8 for n in range(1, 6)} for name in ("one", "two", "three")}
    world.join("a1", "a2", "a3", "a4", "a5")
    world.submit(spec("one"), spec("two", least=2), spec("three"))
    for _ in range(30):
        world.train(20.0)
        assert all(job.node_ids for job in world.cluster.jobs.values())
    assert all(world.cluster.curves[name].observations for name in ("one", "two", "three"))
