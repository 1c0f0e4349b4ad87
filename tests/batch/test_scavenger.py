"""The scavenger under a manual clock, over a queue that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from malletrain.batch.commands import NoAnswerError
from malletrain.batch.queue import Survey
from malletrain.batch.scavenger import Scavenger
from malletrain.config import ScavengeSettings
from malletrain.core.apply import apply
from malletrain.core.events import (
    AnyEvent,
    JobCancelled,
    JobSubmitted,
    NodesJoined,
    NodesLeaving,
    NodesLost,
)
from malletrain.core.model import Cluster, JobSpec, Node
from malletrain.errors import BatchError
from tests.live.manual_clock import ManualClock, settle

pytestmark = pytest.mark.anyio

SETTINGS = ScavengeSettings(
    max_nodes=8,
    max_waiting=4,
    query_every_s=120.0,
    query_backoff_max_s=900.0,
    submit_every_s=10.0,
    call_limit_s=100.0,
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class PlayedQueue:
    """A queue with a scheduler that does nothing by itself."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.waiting: dict[str, float] = {}
        self.running: dict[str, str] = {}
        self.wanted_at_s: dict[str, float] = {}
        self.surveys = 0
        self.submissions: list[tuple[int, float]] = []
        self.cancelled: list[str] = []
        self.problem: BatchError | None = None
        self.cancel_problem: BatchError | None = None
        self.cancels = 0
        self.is_answering = True
        #: Submissions that fail take place.
        self.is_obeyed_anyway = False
        #: How long a survey takes.
        self.takes_s = 0.0

    async def survey(self) -> Survey:
        self.surveys += 1
        if self.takes_s:
            await self.clock.sleep(self.takes_s)
        if self.problem:
            raise self.problem
        return Survey(
            at_s=self.clock.now_s(),
            waiting=dict(self.waiting),
            running=dict(self.running),
            wanted_at_s=dict(self.wanted_at_s),
        )

    async def is_up(self) -> bool:
        return self.is_answering

    async def submit(self, count: int, walltime_s: float) -> tuple[str, ...]:
        if self.problem and not self.is_obeyed_anyway:
            raise self.problem
        self.submissions.append((count, walltime_s))
        ids = tuple(f"{len(self.submissions)}_{task}" for task in range(count))
        self.waiting |= dict.fromkeys(ids, walltime_s)
        if self.problem:
            raise self.problem
        return ids

    async def cancel(self, pilot_ids: tuple[str, ...]) -> None:
        if self.problem:
            raise self.problem
        self.cancels += 1
        if self.cancel_problem:
            raise self.cancel_problem
        self.cancelled += pilot_ids
        for pilot_id in pilot_ids:
            self.waiting.pop(pilot_id, None)
            self.running = {h: p for h, p in self.running.items() if p != pilot_id}


