"""Stories over a controller with a real port, a real journal and pretended workers."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from malletrain.allocate import ALLOCATORS
from malletrain.allocate.exact import ExactAllocator
from malletrain.config import AllocatorName, Config, LiveSettings
from malletrain.core.apply import replay
from malletrain.core.events import (
    AnyEvent,
    DecisionTaken,
    JobFinished,
    NodesLost,
    ProgressReported,
    RescaleDone,
    RescaleFailed,
)
from malletrain.core.model import Activity, Cluster, Phase
from malletrain.core.problem import Allocation, Problem
from malletrain.core.settings import CoreSettings, RestartSettings
from malletrain.errors import JournalWriteError
from malletrain.live.main import chosen_allocator
from malletrain.live.store import SqliteStore, read_events, read_history
from malletrain.wire import (
    Malformed,
    Message,
    PrepareGroup,
    ReleaseNode,
    Saved,
    StartWorkers,
    StopWorkers,
    StoreAdd,
    StoreGet,
    StoreSet,
    StoreValue,
    Switch,
    WorkDone,
)
from tests.live.fake_agents import FakeAgent, FakeWorker
from tests.live.rig import LIVE, Rig, running
from tests.live.stories import run


def is_training(rig: Rig, job_id: str, *nodes: str) -> bool:
    job = rig.job(job_id)
    return job.activity is Activity.TRAINING and set(job.node_ids) == set(nodes)


async def training(rig: Rig, job_id: str, *nodes: str) -> None:
    await rig.until(lambda _: is_training(rig, job_id, *nodes))


def events_of(rig: Rig, kind: type[AnyEvent]) -> list[AnyEvent]:
    return [event for event in read_events(rig.state_dir.journal_path) if isinstance(event, kind)]


def only_worker(agent: FakeAgent) -> str:
    (worker_id,) = agent.workers
    return worker_id


# -- nodes come and go -----------------------------------------------------------------------------


def test_a_job_grows_with_its_nodes_and_shrinks_with_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1"):
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            async with rig.agent("n2") as second:
                await training(rig, job_id, "n1", "n2")
                await second.leave()
                await second.until(lambda agent: agent.is_released)
                await rig.until(lambda cluster: set(cluster.nodes) == {"n1"})
                await training(rig, job_id, "n1")
            ended = [*events_of(rig, RescaleDone), *events_of(rig, RescaleFailed)]
            generations = [event.generation for event in ended]
            assert sorted(generations) == sorted(set(generations))
            assert rig.controller.view().decision is not None

    run(story())


def test_whoever_heeds_hears_that_a_node_is_gone_that_was_given_back(tmp_path: Path) -> None:
    async def story() -> None:
        heeded: list[Cluster] = []
        async with running(tmp_path, heed=heeded.append) as rig:
            async with rig.agent("n1") as agent:
                await rig.until(lambda _: bool(heeded) and "n1" in heeded[-1].nodes)
                await agent.leave()
                await agent.until(lambda agent: agent.is_released)
            await rig.until(lambda cluster: not cluster.nodes)
            await rig.until(lambda _: not heeded[-1].nodes)

    run(story())


def test_a_burst_of_leaves_is_one_event(tmp_path: Path) -> None:
    async def story() -> None:
        live = replace(LIVE, settle_s=0.1)
        async with running(tmp_path, live=live) as rig:
            agents = [rig.agent(f"n{i}") for i in range(8)]
            await asyncio.gather(*(agent.call() for agent in agents))
            await rig.until(lambda cluster: len(cluster.nodes) == 8)
            decisions = len(events_of(rig, DecisionTaken))
            await asyncio.gather(*(agent.leave() for agent in agents[:6]))
            await rig.until(lambda cluster: len(cluster.nodes) == 2)
            # All are leaving, none is used: they are released in one decision.
            assert len(events_of(rig, DecisionTaken)) == decisions + 1
            await asyncio.gather(*(agent.hang_up() for agent in agents))

    run(story())


def stopped(agent: FakeAgent) -> bool:
    return any(isinstance(message, StopWorkers) for message in agent.heard)


def test_workers_that_do_not_leave_an_awaited_node_are_killed_and_the_job_is_not_blamed(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1") as stays, rig.agent("n2") as leaves:
            job_id = await rig.submit(max_nodes=2)
            await training(rig, job_id, "n1", "n2")
            # No group is ever built without it: a planned rescale would wait for long.
            stays.ignores = lambda message: (
                isinstance(message, PrepareGroup) and not stopped(leaves)
            )
            await leaves.leave(60.0, shrink_within_s=0.05, save_within_s=30.0)
            await leaves.until(stopped)
            await leaves.hang_up()
            await training(rig, job_id, "n1")
            job = rig.job(job_id)
            assert (job.failures, job.retry_at_s) == (0, 0.0)

    run(story())


def test_a_job_that_loses_its_last_node_has_longer_to_save_its_state(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1") as agent:
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            agent.ignores = lambda message: isinstance(message, PrepareGroup)
            began_s = rig.controller.now_s
            await agent.leave(60.0, shrink_within_s=0.01, save_within_s=0.3)
            await agent.until(stopped)
            assert rig.controller.now_s - began_s >= 0.3

    run(story())


def test_a_node_that_nobody_waits_for_has_its_whole_grace_period(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1") as agent:
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            held_back: list[object] = []

            def is_held_back(message: object) -> bool:
                held_back.append(message)
                return isinstance(message, PrepareGroup)

            agent.ignores = is_held_back
            await agent.leave(60.0)
            await rig.until(lambda _: bool(held_back))
            # A second word, that somebody waits for it after all, counts.
            assert not stopped(agent)
            await agent.leave(60.0, shrink_within_s=0.01, save_within_s=0.02)
            await agent.until(stopped)

    run(story())


def test_a_dropped_connection_is_no_lost_node(tmp_path: Path) -> None:
    async def story() -> None:
        live = replace(LIVE, agent_closed_limit_s=10.0)
        async with running(tmp_path, live=live) as rig, rig.agent("n1") as agent:
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            worker = only_worker(agent)
            await agent.hang_up()
            await rig.until(lambda _: rig.controller.executor.agents.away == 1)
            await agent.call()
            assert agent.welcome is not None
            assert agent.welcome.stop_worker_ids == ()
            await agent.progress(worker, 1, 500.0)
            await rig.until(lambda _: rig.job(job_id).done_samples == 500.0)
            assert rig.job(job_id).generation == 1

    run(story())


@pytest.mark.parametrize("lost", [StartWorkers, PrepareGroup, Switch])
def test_an_order_that_was_lost_with_a_connection_is_given_again(
    tmp_path: Path, lost: type[Message]
) -> None:
    async def story() -> None:
        live = replace(LIVE, agent_closed_limit_s=10.0)
        async with running(tmp_path, live=live) as rig, rig.agent("n1") as staying:
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            member = only_worker(staying)
            joining = rig.agent("n2")
            # It never gets the order: the connection breaks.
            joining.ignores = lambda message: isinstance(message, lost)
            await joining.call()
            await joining.until(lambda a: any(isinstance(m, lost) for m in a.heard))
            await joining.hang_up()
            joining.ignores = lambda _message: False
            await joining.call()
            await training(rig, job_id, "n1", "n2")
            assert rig.job(job_id).generation == 2
            assert only_worker(staying) == member
            assert events_of(rig, RescaleFailed) == []
            await joining.hang_up()

    run(story())


def test_a_stop_that_was_lost_with_a_connection_is_given_again(tmp_path: Path) -> None:
    async def story() -> None:
        live = replace(LIVE, agent_closed_limit_s=10.0)
        async with running(tmp_path, live=live) as rig, rig.agent("n1") as agent:
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            agent.ignores = lambda message: isinstance(message, StopWorkers)
            await rig.http.post(f"/v1/jobs/{job_id}/cancel")
            await agent.until(lambda a: any(isinstance(m, StopWorkers) for m in a.heard))
            await agent.hang_up()
            agent.ignores = lambda _message: False
            await agent.call()
            await rig.until(lambda _: rig.job(job_id).activity is Activity.OVER)
            assert not agent.workers

    run(story())


def test_an_agent_that_stays_away_is_lost_with_its_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1"), rig.agent("n2") as second:
            job_id = await rig.submit()
            await training(rig, job_id, "n1", "n2")
            await second.hang_up()
            await rig.until(lambda cluster: "n2" not in cluster.nodes)
            await training(rig, job_id, "n1")
            assert rig.controller.view().jobs[0].losses == 1
            # It comes back from the dead: its worker may write no state any more.
            ghost = only_worker(second)
            await second.call()
            assert second.welcome is not None
            assert second.welcome.stop_worker_ids == (ghost,)
            await training(rig, job_id, "n1", "n2")

    run(story())


def test_an_agent_that_closed_its_connection_is_waited_for_more_briefly(tmp_path: Path) -> None:
    async def story() -> None:
        live = replace(LIVE, agent_closed_limit_s=0.1, agent_away_limit_s=600.0)
        async with running(tmp_path, live=live) as rig, rig.agent("n1") as agent:
            await rig.until(lambda cluster: "n1" in cluster.nodes)
            await agent.hang_up()
            await rig.until(lambda cluster: not cluster.nodes)

    run(story())


def test_an_agent_that_falls_silent_is_waited_for_longer(tmp_path: Path) -> None:
    async def story() -> None:
        live = replace(LIVE, ping_every_s=0.1, agent_closed_limit_s=600.0, agent_away_limit_s=0.1)
        async with running(tmp_path, live=live) as rig, rig.agent("n1") as agent:
            await rig.until(lambda cluster: "n1" in cluster.nodes)
            assert agent.connection is not None
            # Alive, but nothing gets through: it closes nothing and answers nothing.
            agent.connection.transport.pause_reading()
            await rig.until(lambda cluster: not cluster.nodes)
            (lost,) = events_of(rig, NodesLost)
            assert isinstance(lost, NodesLost)
            assert lost.reason == "its agent was away for 0.1 s"
            agent.connection.transport.resume_reading()

    run(story())


def test_a_restarted_agent_of_a_node_is_another_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1") as agent:
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            async with rig.agent("n1") as restarted:
                await rig.until(lambda _: rig.job(job_id).generation > 1)
                await training(rig, job_id, "n1")
                assert only_worker(restarted) != only_worker(agent)

    run(story())


def test_the_batch_system_may_know_of_a_death_first(tmp_path: Path) -> None:
    async def story() -> None:
        live = replace(LIVE, agent_away_limit_s=60.0, agent_closed_limit_s=60.0)
        async with running(tmp_path, live=live) as rig, rig.agent("n1"), rig.agent("n2"):
            job_id = await rig.submit()
            await training(rig, job_id, "n1", "n2")
            rig.controller.executor.agents.lose("n2", "its host died")
            await training(rig, job_id, "n1")

    run(story())


def test_what_agents_and_the_batch_system_refused_is_counted(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1") as one, rig.agent("n2") as two:
            # A sum may be told twice, when a connection broke behind it.
            for agent, connections in ((one, 1), (one, 3), (one, 3), (two, 2)):
                await agent.say(Malformed(connections=connections))
            rig.controller.batch_port_abused(4)
            counters = rig.controller.counters
            await rig.until(lambda _: counters["malformed_worker_messages"] == 5)
            state = (await rig.http.get("/v1/state")).json()
            assert state["counters"] == {
                "malformed_worker_messages": 5,
                "malformed_batch_messages": 4,
            }

    run(story())


def test_the_end_of_the_batch_system_is_told_and_no_node_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        live = replace(LIVE, agent_away_limit_s=60.0, agent_closed_limit_s=60.0)
        async with running(tmp_path, live=live) as rig, rig.agent("n1"), rig.agent("n2"):
            job_id = await rig.submit()
            await training(rig, job_id, "n1", "n2")
            rig.controller.batch_ended("the batch system has ended: restart the controller")
            await rig.until(lambda cluster: not cluster.nodes)
            assert rig.job(job_id).activity is Activity.WAITING
            assert rig.job(job_id).failures == 0
            state = (await rig.http.get("/v1/state")).json()
            assert state["trouble"] == "the batch system has ended: restart the controller"
            # What needs no node is still done.
            assert (await rig.http.post(f"/v1/jobs/{job_id}/cancel")).status_code == 200

    run(story())


def test_an_agent_that_reads_nothing_is_given_up(tmp_path: Path) -> None:
    async def story() -> None:
        live = replace(LIVE, outbox_messages=10)
        async with running(tmp_path, live=live) as rig, rig.agent("n1") as agent:
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            for request in range(11):
                value = StoreValue(request=request, value=b"")
                rig.controller.executor.agents.send("n1", value)
            await rig.until(lambda cluster: "n1" not in cluster.nodes)
            assert rig.controller.counters["slow_agents"] == 1
            assert agent.connection is not None

    run(story())


class SlowAllocator:
    """Gives its answer when it is told to."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.may_answer = threading.Event()

    def allocate(self, problem: Problem) -> Allocation:
        self.problems.append(problem)
        assert self.may_answer.wait(10)
        return ExactAllocator().allocate(problem)


