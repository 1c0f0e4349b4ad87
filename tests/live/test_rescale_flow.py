"""The rescale protocol as stories, and then in whatever order things may happen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from malletrain.core.events import (
    AnyEvent,
    JobFinished,
    RescaleDone,
    RescaleFailed,
    WorkersLost,
)
from malletrain.live.rescale import (
    LAST_WORDS_LIMIT_S,
    FlowSettings,
    Journalled,
    Output,
    RescaleFlow,
    Send,
    StartOn,
    StopNow,
)
from malletrain.wire import (
    AbortGroup,
    GroupFailed,
    GroupReady,
    PrepareGroup,
    Switch,
    Switched,
    WorkDone,
    WorkerExited,
    WorkerInfo,
    WorkerWarm,
)

JOB = "j1"
SETTINGS = FlowSettings(
    attach_deadline_s=100.0,
    connect_deadline_s=30.0,
    switch_deadline_s=60.0,
    common_end_s=20.0,
    linger_s=50.0,
    stop_grace_s=5.0,
)


@dataclass
class Desk:
    """Sits between a flow and its pretended workers, and keeps what the flow said."""

    flow: RescaleFlow = field(default_factory=lambda: RescaleFlow(JOB, SETTINGS))
    now_s: float = 0.0
    #: Workers a node, where there is more than one.
    slots: dict[str, int] = field(default_factory=dict)
    #: Worker id -> node id, of every process that runs.
    alive: dict[str, str] = field(default_factory=dict)
    messages: list[PrepareGroup | Switch | AbortGroup] = field(default_factory=list)
    stops: list[StopNow] = field(default_factory=list)
    events: list[AnyEvent] = field(default_factory=list)

    def take(self, outputs: list[Output]) -> list[AnyEvent]:
        """Carry out; return the new events."""
        events: list[AnyEvent] = []
        for output in outputs:
            match output:
                case StartOn(workers):
                    self.alive.update(workers)
                case StopNow():
                    self.stops.append(output)
                case Send(message):
                    self.messages.append(message)
                case _:
                    events.append(output)
        self.events += events
        return events

    def order(self, generation: int, *nodes: str) -> list[AnyEvent]:
        return self.take(self.flow.order(generation, nodes, self.now_s, self.slots))

    def stop(self, generation: int) -> list[AnyEvent]:
        return self.take(self.flow.stop(generation, self.now_s))

    def warm(self, *workers: str) -> list[AnyEvent]:
        return self.each(
            workers,
            lambda w: self.flow.worker_warm(WorkerWarm(worker_id=w, job_id=JOB), self.now_s),
        )

    def ready(self, generation: int, *workers: str) -> list[AnyEvent]:
        return self.each(
            workers,
            lambda w: self.flow.group_ready(
                GroupReady(worker_id=w, job_id=JOB, generation=generation), self.now_s
            ),
        )

    def group_failed(self, generation: int, worker: str) -> list[AnyEvent]:
        message = GroupFailed(worker_id=worker, job_id=JOB, generation=generation, reason="refused")
        return self.take(self.flow.group_failed(message, self.now_s))

    def switched(
        self, generation: int, *workers: str, samples: float = 0.0, stall_s: float = 0.1
    ) -> list[AnyEvent]:
        return self.each(
            workers,
            lambda w: self.flow.switched(
                Switched(
                    worker_id=w,
                    job_id=JOB,
                    generation=generation,
                    step=1,
                    samples=samples,
                    stall_s=stall_s,
                ),
                self.now_s,
            ),
        )

    def exited(self, *workers: str, status: int = 0, log_tail: str = "") -> list[AnyEvent]:
        events = []
        for worker in workers:
            self.alive.pop(worker, None)
            message = WorkerExited(
                worker_id=worker,
                job_id=JOB,
                status=status,
                reason=f"exited with {status}",
                log_path="/log",
                log_tail=log_tail,
            )
            events += self.take(self.flow.worker_exited(message, self.now_s))
        return events

    def work_done(self, worker: str, samples: float = 1000.0) -> list[AnyEvent]:
        message = WorkDone(
            worker_id=worker, job_id=JOB, generation=self.flow.generation, step=9, samples=samples
        )
        return self.take(self.flow.work_done(message, self.now_s))

    def lose(self, *nodes: str) -> list[AnyEvent]:
        self.alive = {w: n for w, n in self.alive.items() if n not in nodes}
        return self.take(self.flow.nodes_lost(nodes, self.now_s))

    def tick_after(self, seconds: float) -> list[AnyEvent]:
        self.now_s += seconds
        return self.take(self.flow.tick(self.now_s))

    def each(self, workers, feed) -> list[AnyEvent]:
        return [event for worker in workers for event in self.take(feed(worker))]

    @property
    def last(self) -> PrepareGroup | Switch | AbortGroup:
        return self.messages[-1]


def w(generation: int, node: str, slot: int = 0) -> str:
    return f"{JOB}.{generation}.{node}.{slot}"


def training_on(*nodes: str) -> Desk:
    """A job that trains in generation 1 on these nodes."""
    desk = Desk()
    workers = [w(1, node) for node in nodes]
    desk.order(1, *nodes)
    desk.warm(*workers)
    (done,) = desk.switched(1, *workers)
    assert isinstance(done, RescaleDone)
    assert done.node_ids == nodes
    return desk


# -- starting --------------------------------------------------------------------------------------


def test_a_start_waits_for_all_and_needs_no_switch() -> None:
    desk = Desk()
    assert desk.order(1, "a", "b") == []
    assert desk.alive == {w(1, "a"): "a", w(1, "b"): "b"}
    desk.warm(w(1, "a"))
    assert desk.messages == []
    desk.warm(w(1, "b"))
    assert desk.last == PrepareGroup(
        job_id=JOB,
        generation=1,
        members=(w(1, "a"), w(1, "b")),
        to=(w(1, "a"), w(1, "b")),
        is_immediate=True,
    )
    assert desk.switched(1, w(1, "a"), samples=64.0) == []
    (done,) = desk.switched(1, w(1, "b"), samples=64.0)
    assert done == RescaleDone(
        at_s=0.0, job_id=JOB, generation=1, node_ids=("a", "b"), stall_s=0.1, samples=64.0
    )
    assert desk.flow.members == (w(1, "a"), w(1, "b"))
    assert len(desk.messages) == 1


def test_a_node_with_two_gpus_has_two_workers_next_to_each_other_in_rank() -> None:
    desk = Desk(slots={"a": 2, "b": 2})
    desk.order(1, "a", "b")
    workers = (w(1, "a", 0), w(1, "a", 1), w(1, "b", 0), w(1, "b", 1))
    assert tuple(desk.alive) == workers
    desk.warm(*workers)
    assert isinstance(desk.last, PrepareGroup)
    assert desk.last.members == workers
    (done,) = desk.switched(1, *workers)
    assert isinstance(done, RescaleDone)
    assert done.node_ids == ("a", "b")


def test_a_script_that_never_calls_us_fails_at_its_deadline_with_advice() -> None:
    desk = Desk()
    desk.order(1, "a")
    assert desk.tick_after(99.0) == []
    assert desk.stops == []
    # It is ended first: its agent tells how its log ends.
    assert desk.tick_after(1.5) == []
    assert desk.stops[-1].worker_ids == (w(1, "a"),)
    (failed,) = desk.exited(w(1, "a"), status=-9, log_tail="no library here")
    assert isinstance(failed, RescaleFailed)
    assert failed.is_job_fault
    advice, tail = failed.reason.splitlines()
    assert "malletrain.train.attach" in advice
    assert advice.endswith("; log: /log")
    assert tail == "no library here"
    assert desk.flow.is_at_rest


def test_a_script_that_never_calls_us_fails_though_nobody_tells_its_end() -> None:
    desk = Desk()
    desk.order(1, "a")
    desk.tick_after(100.0)
    (failed,) = desk.tick_after(LAST_WORDS_LIMIT_S)
    assert isinstance(failed, RescaleFailed)
    assert failed.is_job_fault
    assert "malletrain.train.attach" in failed.reason
    assert desk.flow.is_at_rest


def test_a_script_that_ends_at_once_fails_the_start_with_its_log() -> None:
    desk = Desk()
    desk.order(1, "a", "b")
    (failed,) = desk.exited(w(1, "a"), status=3)
    assert isinstance(failed, RescaleFailed)
    assert failed.is_job_fault
    assert "exited with 3" in failed.reason
    assert "/log" in failed.reason
    assert desk.stops[-1].worker_ids == (w(1, "b"),)


# -- growing and shrinking -------------------------------------------------------------------------


def test_growing_lets_members_train_until_joiners_are_ready() -> None:
    desk = training_on("a")
    desk.order(2, "a", "b")
    assert w(2, "b") in desk.alive
    desk.warm(w(2, "b"))
    assert isinstance(desk.last, PrepareGroup)
    assert not desk.last.is_immediate
    desk.ready(2, w(1, "a"))
    assert isinstance(desk.last, PrepareGroup)
    desk.ready(2, w(2, "b"))
    assert desk.last == Switch(job_id=JOB, generation=2, to=(w(1, "a"), w(2, "b")))
    (done,) = desk.switched(2, w(1, "a"), w(2, "b"), samples=640.0, stall_s=0.07)
    assert done == RescaleDone(
        at_s=0.0, job_id=JOB, generation=2, node_ids=("a", "b"), stall_s=0.07, samples=640.0
    )


def test_shrinking_is_done_when_leavers_are_gone() -> None:
    desk = training_on("a", "b", "c")
    desk.order(2, "a")
    assert isinstance(desk.last, PrepareGroup)
    assert desk.last.members == (w(1, "a"),)
    assert desk.last.to == (w(1, "a"), w(1, "b"), w(1, "c"))
    desk.ready(2, w(1, "a"))
    assert isinstance(desk.last, Switch)
    assert desk.last.to == (w(1, "a"), w(1, "b"), w(1, "c"))
    assert desk.switched(2, w(1, "a")) == []
    assert desk.exited(w(1, "b")) == []
    (done,) = desk.exited(w(1, "c"))
    assert isinstance(done, RescaleDone)
    assert done.node_ids == ("a",)


def test_a_leaver_may_be_gone_before_the_others_have_switched() -> None:
    desk = training_on("a", "b")
    desk.order(2, "a")
    desk.ready(2, w(1, "a"))
    assert desk.exited(w(1, "b")) == []
    (done,) = desk.switched(2, w(1, "a"))
    assert isinstance(done, RescaleDone)


def test_a_leavers_node_may_be_lost_once_the_others_have_switched() -> None:
    desk = training_on("a", "b")
    desk.order(2, "a")
    desk.ready(2, w(1, "a"))
    desk.switched(2, w(1, "a"))
    (done,) = desk.lose("b")
    assert isinstance(done, RescaleDone)
    assert done.node_ids == ("a",)


def test_suspending_is_done_when_all_have_left() -> None:
    desk = training_on("a", "b")
    desk.order(2)
    assert isinstance(desk.messages[-2], PrepareGroup)
    assert desk.messages[-2].members == ()
    assert desk.last == Switch(job_id=JOB, generation=2, to=(w(1, "a"), w(1, "b")))
    desk.exited(w(1, "a"))
    (done,) = desk.exited(w(1, "b"))
    assert isinstance(done, RescaleDone)
    assert done.node_ids == ()
    assert desk.flow.is_at_rest


def test_stopping_ends_all_at_once_and_calls_pending_off() -> None:
    desk = training_on("a")
    desk.order(2, "a", "b")
    (failed,) = desk.stop(3)
    assert isinstance(failed, RescaleFailed)
    assert failed.generation == 2
    assert desk.stops[-1] == StopNow((w(1, "a"), w(2, "b")), 5.0)
    desk.exited(w(1, "a"), status=-15)
    (done,) = desk.exited(w(2, "b"), status=-15)
    assert isinstance(done, RescaleDone)
    assert done.node_ids == ()


def test_a_stop_during_a_switch_drops_the_order_that_waited() -> None:
    desk = training_on("a")
    desk.order(2)
    desk.order(3, "a", "b")
    assert {e.generation for e in desk.stop(4) if isinstance(e, RescaleFailed)} == {2, 3}
    (done,) = desk.exited(w(1, "a"), status=-15)
    assert isinstance(done, RescaleDone)
    assert done.generation == 4
    assert desk.flow.is_at_rest


# -- changed minds ---------------------------------------------------------------------------------


def test_a_newer_order_takes_over_joiners_that_it_wants_too() -> None:
    desk = training_on("a")
    desk.order(2, "a", "b", "c")
    desk.warm(w(2, "b"))
    (failed,) = desk.order(3, "a", "b", "d")
    assert isinstance(failed, RescaleFailed)
    assert failed.reason == "superseded"
    assert not failed.is_group_dead
    assert desk.stops[-1].worker_ids == (w(2, "c"),)
    desk.warm(w(3, "d"))
    assert isinstance(desk.last, PrepareGroup)
    assert desk.last.members == (w(1, "a"), w(2, "b"), w(3, "d"))


def test_a_newer_order_aborts_what_is_being_connected() -> None:
    desk = training_on("a")
    desk.order(2, "a", "b")
    desk.warm(w(2, "b"))
    desk.order(3, "a")
    abort, prepare = desk.messages[-2:]
    assert abort == AbortGroup(job_id=JOB, generation=2, to=(w(1, "a"), w(2, "b")))
    assert isinstance(prepare, PrepareGroup)
    assert prepare.members == (w(1, "a"),)


def test_an_order_during_a_switch_waits_and_only_the_newest_counts() -> None:
    desk = training_on("a", "b")
    desk.order(2, "a")
    desk.ready(2, w(1, "a"))
    assert desk.order(3, "a", "c") == []
    (superseded,) = desk.order(4, "a", "d")
    assert isinstance(superseded, RescaleFailed)
    assert superseded.generation == 3
    desk.switched(2, w(1, "a"))
    desk.exited(w(1, "b"))
    assert desk.flow.generation == 2
    assert w(4, "d") in desk.alive


# -- deaths ----------------------------------------------------------------------------------------


def test_survivors_of_a_hard_loss_go_on_at_once_in_the_next_generation() -> None:
    desk = training_on("a", "b", "c")
    assert desk.lose("b") == []
    desk.order(2, "a", "c")
    assert desk.last == PrepareGroup(
        job_id=JOB,
        generation=2,
        members=(w(1, "a"), w(1, "c")),
        to=(w(1, "a"), w(1, "c")),
        is_immediate=True,
    )
    (done,) = desk.switched(2, w(1, "a"), w(1, "c"), samples=320.0)
    assert isinstance(done, RescaleDone)
    assert done.samples == 320.0


def test_a_worker_that_dies_on_a_living_node_is_told_of() -> None:
    desk = training_on("a", "b")
    (lost,) = desk.exited(w(1, "b"), status=-9)
    assert isinstance(lost, WorkersLost)
    assert (lost.generation, lost.node_ids) == (1, ("b",))


def test_a_member_that_dies_while_joiners_warm_up_does_not_cost_them_their_warm_up() -> None:
    desk = training_on("a", "b")
    desk.order(2, "a", "b", "c")
    assert desk.lose("b") == []
    desk.warm(w(2, "c"))
    assert isinstance(desk.last, PrepareGroup)
    assert desk.last.is_immediate
    assert desk.last.members == (w(1, "a"), w(2, "c"))


def test_a_member_that_dies_while_groups_connect_fails_the_rescale() -> None:
    desk = training_on("a", "b")
    desk.order(2, "a", "b", "c")
    desk.warm(w(2, "c"))
    (failed,) = desk.lose("b")
    assert isinstance(failed, RescaleFailed)
    assert failed.is_group_dead
    assert failed.node_ids == ("a",)
    assert desk.stops[-1].worker_ids == (w(2, "c"),)
    assert isinstance(desk.last, AbortGroup)


def test_a_member_that_dies_during_the_switch_fails_the_rescale() -> None:
    desk = training_on("a", "b")
    desk.order(2, "a", "b", "c")
    desk.warm(w(2, "c"))
    desk.ready(2, w(1, "a"), w(1, "b"), w(2, "c"))
    desk.switched(2, w(1, "a"))
    lost, failed = desk.exited(w(1, "b"), status=-11)
    assert isinstance(lost, WorkersLost)
    assert isinstance(failed, RescaleFailed)
    assert failed.is_group_dead
    desk.order(3, "a")
    assert isinstance(desk.last, PrepareGroup)
    assert desk.last.is_immediate


def test_a_joiner_that_dies_fails_the_rescale_and_members_train_on() -> None:
    desk = training_on("a")
    desk.order(2, "a", "b")
    (failed,) = desk.exited(w(2, "b"), status=1)
    assert isinstance(failed, RescaleFailed)
    assert failed.is_job_fault
    assert not failed.is_group_dead
    assert failed.node_ids == ("a",)


def test_a_joining_node_that_is_lost_is_left_out() -> None:
    desk = training_on("a")
    desk.order(2, "a", "b", "c")
    assert desk.lose("c") == []
    desk.warm(w(2, "b"))
    assert isinstance(desk.last, PrepareGroup)
    assert desk.last.members == (w(1, "a"), w(2, "b"))


def test_losing_every_node_of_a_start_fails_it() -> None:
    desk = Desk()
    desk.order(1, "a", "b")
    (failed,) = desk.lose("a", "b")
    assert isinstance(failed, RescaleFailed)
    assert not failed.is_job_fault
    assert desk.flow.is_at_rest


def test_groups_that_never_connect_are_the_jobs_fault_in_the_end() -> None:
    desk = training_on("a")
    faults = []
    for generation in (2, 3, 4):
        desk.order(generation, "a", "b")
        desk.warm(w(generation, "b"))
        (failed,) = desk.group_failed(generation, w(1, "a"))
        assert isinstance(failed, RescaleFailed)
        faults.append(failed.is_job_fault)
        desk.exited(w(generation, "b"), status=-9)
    assert faults == [False, False, True]


def test_a_group_that_does_not_connect_in_time_is_given_up() -> None:
    desk = training_on("a")
    desk.order(2, "a", "b")
    desk.warm(w(2, "b"))
    desk.ready(2, w(1, "a"))
    (failed,) = desk.tick_after(30.5)
    assert isinstance(failed, RescaleFailed)
    assert w(2, "b") in failed.reason
    assert not failed.is_group_dead


def test_a_switch_that_hangs_ends_by_force() -> None:
    desk = training_on("a", "b")
    desk.order(2, "a")
    desk.ready(2, w(1, "a"))
    desk.tick_after(61.0)
    assert desk.stops[-1] == StopNow((w(1, "a"), w(1, "b")))


# -- the end of the job ----------------------------------------------------------------------------


def test_the_job_is_finished_when_all_have_ended_well() -> None:
    desk = training_on("a", "b")
    desk.work_done(w(1, "a"), samples=1000.0)
    assert desk.exited(w(1, "a")) == []
    (finished,) = desk.exited(w(1, "b"))
    assert finished == JobFinished(at_s=0.0, job_id=JOB, samples=1000.0)
    assert desk.flow.is_at_rest


def test_the_end_calls_off_a_rescale_and_holds_back_the_next() -> None:
    desk = training_on("a")
    desk.order(2, "a", "b")
    (failed,) = desk.work_done(w(1, "a"))
    assert isinstance(failed, RescaleFailed)
    assert not failed.is_group_dead
    assert desk.order(3, "a", "c") == []
    assert w(3, "c") not in desk.alive
    held_back, finished = desk.exited(w(1, "a"))
    assert isinstance(held_back, RescaleFailed)
    assert held_back.generation == 3
    assert isinstance(finished, JobFinished)


def test_the_end_during_a_switch_leaves_the_group_as_it_is() -> None:
    desk = training_on("a", "b")
    desk.order(2, "a")
    desk.ready(2, w(1, "a"))
    (failed,) = desk.work_done(w(1, "a"))
    assert isinstance(failed, RescaleFailed)
    assert not failed.is_group_dead
    desk.exited(w(1, "a"))
    (finished,) = desk.exited(w(1, "b"))
    assert isinstance(finished, JobFinished)


def test_a_joiner_that_ends_well_right_after_the_switch_is_no_failure() -> None:
    desk = training_on("a")
    desk.order(2, "a", "b")
    desk.warm(w(2, "b"))
    desk.ready(2, w(1, "a"), w(2, "b"))
    desk.switched(2, w(2, "b"))
    assert desk.work_done(w(2, "b")) == []
    assert desk.exited(w(2, "b")) == []
    (done,) = desk.switched(2, w(1, "a"))
    assert isinstance(done, RescaleDone)
    (finished,) = desk.exited(w(1, "a"))
    assert isinstance(finished, JobFinished)


def test_work_that_is_done_before_the_leaver_has_gone_counts_in_full() -> None:
    desk = training_on("a", "b")
    desk.order(2, "a")
    desk.ready(2, w(1, "a"))
    desk.switched(2, w(1, "a"), samples=900.0)
    desk.work_done(w(1, "a"), samples=1000.0)
    (done,) = desk.exited(w(1, "b"))
    assert isinstance(done, RescaleDone)
    assert done.samples == 900.0
    (finished,) = desk.exited(w(1, "a"))
    assert isinstance(finished, JobFinished)
    assert finished.samples == 1000.0


def test_a_job_whose_last_members_die_at_the_end_is_not_finished() -> None:
    desk = training_on("a", "b")
    desk.work_done(w(1, "a"))
    desk.exited(w(1, "a"))
    desk.lose("a")
    (lost,) = desk.exited(w(1, "b"), status=-9)
    assert isinstance(lost, WorkersLost)
    assert desk.flow.is_at_rest
    desk.order(2, "c")
    assert w(2, "c") in desk.alive


def test_members_that_all_leave_the_loop_finish_the_job_without_a_word() -> None:
    desk = training_on("a", "b")
    assert desk.exited(w(1, "a")) == []
    assert desk.tick_after(19.0) == []
    (finished,) = desk.exited(w(1, "b"))
    assert finished == JobFinished(at_s=19.0, job_id=JOB, samples=0.0)
    assert desk.flow.deadline_at_s is None


def test_a_member_that_ends_while_the_others_train_on_has_failed() -> None:
    desk = training_on("a", "b", "c")
    desk.exited(w(1, "b"))
    assert desk.order(2, "a", "b", "d") == []
    assert desk.flow.deadline_at_s == 20.0
    (lost,) = desk.tick_after(20.0)
    assert isinstance(lost, WorkersLost)
    assert (lost.generation, lost.node_ids) == (1, ("b",))
    assert lost.reason == f"worker {w(1, 'b')} ended with status 0 while the others trained on"
    assert desk.stops == []
    # The order that waited is carried out without its node.
    desk.warm(w(2, "d"))
    assert isinstance(desk.last, PrepareGroup)
    assert desk.last.is_immediate
    assert desk.last.members == (w(1, "a"), w(2, "d"))


def test_a_member_that_ended_before_another_died_has_failed_too() -> None:
    desk = training_on("a", "b", "c")
    desk.exited(w(1, "b"))
    early, died = desk.exited(w(1, "a"), status=1)
    assert isinstance(early, WorkersLost)
    assert isinstance(died, WorkersLost)
    assert (early.node_ids, died.node_ids) == (("b",), ("a",))
    assert "status 0" in early.reason
    assert "exited with 1" in died.reason
    # No end is waited for any more.
    assert desk.flow.deadline_at_s is None
    desk.order(2, "c")
    assert isinstance(desk.last, PrepareGroup)
    assert desk.last.is_immediate


def test_a_member_that_ended_before_anothers_node_was_lost_has_failed_too() -> None:
    desk = training_on("a", "b")
    desk.exited(w(1, "b"))
    (early,) = desk.lose("a")
    assert isinstance(early, WorkersLost)
    assert early.node_ids == ("b",)
    assert desk.flow.is_at_rest


def test_a_joiner_that_ends_while_the_others_still_switch_fails_the_rescale() -> None:
    desk = training_on("a")
    desk.order(2, "a", "b")
    desk.warm(w(2, "b"))
    desk.ready(2, w(1, "a"), w(2, "b"))
    desk.switched(2, w(2, "b"))
    assert desk.exited(w(2, "b")) == []
    (failed,) = desk.tick_after(20.0)
    assert isinstance(failed, RescaleFailed)
    assert failed.is_job_fault
    assert failed.is_group_dead
    assert failed.node_ids == ("a",)


def test_the_word_that_all_is_trained_may_come_after_the_first_end() -> None:
    desk = training_on("a", "b")
    desk.exited(w(1, "a"))
    desk.work_done(w(1, "b"))
    assert desk.tick_after(21.0) == []
    (finished,) = desk.exited(w(1, "b"))
    assert isinstance(finished, JobFinished)


def test_workers_that_linger_after_the_work_are_killed_and_the_job_is_finished() -> None:
    desk = training_on("a", "b")
    desk.work_done(w(1, "b"))
    desk.exited(w(1, "b"))
    # A suspension waits for the end, which has its limit.
    assert desk.order(2) == []
    assert desk.flow.deadline_at_s == 50.0
    assert desk.tick_after(50.0) == []
    assert desk.stops == [StopNow((w(1, "a"),))]
    held_back, finished = desk.exited(w(1, "a"), status=-9)
    assert isinstance(held_back, RescaleFailed)
    assert isinstance(finished, JobFinished)
    assert finished.samples == 1000.0
    assert w(1, "a") in finished.note
    assert "all samples are trained" in finished.note
    assert desk.flow.is_at_rest


def test_a_stop_goes_before_an_end_that_lingers() -> None:
    desk = training_on("a")
    desk.work_done(w(1, "a"))
    desk.order(2)
    (superseded,) = desk.stop(3)
    assert isinstance(superseded, RescaleFailed)
    assert superseded.generation == 2
    assert desk.stops == [StopNow((w(1, "a"),), 5.0)]
    (done,) = desk.exited(w(1, "a"), status=-9)
    assert isinstance(done, RescaleDone)
    assert done.generation == 3
    assert desk.flow.deadline_at_s is None


# -- late and foreign messages ---------------------------------------------------------------------


def test_messages_of_old_generations_and_strangers_change_nothing() -> None:
    desk = training_on("a", "b")
    desk.order(2, "a")
    before = len(desk.messages)
    desk.ready(1, w(1, "a"))
    desk.switched(1, w(1, "a"))
    desk.group_failed(1, w(1, "a"))
    desk.exited("j1.0.x.0", status=-9)
    desk.work_done("j1.0.x.0")
    assert len(desk.messages) == before
    assert len(desk.events) == 1
    desk.ready(2, w(1, "a"))
    assert isinstance(desk.last, Switch)


def test_what_a_node_may_have_missed_is_said_again_to_it_alone() -> None:
    desk = training_on("a")
    desk.order(2, "a", "b", "c")
    b, c = w(2, "b"), w(2, "c")
    assert desk.flow.repeated("b", ()) == [StartOn({b: "b"}, {b: 0})]
    assert desk.flow.repeated("b", (b,)) == []
    assert desk.flow.repeated("a", (w(1, "a"),)) == []
    desk.warm(b, c)
    assert isinstance(desk.last, PrepareGroup)
    assert desk.flow.repeated("b", (b,)) == [Send(replace(desk.last, to=(b,)))]
    prepare = desk.last
    desk.ready(2, w(1, "a"), b, c)
    switch = Switch(job_id=JOB, generation=2, to=(b,))
    assert desk.flow.repeated("b", (b,)) == [Send(replace(prepare, to=(b,))), Send(switch)]
    desk.switched(2, b)
    assert desk.flow.repeated("b", (b,)) == []


# -- coming back after the controller died ---------------------------------------------------------


def info(node: str, generation: int, slot: int = 0) -> WorkerInfo:
    return WorkerInfo(
        worker_id=f"old.{node}.{slot}",
        job_id=JOB,
        node_id=node,
        slot=slot,
        generation=generation,
        is_warm=True,
    )


def adopted(workers: list[WorkerInfo], asked: int | None = None, *asked_nodes: str) -> Desk:
    desk = Desk()
    journal = Journalled(
        generation=4,
        node_ids=("a", "b"),
        asked_generation=asked,
        asked_node_ids=asked_nodes,
        slots={},
        samples=100.0,
    )
    desk.alive = {i.worker_id: i.node_id for i in workers}
    desk.take(desk.flow.adopt(workers, journal, 0.0))
    return desk


def test_workers_that_trained_on_are_taken_over_without_a_word() -> None:
    desk = adopted([info("b", 4), info("a", 4)])
    assert desk.flow.members == ("old.a.0", "old.b.0")
    assert (desk.events, desk.messages, desk.stops) == ([], [], [])


def test_a_switch_that_happened_while_the_controller_was_away_is_told() -> None:
    desk = adopted([info("a", 5), info("b", 5), info("c", 5)], 5, "a", "b", "c")
    assert desk.events == [
        RescaleDone(
            at_s=0.0, job_id=JOB, generation=5, node_ids=("a", "b", "c"), stall_s=0.0, samples=100.0
        )
    ]
    assert desk.flow.generation == 5


def test_a_rescale_that_cannot_be_finished_is_called_off() -> None:
    desk = adopted([info("a", 4), info("b", 4), info("c", 0)], 5, "a", "b", "c")
    (failed,) = desk.events
    assert isinstance(failed, RescaleFailed)
    assert (failed.generation, failed.node_ids, failed.is_group_dead) == (5, ("a", "b"), False)
    assert desk.last == AbortGroup(job_id=JOB, generation=5, to=("old.a.0", "old.b.0"))
    assert desk.stops == [StopNow(("old.c.0",))]


def test_a_member_that_is_missing_leaves_the_others_in_a_dead_group() -> None:
    desk = adopted([info("a", 4)])
    (lost,) = desk.events
    assert isinstance(lost, WorkersLost)
    assert (lost.generation, lost.node_ids) == (4, ("b",))
    desk.order(6, "a")
    assert isinstance(desk.last, PrepareGroup)
    assert desk.last.is_immediate


def test_a_group_that_was_broken_before_is_so_still() -> None:
    desk = Desk()
    journal = Journalled(
        generation=4,
        node_ids=("a",),
        asked_generation=None,
        asked_node_ids=(),
        slots={},
        samples=100.0,
        is_broken=True,
    )
    desk.take(desk.flow.adopt([info("a", 4), info("b", 4)], journal, 0.0))
    assert desk.events == []
    # It is not the job's node any more.
    assert desk.stops == [StopNow(("old.b.0",))]
    desk.order(5, "a")
    assert isinstance(desk.last, PrepareGroup)
    assert desk.last.is_immediate


def test_a_suspension_that_was_completed_meanwhile_is_done() -> None:
    desk = adopted([], 5)
    done = desk.events[0]
    assert isinstance(done, RescaleDone)
    assert done.node_ids == ()
    assert desk.flow.is_at_rest


# -- whatever the order of things ------------------------------------------------------------------

NODES = ("a", "b", "c", "d")


@dataclass
class World:
    """Workers that do what the protocol asks of them, each in its own time."""

    desk: Desk = field(default_factory=lambda: Desk(slots={"c": 2}))
    lost: set[str] = field(default_factory=set)
    warm: set[str] = field(default_factory=set)
    prepared: dict[str, PrepareGroup] = field(default_factory=dict)
    ready: set[tuple[str, int]] = field(default_factory=set)
    may_switch: set[tuple[str, int]] = field(default_factory=set)
    has_switched: set[tuple[str, int]] = field(default_factory=set)
    stopping: set[str] = field(default_factory=set)
    ending: set[str] = field(default_factory=set)
    ordered: list[int] = field(default_factory=list)
    generation: int = 0
    seen_messages: int = 0
    seen_stops: int = 0

    def hear(self, *, deaf: set[str] | None = None) -> None:
        """Let the workers get what was sent to them, but for those whose agent was cut off."""
        for message in self.desk.messages[self.seen_messages :]:
            for worker in set(message.to) - (deaf or set()):
                match message:
                    case PrepareGroup():
                        self.prepared[worker] = message
                        if message.is_immediate:
                            self.may_switch.add((worker, message.generation))
                    case Switch(generation=generation):
                        self.may_switch.add((worker, generation))
                    case AbortGroup():
                        self.prepared.pop(worker, None)
        for stop in self.desk.stops[self.seen_stops :]:
            self.stopping |= set(stop.worker_ids) & self.desk.alive.keys() - (deaf or set())
        self.seen_messages = len(self.desk.messages)
        self.seen_stops = len(self.desk.stops)

    def reconnect(self, node: str, *, is_start_lost: bool) -> None:
        """Lose what was on its way to a node, and have its agent call again."""
        flow = self.desk.flow
        here = {w for w, n in self.desk.alive.items() if n == node}
        self.hear(deaf=here)
        if is_start_lost:
            for worker in here - self.warm:
                del self.desk.alive[worker]
            here &= self.warm
        self.stopping |= {w for w in here if flow.node_of(w) is None}
        self.desk.take(flow.repeated(node, here))
        for worker in sorted(here):
            info = WorkerInfo(
                worker_id=worker,
                job_id=JOB,
                node_id=node,
                generation=max((g for w, g in self.has_switched if w == worker), default=0),
                is_warm=worker in self.warm,
            )
            self.desk.take(flow.reattached(info, self.desk.now_s))

    def moves(self) -> list[tuple[str, str]]:
        """What could happen next by itself."""
        moves = []
        for worker in self.desk.alive:
            group = self.prepared.get(worker)
            if worker in self.stopping:
                moves.append(("end", worker))
            elif worker in self.ending:
                moves.append(("leave", worker))
            elif worker not in self.warm:
                moves.append(("warm", worker))
            elif group and (worker, group.generation) in self.may_switch:
                if worker not in group.members:
                    moves.append(("leave", worker))
                elif (worker, group.generation) not in self.has_switched:
                    moves.append(("switch", worker))
            elif group and worker in group.members and (worker, group.generation) not in self.ready:
                moves.append(("ready", worker))
        return sorted(moves)

    def move(self, kind: str, worker: str) -> None:
        desk = self.desk
        if kind == "warm":
            self.warm.add(worker)
            desk.warm(worker)
        elif kind == "end":
            desk.exited(worker, status=-15)
        elif kind == "leave":
            desk.exited(worker, status=0)
        elif kind == "ready":
            generation = self.prepared[worker].generation
            self.ready.add((worker, generation))
            desk.ready(generation, worker)
        else:
            generation = self.prepared[worker].generation
            self.has_switched.add((worker, generation))
            desk.switched(generation, worker)

    def order(self, nodes: list[str]) -> None:
        self.generation += 1
        self.ordered.append(self.generation)
        self.desk.order(self.generation, *(n for n in nodes if n not in self.lost))

    def stop(self) -> None:
        self.generation += 1
        self.ordered.append(self.generation)
        self.desk.stop(self.generation)

    def work_is_done(self) -> None:
        """Have all who train in the newest group say so and end."""
        members = self.desk.flow.members
        is_whole = all(member in self.desk.alive for member in members)
        if members and is_whole and not self.ending & set(members):
            self.ending |= set(members)
            self.desk.work_done(members[0])

    def check(self) -> None:
        flow = self.desk.flow
        assert set(flow.members) <= set(flow.worker_nodes)
        assert set(flow.worker_nodes) - self.ending <= set(self.desk.alive)
        assert not set(flow.worker_nodes.values()) & self.lost
        endings = Counter(
            event.generation
            for event in self.desk.events
            if isinstance(event, RescaleDone | RescaleFailed)
        )
        assert all(times == 1 for times in endings.values()), "an order has ended twice"
        still_open = [g for g in self.ordered if g not in endings]
        # One is carried out, one may wait for it; neither for ever.
        assert len(still_open) <= 2
        assert not still_open or flow.deadline_at_s is not None
        assert endings.keys() <= set(self.ordered)


def disturb(world: World, data: st.DataObject) -> None:
    """Let something happen that no worker and no protocol wants."""
    kinds = ["order", "lose", "die", "tick", "fail_group", "end", "quit", "reconnect"]
    match data.draw(st.sampled_from(kinds)):
        case "order":
            nodes = data.draw(st.lists(st.sampled_from(NODES), unique=True, max_size=4))
            world.order(nodes)
        case "lose" if len(world.lost) < 2:
            node = data.draw(st.sampled_from(NODES))
            world.lost.add(node)
            world.desk.lose(node)
        case "die" if world.desk.alive:
            worker = data.draw(st.sampled_from(sorted(world.desk.alive)))
            world.desk.exited(worker, status=-9)
        case "quit" if world.desk.alive:
            worker = data.draw(st.sampled_from(sorted(world.desk.alive)))
            world.ending.add(worker)
            world.desk.exited(worker, status=0)
        case "tick":
            world.desk.tick_after(data.draw(st.sampled_from([1.0, 31.0, 101.0])))
        case "fail_group" if world.prepared:
            worker = data.draw(st.sampled_from(sorted(world.prepared)))
            world.desk.group_failed(world.prepared[worker].generation, worker)
        case "end":
            world.work_is_done()
        case "reconnect":
            world.reconnect(
                data.draw(st.sampled_from(NODES)), is_start_lost=data.draw(st.booleans())
            )


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_every_order_ends_once_whatever_happens(data: st.DataObject) -> None:
    world = World()
    for _ in range(data.draw(st.integers(1, 40), label="steps")):
        moves = world.moves()
        if moves and data.draw(st.integers(0, 2), label="undisturbed"):
            world.move(*data.draw(st.sampled_from(moves)))
        else:
            disturb(world, data)
        world.hear()
        world.check()
    world.stop()
    for _ in range(500):
        world.hear()
        world.check()
        if not (moves := world.moves()):
            break
        world.move(*moves[0])
    endings = {
        e.generation for e in world.desk.events if isinstance(e, RescaleDone | RescaleFailed)
    }
    assert endings == set(world.ordered)
    assert world.desk.flow.is_at_rest
    event(f"rescales done: {sum(isinstance(e, RescaleDone) for e in world.desk.events)}")


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_what_is_left_alone_comes_to_rest_as_ordered(data: st.DataObject) -> None:
    """After any history, an order that nothing disturbs is carried out to the letter."""
    world = World()
    for _ in range(data.draw(st.integers(0, 25), label="steps")):
        moves = world.moves()
        if moves and data.draw(st.booleans()):
            world.move(*data.draw(st.sampled_from(moves)))
        elif data.draw(st.booleans()):
            world.order(data.draw(st.lists(st.sampled_from(NODES), unique=True, max_size=4)))
        elif data.draw(st.booleans()):
            world.reconnect(
                data.draw(st.sampled_from(NODES)), is_start_lost=data.draw(st.booleans())
            )
        elif world.desk.alive:
            worker = data.draw(st.sampled_from(sorted(world.desk.alive)))
            world.desk.exited(worker, status=-9)
        world.hear()
    # Those that an earlier order told to leave may be gone at any moment: they go first.
    for kind, worker in world.moves():
        if kind == "leave":
            world.move(kind, worker)
    wanted = tuple(data.draw(st.lists(st.sampled_from(NODES), unique=True, max_size=4)))
    world.order(list(wanted))
    for _ in range(500):
        world.hear()
        world.check()
        if not (moves := world.moves()):
            break
        world.move(*data.draw(st.sampled_from(moves)))
    flow = world.desk.flow
    assert tuple(dict.fromkeys(flow.worker_nodes[m] for m in flow.members)) == wanted
    assert flow.generation == world.generation or not wanted