class Scene:
    """A scavenger, what it says to the controller, and a state that events change."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.queue = PlayedQueue(self.clock)
        self.scavenger = Scavenger(
            self.queue, SETTINGS, self.clock, logs=Path("/logs"), jitter=lambda: 0.5
        )
        self.cluster = Cluster()
        self.troubles: list[str] = []
        self.to_leave: dict[str, str] = {}
        self.ends_at_s: dict[str, float | None] = {}
        self.lost: dict[str, str] = {}
        self.pilots_waiting = 0

    def batch_troubled(self, trouble: str) -> None:
        self.troubles.append(trouble)

    def nodes_to_leave(self, reasons: Mapping[str, str], within_s: float) -> None:
        assert within_s == SETTINGS.grace_s
        self.to_leave |= reasons

    def node_ends_foreseen(self, ends_at_s: Mapping[str, float | None]) -> None:
        self.ends_at_s |= ends_at_s

    def pilots_wait(self, count: int) -> None:
        self.pilots_waiting = count

    def node_lost(self, node_id: str, reason: str) -> None:
        self.lost[node_id] = reason

    def nodes_ended(self, reason: str) -> None:
        raise AssertionError(reason)

    def batch_ended(self, reason: str) -> None:
        raise AssertionError(reason)

    def batch_port_abused(self, times: int) -> None:
        raise AssertionError(times)

    async def happens(self, event: AnyEvent) -> None:
        self.cluster = apply(self.cluster, event)
        self.scavenger.heed(self.cluster)
        await settle()

    async def submit(self, max_nodes: int) -> None:
        spec = JobSpec(id="j1", name="j", min_nodes=1, max_nodes=max_nodes, model_key="m")
        await self.happens(JobSubmitted(at_s=self.clock.now_s(), spec=spec))

    async def starts(self, pilot_id: str, host: str, ends_at_s: float | None = None) -> str:
        """Have the scheduler start a pilot, and its agent call."""
        del self.queue.waiting[pilot_id]
        self.queue.running[host] = pilot_id
        node = Node(
            f"{host}-{pilot_id}",
            self.clock.now_s(),
            host=host,
            pilot_id=pilot_id,
            expected_end_at_s=ends_at_s,
        )
        await self.happens(NodesJoined(at_s=self.clock.now_s(), nodes=(node,)))
        return node.id


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    played = Scene()
    await played.scavenger.start("http://controller", Path("token"), played)
    await settle()
    try:
        yield played
    finally:
        await played.scavenger.detach()


async def test_nothing_is_asked_or_submitted_where_there_is_no_job() -> None:
    async with scene() as played:
        assert played.queue.surveys == 1
        await played.clock.advance(1000, step_s=10)
        assert played.queue.surveys == 1
        assert played.queue.submissions == []


async def test_pilots_follow_demand_within_the_limits() -> None:
    async with scene() as played:
        await played.submit(max_nodes=6)
        assert played.queue.submissions == [(4, SETTINGS.walltime_s)]
        for task in range(4):
            await played.starts(f"1_{task}", f"h{task}")
        await played.clock.advance(10)
        assert [count for count, _ in played.queue.submissions] == [4, 2]
        assert played.pilots_waiting == 2
        await played.happens(JobCancelled(at_s=played.clock.now_s(), job_id="j1"))
        assert set(played.queue.cancelled) == {"2_0", "2_1"}
        # No query was needed for any of it.
        assert played.queue.surveys == 1


async def test_queries_keep_an_administrators_pace_whatever_happens() -> None:
    async with scene() as played:
        await played.submit(max_nodes=8)
        for round_number in range(30):
            pilot_id = next(iter(played.queue.waiting))
            node_id = await played.starts(pilot_id, f"h{round_number}")
            await played.clock.advance(20, step_s=5)
            del played.queue.running[f"h{round_number}"]
            lost = NodesLost(at_s=played.clock.now_s(), node_ids=(node_id,))
            await played.happens(lost)
            await played.clock.advance(SETTINGS.calm_s + 1, step_s=1)
        assert played.queue.surveys <= 1 + 780 / SETTINGS.query_every_s


async def test_a_scheduler_that_is_away_is_asked_ever_less_and_nothing_is_given_back() -> None:
    async with scene() as played:
        await played.submit(max_nodes=2)
        await played.starts("1_0", "h0")
        played.queue.problem = BatchError("slurmctld does not answer", is_transient=True)
        played.queue.is_answering = False
        await played.clock.advance(3600, step_s=10)
        # Only the first question takes the programs' long time-outs; then it is pinged.
        assert played.queue.surveys == 2
        assert played.to_leave == {}
        assert "training goes on" in played.troubles[-1]
        assert "asked again every 900 s" in played.troubles[-1]
        played.queue.problem = None
        played.queue.is_answering = True
        await played.clock.advance(900, step_s=10)
        assert played.troubles[-1] == ""
        assert played.to_leave == {}


async def test_a_pilot_that_does_not_call_is_cancelled_and_told_of() -> None:
    async with scene() as played:
        await played.submit(max_nodes=1)
        del played.queue.waiting["1_0"]
        played.queue.running["h0"] = "1_0"
        await played.clock.advance(125, step_s=5)
        assert played.queue.cancelled == []
        await played.clock.advance(120, step_s=5)
        assert played.queue.cancelled == ["1_0"]
        assert "1 pilots did not call, the last of them 1_0" in played.troubles[-1]
        assert "/logs" in played.troubles[-1]
        # Another try, later than usual, and the trouble is over once a pilot calls.
        await played.clock.advance(30, step_s=5)
        assert len(played.queue.submissions) == 2
        await played.starts("2_0", "h1")
        assert played.troubles[-1] == ""


async def test_pilots_that_end_at_once_are_submitted_ever_less() -> None:
    async with scene() as played:
        await played.submit(max_nodes=1)
        for _ in range(3600 // 5):
            played.queue.waiting.clear()
            await played.clock.advance(5, step_s=5)
        assert 3 <= len(played.queue.submissions) <= 12


async def test_a_refusal_is_told_and_not_repeated_at_once() -> None:
    async with scene() as played:
        played.queue.problem = BatchError("no such account", is_transient=False)
        await played.submit(max_nodes=1)
        assert played.troubles[-1] == "no such account"
        played.queue.problem = None
        await played.clock.advance(15, step_s=5)
        assert played.queue.submissions == []
        await played.clock.advance(10, step_s=5)
        assert len(played.queue.submissions) == 1


async def test_a_cancel_that_fails_is_not_repeated_at_once() -> None:
    async with scene() as played:
        await played.submit(max_nodes=1)
        played.queue.cancel_problem = BatchError("scancel ended with 1", is_transient=True)
        await played.happens(JobCancelled(at_s=played.clock.now_s(), job_id="j1"))
        await played.clock.advance(100, step_s=1)
        assert 1 <= played.queue.cancels <= 4
        played.queue.cancel_problem = None
        await played.clock.advance(100, step_s=1)
        assert played.queue.waiting == {}


async def test_a_submission_without_an_answer_is_looked_for_before_the_next() -> None:
    async with scene() as played:
        played.queue.problem = NoAnswerError("sbatch did not end within 60 s", is_transient=True)
        played.queue.is_obeyed_anyway = True
        await played.submit(max_nodes=2)
        assert len(played.queue.submissions) == 1
        played.queue.problem = None
        await played.clock.advance(60, step_s=1)
        assert len(played.queue.submissions) == 1
        assert played.pilots_waiting == 2


async def test_a_scheduler_that_does_not_answer_keeps_no_controller_from_starting() -> None:
    played = Scene()
    played.queue.takes_s = 60.0
    starting = asyncio.create_task(
        played.scavenger.start("http://controller", Path("token"), played)
    )
    try:
        await played.clock.advance(5.5, step_s=0.5)
        assert starting.done()
        assert "has not answered" in played.troubles[-1]
        await played.submit(max_nodes=1)
        await played.clock.advance(60, step_s=5)
        assert played.troubles[-1] == ""
        assert len(played.queue.submissions) == 1
    finally:
        await played.scavenger.detach()


async def test_a_bad_configuration_is_refused_at_the_start() -> None:
    played = Scene()
    played.queue.problem = BatchError("no such partition", is_transient=False)
    with pytest.raises(BatchError, match="no such partition"):
        await played.scavenger.start("http://controller", Path("token"), played)


async def test_no_pilot_waits_while_somebody_takes_nodes_back() -> None:
    async with scene() as played:
        await played.submit(max_nodes=8)
        node_id = await played.starts("1_0", "h0")
        assert len(played.queue.waiting) == 3
        now_s = played.clock.now_s()
        asked = NodesLeaving(
            at_s=now_s, node_ids=(node_id,), deadline_at_s=now_s + 9.0, are_awaited=True
        )
        await played.happens(asked)
        assert played.queue.waiting == {}
        await played.clock.advance(9, step_s=1)
        assert played.queue.waiting == {}
        # It is gone: from now on, the calm lasts.
        await played.happens(NodesLost(at_s=played.clock.now_s(), node_ids=(node_id,)))
        await played.clock.advance(SETTINGS.calm_s - 1, step_s=1)
        assert played.queue.waiting == {}
        await played.clock.advance(2, step_s=1)
        assert len(played.queue.waiting) == 4


async def test_a_node_that_is_given_back_makes_nobody_wait() -> None:
    async with scene() as played:
        await played.submit(max_nodes=8)
        node_id = await played.starts("1_0", "h0")
        now_s = played.clock.now_s()
        leaving = NodesLeaving(at_s=now_s, node_ids=(node_id,), deadline_at_s=now_s + 60.0)
        await played.happens(leaving)
        await played.happens(NodesLost(at_s=played.clock.now_s(), node_ids=(node_id,)))
        assert len(played.queue.waiting) == 3


async def test_plans_of_others_are_foreseen_and_forgotten() -> None:
    async with scene() as played:
        await played.submit(max_nodes=1)
        walltime_ends_at_s = played.clock.now_s() + 7200.0
        node_id = await played.starts("1_0", "h0", walltime_ends_at_s)
        wanted_at_s = played.clock.now_s() + 1800.0
        played.queue.wanted_at_s["h0"] = wanted_at_s
        await played.clock.advance(125, step_s=5)
        assert played.ends_at_s == {node_id: wanted_at_s}


async def test_a_new_controller_takes_over_the_pilots_of_an_earlier_one() -> None:
    played = Scene()
    played.queue.waiting = {"7_0": 600.0}
    await played.scavenger.start("http://controller", Path("token"), played)
    try:
        await played.submit(max_nodes=1)
        assert played.queue.submissions == []
        await played.happens(JobCancelled(at_s=played.clock.now_s(), job_id="j1"))
        assert played.queue.cancelled == ["7_0"]
    finally:
        await played.scavenger.detach()


async def test_a_restarted_controller_cancels_no_pilot_before_it_knows_its_jobs() -> None:
    played = Scene()
    played.queue.waiting = {"7_1": 600.0}
    played.queue.running = {"h0": "7_0"}
    await played.scavenger.start("http://controller", Path("token"), played)
    try:
        # Agents and their workers have some time to come back.
        await settle()
        await played.clock.advance(20, step_s=5)
        assert played.queue.cancelled == []
        await played.submit(max_nodes=2)
        assert played.queue.cancelled == []
        assert played.queue.submissions == []
    finally:
        await played.scavenger.detach()


@pytest.mark.parametrize(("running", "lost"), [({"h1": "7_1"}, ["h0-7_0"]), ({}, [])])
async def test_nodes_that_ended_meanwhile_are_told_to_a_restarted_controller(
    running: dict[str, str], lost: list[str]
) -> None:
    played = Scene()
    nodes = tuple(
        Node(f"{h}-{p}", 0.0, host=h, pilot_id=p) for h, p in (("h0", "7_0"), ("h1", "7_1"))
    )
    played.scavenger.heed(apply(played.cluster, NodesJoined(at_s=0.0, nodes=nodes)))
    played.queue.running = running
    await played.scavenger.start("http://controller", Path("token"), played)
    await settle()
    await played.scavenger.detach()
    # An answer that knows none of them may be wrong.
    assert list(played.lost) == lost
    assert played.queue.cancelled == []


async def test_a_pilot_that_is_taken_back_before_it_calls_is_no_failure_where_others_call() -> None:
    async with scene() as played:
        await played.submit(max_nodes=2)
        await played.starts("1_0", "h0")
        del played.queue.waiting["1_1"]
        await played.clock.advance(125, step_s=5)
        assert not any(played.troubles)
        assert [count for count, _ in played.queue.submissions] == [2, 1]


async def test_nothing_is_submitted_once_no_more_is_lent() -> None:
    async with scene() as played:
        await played.submit(max_nodes=3)
        node_id = await played.starts("1_0", "h0")
        await played.scavenger.lend_no_more()
        assert set(played.queue.cancelled) == {"1_1", "1_2"}
        await played.happens(NodesLost(at_s=played.clock.now_s(), node_ids=(node_id,)))
        await played.clock.advance(300, step_s=5)
        assert len(played.queue.submissions) == 1


async def test_at_the_end_nothing_stays_in_the_queue() -> None:
    async with scene() as played:
        await played.submit(max_nodes=3)
        await played.starts("1_0", "h0")
        await played.scavenger.stop()
        assert set(played.queue.cancelled) == {"1_0", "1_1", "1_2"}


async def test_an_end_while_the_scheduler_is_away_names_what_it_leaves_in_the_queue() -> None:
    async with scene() as played:
        await played.submit(max_nodes=3)
        await played.starts("1_0", "h0")
        played.queue.problem = BatchError("slurmctld does not answer", is_transient=True)
        with pytest.raises(BatchError, match=r"left in the queue: 1_1, 1_2; .* does not answer"):
            await played.scavenger.stop()