def test_what_comes_while_the_allocator_runs_is_decided_next(tmp_path: Path) -> None:
    async def story() -> None:
        allocator = SlowAllocator()
        async with running(tmp_path, allocator=allocator) as rig, rig.agent("n1") as agent:
            async with rig.agent("n2"):
                await rig.until(lambda cluster: len(cluster.nodes) == 2)
                first = await rig.submit(max_nodes=1)
                await rig.until(lambda _: len(allocator.problems) == 1)
                submitting = asyncio.create_task(rig.submit(max_nodes=1))
                leaving = rig.agent("n3")
                await leaving.call()
                allocator.may_answer.set()
                second = await submitting
                await rig.until(
                    lambda _: all(rig.job(j).activity is Activity.TRAINING for j in (first, second))
                )
                await leaving.hang_up()
            assert agent.connection is not None

    run(story())


@pytest.mark.parametrize("name", [n for n in AllocatorName if n is not AllocatorName.EXACT])
def test_any_allocator_can_decide(tmp_path: Path, name: AllocatorName) -> None:
    async def story() -> None:
        allocator = chosen_allocator(LiveSettings(allocator=name, allocator_time_limit_s=7.0))
        assert type(allocator) is ALLOCATORS[name.value]
        assert getattr(allocator, "time_limit_s", 7.0) == 7.0
        async with running(tmp_path, allocator=allocator) as rig, rig.agent("n1"):
            await training(rig, await rig.submit(max_nodes=1), "n1")

    run(story())


# -- jobs ------------------------------------------------------------------------------------------


def test_a_job_ends_when_its_script_has(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1") as agent:
            job_id = await rig.submit(samples=1000)
            await training(rig, job_id, "n1")
            (start,) = [m for m in agent.heard if isinstance(m, StartWorkers)]
            assert start.command == ("true",)
            assert start.settings.work_samples == 1000
            assert start.settings.checkpoint_dir == str(rig.state_dir.checkpoint_dir(job_id))
            worker = only_worker(agent)
            done = WorkDone(worker_id=worker, job_id=job_id, generation=1, step=9, samples=1000.0)
            await agent.say(done)
            await agent.end(worker, 0)
            await rig.until(lambda _: rig.job(job_id).phase is Phase.FINISHED)
            assert rig.job(job_id).done_samples == 1000.0
            assert rig.controller.executor.rank_zero(job_id) is None
            assert rig.controller.executor.first_workers(job_id) == (worker,)

    run(story())


def test_a_job_that_dies_each_time_is_given_up_and_others_are_not(tmp_path: Path) -> None:
    async def story() -> None:
        restart = RestartSettings(max_failures=2, first_backoff_s=0.01)
        config = Config(core=CoreSettings(restart=restart))
        async with running(tmp_path, config=config) as rig, rig.agent("n1") as agent:
            good = await rig.submit(name="good", max_nodes=1)
            await training(rig, good, "n1")
            async with rig.agent("n2") as second:
                second.dies_with = 3
                bad = await rig.submit(name="bad", max_nodes=1)
                await rig.until(lambda _: rig.job(bad).phase is Phase.FAILED)
                note = rig.job(bad).note
                assert "given up after 3 failures" in note
                assert "exited with 3" in note
                assert ".log" in note
            assert is_training(rig, good, "n1")
            assert len(agent.workers) == 1

    run(story())


def test_suspend_and_resume(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1") as agent:
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            await rig.http.post(f"/v1/jobs/{job_id}/suspend")
            await rig.until(lambda _: not rig.job(job_id).held_node_ids)
            assert not agent.workers
            leaving = [m for m in agent.heard if isinstance(m, PrepareGroup)][-1]
            assert leaving.members == ()
            await rig.http.post(f"/v1/jobs/{job_id}/resume")
            await training(rig, job_id, "n1")

    run(story())


def test_cancelling_ends_the_workers(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1") as agent:
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            await rig.http.post(f"/v1/jobs/{job_id}/cancel")
            await rig.until(lambda _: rig.job(job_id).activity is Activity.OVER)
            assert not agent.workers
            assert rig.controller.executor.rank_zero(job_id) is None

    run(story())


def test_workers_of_a_generation_meet_through_the_controller(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1") as one, rig.agent("n2") as two:
            job_id = await rig.submit()
            await training(rig, job_id, "n1", "n2")
            generation = rig.job(job_id).running_generation
            space = {"job_id": job_id, "generation": generation}
            await two.say(StoreGet(**space, key="address", request=7))
            await one.say(StoreSet(**space, key="address", value=b"here"))
            # An agent asks again after a broken connection: it must not count twice.
            for request in (1, 1, 2):
                await one.say(StoreAdd(**space, key="count", amount=2, request=request))
            await two.until(lambda a: StoreValue(request=7, value=b"here") in a.heard)
            await one.until(lambda a: StoreValue(request=2, value=b"4") in a.heard)
            assert one.heard.count(StoreValue(request=1, value=b"2")) == 2
            await one.say(
                StoreSet(job_id=job_id, generation=generation - 1, key="k", value=b"late")
            )
            await rig.until(lambda _: rig.controller.counters["refused_keys"] == 1)

    run(story())


# -- the journal -----------------------------------------------------------------------------------


class FullDisk(SqliteStore):
    is_full = False

    def append(self, events: Sequence[AnyEvent]) -> None:
        if self.is_full:
            raise JournalWriteError("cannot write the journal: disk full; make room")
        super().append(events)


def test_with_a_full_disk_nothing_new_begins_and_nothing_is_lost(tmp_path: Path) -> None:
    async def story() -> None:
        store = FullDisk(tmp_path / "journal.sqlite")
        async with running(tmp_path, store=store) as rig, rig.agent("n1") as agent:
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            store.is_full = True
            refused = await rig.http.post(f"/v1/jobs/{job_id}/cancel")
            assert refused.status_code == 503
            assert "make room" in refused.json()["error"]
            assert "disk full" in (await rig.http.get("/v1/state")).json()["trouble"]
            worker = only_worker(agent)
            for samples in (100.0, 200.0, 300.0):
                await agent.progress(worker, 1, samples)
            saved = Saved(
                worker_id=worker, job_id=job_id, generation=1, step=3, samples=300.0, path="/c"
            )
            await agent.say(saved)
            await rig.until(lambda _: rig.controller.counters["journal_write_errors"] > 2)
            assert rig.job(job_id).done_samples == 0.0
            store.is_full = False
            await rig.until(lambda _: rig.job(job_id).saved_samples == 300.0)
            assert rig.job(job_id).done_samples == 300.0
            assert rig.job(job_id).phase is Phase.ACTIVE
            assert (await rig.http.get("/v1/state")).json()["trouble"] == ""
            assert (await rig.http.post(f"/v1/jobs/{job_id}/cancel")).status_code == 200
            assert len(agent.workers) <= 1

    run(story())


class NoDecisions(SqliteStore):
    """Takes everything but decisions, for a while."""

    refusals = 2

    def append(self, events: Sequence[AnyEvent]) -> None:
        if self.refusals and isinstance(events[0], DecisionTaken):
            self.refusals -= 1
            raise JournalWriteError("cannot write the journal: disk full; make room")
        super().append(events)


def test_a_decision_that_cannot_be_written_is_made_again(tmp_path: Path) -> None:
    async def story() -> None:
        store = NoDecisions(tmp_path / "journal.sqlite")
        async with running(tmp_path, store=store) as rig, rig.agent("n1") as agent:
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            assert store.refusals == 0
            assert rig.controller.trouble == ""
            assert len([m for m in agent.heard if isinstance(m, StartWorkers)]) == 1

    run(story())


def test_progress_is_journalled_with_the_nodes_that_made_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1", gpus=2) as agent:
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            assert len(agent.workers) == 2
            await agent.progress(next(iter(agent.workers)), 2, 64.0, loss=math.nan)
            await rig.until(lambda _: rig.job(job_id).done_samples == 64.0)
            (progress,) = events_of(rig, ProgressReported)
            assert isinstance(progress, ProgressReported)
            assert progress.nodes == 1
            # What stands in the journal stands in the state.
            assert progress.loss is rig.job(job_id).loss is None

    run(story())


def test_progress_is_journalled_as_one_until_something_happens_to_the_job(tmp_path: Path) -> None:
    async def story() -> None:
        live = replace(LIVE, progress_journal_s=600.0)
        async with running(tmp_path, live=live) as rig, rig.agent("n1") as agent:
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            worker = only_worker(agent)
            await agent.progress(worker, 1, 100.0)
            await rig.until(lambda _: rig.job(job_id).done_samples == 100.0)
            for samples in (200.0, 300.0, 400.0):
                await agent.progress(worker, 1, samples)
            await agent.end(worker, 1)
            await rig.until(lambda _: rig.job(job_id).failures == 1)
            reports = events_of(rig, ProgressReported)
            assert [r.samples for r in reports if isinstance(r, ProgressReported)] == [100.0, 400.0]
            assert [r.steps for r in reports if isinstance(r, ProgressReported)] == [20, 60]

    run(story())


# -- the controller dies ---------------------------------------------------------------------------


def test_workers_never_notice_that_the_controller_was_killed(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            agents = [rig.agent(f"n{i}") for i in range(3)]
            for agent in agents:
                await agent.call()
            job_id = await rig.submit()
            await training(rig, job_id, "n0", "n1", "n2")
            workers = [only_worker(agent) for agent in agents]
            before = rig.job(job_id)
            rig.kill()
        async with running(tmp_path) as rig:
            assert rig.job(job_id) == before
            for agent in agents:
                await come_back(agent, rig)
            await rig.until(lambda _: rig.controller.executor.rank_zero(job_id) is not None)
            assert rig.controller.executor.rank_zero(job_id) in workers
            await agents[0].progress(workers[0], 3, 777.0)
            # Which of them is rank 0 does not matter here.
            await rig.until(lambda _: rig.job(job_id).done_samples == 777.0)
            assert [only_worker(agent) for agent in agents] == workers
            assert rig.job(job_id).generation == before.generation
            # It can still be rescaled.
            await agents[2].leave()
            await training(rig, job_id, "n0", "n1")
            await asyncio.gather(*(agent.hang_up() for agent in agents))

    run(story())


async def come_back(agent: FakeAgent, rig: Rig) -> None:
    await agent.hang_up()
    agent.url = rig.url
    await agent.call()


def test_a_node_that_was_lost_meanwhile_is_found_missing(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            one, two = rig.agent("n1"), rig.agent("n2")
            await one.call()
            await two.call()
            job_id = await rig.submit()
            await training(rig, job_id, "n1", "n2")
            rig.kill()
        await two.hang_up()
        async with running(tmp_path) as rig:
            await come_back(one, rig)
            await rig.until(lambda cluster: set(cluster.nodes) == {"n1"})
            await training(rig, job_id, "n1")
            assert rig.job(job_id).failures == 0
            await one.hang_up()

    run(story())


def test_an_end_that_nobody_heard_of_is_heard_afterwards(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            agent = rig.agent("n1")
            await agent.call()
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            rig.kill()
        await agent.hang_up()
        worker = only_worker(agent)
        ended = agent.workers.pop(worker)
        async with running(tmp_path) as rig:
            agent.url = rig.url
            await agent.call()
            agent.workers[worker] = ended
            await agent.end(worker, 0)
            await rig.until(lambda _: rig.job(job_id).phase is Phase.FINISHED)
            assert len(events_of(rig, JobFinished)) == 1
            await agent.hang_up()

    run(story())


def test_a_rescale_cut_short_by_the_controllers_death_is_begun_anew(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            one, two = rig.agent("n1"), rig.agent("n2")
            await one.call()
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            # The joiner starts, but its group never gets ready.
            two.ignores = lambda message: isinstance(message, PrepareGroup)
            await two.call()
            await two.until(lambda a: any(isinstance(m, PrepareGroup) for m in a.heard))
            cut_short = rig.job(job_id).rescaling
            assert cut_short is not None
            rig.kill()
        two.ignores = lambda _message: False
        async with running(tmp_path) as rig:
            await come_back(one, rig)
            await come_back(two, rig)
            await training(rig, job_id, "n1", "n2")
            (failed,) = events_of(rig, RescaleFailed)
            assert isinstance(failed, RescaleFailed)
            assert failed.generation == cut_short.generation
            assert failed.reason == "the controller was restarted"
            assert rig.job(job_id).generation > cut_short.generation
            await one.hang_up()
            await two.hang_up()

    run(story())


def test_workers_that_nobody_wants_any_more_are_ended(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            agent = rig.agent("n1")
            await agent.call()
            over = await rig.submit()
            await training(rig, over, "n1")
            await rig.http.post(f"/v1/jobs/{over}/cancel")
            await rig.until(lambda _: rig.job(over).activity is Activity.OVER)
            rig.kill()
        agent.workers = {"left": FakeWorker(over, generation=1), "odd": FakeWorker("j99")}
        async with running(tmp_path) as rig:
            await come_back(agent, rig)
            await agent.until(lambda a: not a.workers)
            await agent.hang_up()

    run(story())


def test_a_node_that_was_given_back_is_told_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            agent = rig.agent("n1")
            agent.ignores = lambda message: isinstance(message, ReleaseNode)
            await agent.call()
            await agent.leave(grace_s=60.0)
            await rig.until(lambda c: any(node.is_released for node in c.nodes.values()))
            rig.kill()
        agent.ignores = lambda _message: False
        async with running(tmp_path) as rig:
            await come_back(agent, rig)
            await rig.until(lambda cluster: not cluster.nodes)
            assert agent.is_released

    run(story())


def test_a_restart_reads_a_snapshot_and_little_more(tmp_path: Path) -> None:
    async def story() -> None:
        live = replace(LIVE, snapshot_every_events=5)
        async with running(tmp_path, live=live) as rig:
            for i in range(12):
                await rig.submit(name=f"job{i}")
            before = rig.cluster.jobs
            rig.kill()
        store = SqliteStore(rig.state_dir.journal_path)
        recovered = store.load()
        store.close()
        assert recovered.snapshot is not None
        assert len(recovered.events) < 10
        async with running(tmp_path) as rig:
            assert rig.cluster.jobs == before
            assert await rig.submit() == "j13"

    run(story())


def test_what_is_older_than_wanted_is_forgotten(tmp_path: Path) -> None:
    async def story() -> None:
        live = replace(LIVE, snapshot_every_events=2, journal_kept_days=0.0)
        async with running(tmp_path, live=live) as rig:
            for i in range(12):
                await rig.submit(name=f"job{i}")
            before = rig.cluster.jobs
            rig.kill()
        history = read_history(rig.state_dir.journal_path)
        assert history.snapshot is not None
        assert len(history.events) < 12
        assert replay(history.events, history.snapshot).jobs == before
        async with running(tmp_path) as rig:
            assert rig.cluster.jobs == before

    run(story())


def test_shutting_down_saves_jobs_and_leaves_nothing_running(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1") as one, rig.agent("n2") as two:
            job_id = await rig.submit()
            await training(rig, job_id, "n1", "n2")
            await rig.controller.shut_down()
            assert not one.workers
            assert not two.workers
            assert one.is_released
            assert two.is_released
            assert not rig.cluster.nodes
            rig.kill()
        async with running(tmp_path) as rig, rig.agent("n3"):
            # Its user did not suspend it: it goes on by itself.
            await training(rig, job_id, "n3")

    run(story())


def test_a_controller_that_ends_at_once_first_takes_over_what_it_is_to_save(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            agent = rig.agent("n1")
            await agent.call()
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            await agent.progress(only_worker(agent), 1, 500.0)
            await rig.until(lambda _: rig.job(job_id).done_samples == 500.0)
            rig.kill()
        agent.samples = 800.0
        agent.heard.clear()
        async with running(tmp_path, live=replace(LIVE, reattach_s=60.0)) as rig:
            ending = asyncio.create_task(rig.controller.shut_down())
            await asyncio.sleep(0)
            await come_back(agent, rig)
            # What it said while no controller was there comes with it.
            saved = Saved(
                worker_id=only_worker(agent),
                job_id=job_id,
                generation=1,
                step=8,
                samples=800.0,
                path="/c",
            )
            await agent.say(saved)
            await ending
            # It was asked to save its state, not killed.
            (leaving,) = [m for m in agent.heard if isinstance(m, PrepareGroup)]
            assert leaving.members == ()
            assert any(isinstance(m, Switch) for m in agent.heard)
            assert not [m for m in agent.heard if isinstance(m, StopWorkers)]
            assert agent.is_released
            assert not rig.cluster.nodes
            assert rig.job(job_id).saved_samples == 800.0
            assert rig.job(job_id).phase is Phase.ACTIVE

    run(story())


def test_an_end_that_nobody_heard_of_is_heard_by_a_controller_that_ends(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            agent = rig.agent("n1")
            await agent.call()
            job_id = await rig.submit(samples=1000)
            await training(rig, job_id, "n1")
            rig.kill()
        await agent.hang_up()
        worker = only_worker(agent)
        ended = agent.workers.pop(worker)
        async with running(tmp_path) as rig:
            ending = asyncio.create_task(rig.controller.shut_down())
            agent.url = rig.url
            await agent.call()
            agent.workers[worker] = ended
            done = WorkDone(worker_id=worker, job_id=job_id, generation=1, step=9, samples=1000.0)
            await agent.say(done)
            await agent.end(worker, 0)
            await ending
            assert rig.job(job_id).phase is Phase.FINISHED
            assert rig.job(job_id).done_samples == 1000.0

    run(story())


def test_a_controller_that_ends_waits_no_longer_than_its_limits_for_agents(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            agent = rig.agent("n1")
            await agent.call()
            job_id = await rig.submit()
            await training(rig, job_id, "n1")
            rig.kill()
        await agent.hang_up()
        live = replace(LIVE, reattach_s=600.0, shutdown_limit_s=0.3)
        async with running(tmp_path, live=live) as rig:
            await rig.controller.shut_down()
            assert not rig.cluster.nodes
            assert rig.job(job_id).phase is Phase.ACTIVE

    run(story())


def test_an_event_that_cannot_be_applied_stops_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            rig.controller._inbox.put(None)  # type: ignore[arg-type]
            await rig.submit()
            assert rig.controller.counters["failed_events"] == 1

    run(story())
