"""What the controller relies on, whatever the batch system: every adapter's tests inherit it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from malletrain.batch.base import BatchSystem
from malletrain.errors import BatchError
from malletrain.wire import (
    AgentHello,
    AgentLeaving,
    StartWorkers,
    StopWorkers,
    Switched,
    WorkerSettings,
    WorkerStart,
)
from tests.leftovers import no_process_left
from tests.node.fake_controller import FAKE_WORKER, TOKEN, FakeController, HungUp, NodeGone


class BatchContract:
    """Subclasses make adapters, whose batch system has room for two nodes at least."""

    #: From notice to SIGKILL.
    grace_s = 1.0

    def make(self, folder: Path) -> BatchSystem:
        """Return an adapter; a second one of the same folder is a restarted controller's."""
        raise NotImplementedError

    def kill(self, folder: Path, node_id: str) -> None:
        """Have the node die at once, as hardware does: the batch system is not asked."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def nothing_is_left(self) -> Iterator[None]:
        with no_process_left():
            yield

    @asynccontextmanager
    async def started(self, folder: Path, controller: FakeController) -> AsyncIterator[BatchSystem]:
        """Give an adapter that serves this controller; all its nodes are gone at the end."""
        (folder / "token").write_text(TOKEN)
        batch = self.make(folder)
        await batch.start(controller.url, folder / "token", controller)
        try:
            yield batch
        finally:
            await batch.stop()

    async def test_added_nodes_call_the_controller(self, tmp_path: Path) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            await batch.add_nodes(2)
            one, two = [await controller.hears(AgentHello) for _ in range(2)]
            assert one.node.id != two.node.id
            assert set(controller.tokens) == {f"Bearer {TOKEN}"}

    async def test_more_nodes_than_there_are_is_an_error(self, tmp_path: Path) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            if batch.max_nodes is None:
                pytest.skip("this batch system does not say how many nodes it has")
            with pytest.raises(BatchError, match=str(batch.max_nodes)):
                await batch.add_nodes(batch.max_nodes + 1)
            await batch.add_nodes(1)
            await controller.hears(AgentHello)

    async def test_a_node_is_taken_back_with_notice(self, tmp_path: Path) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            node_id = await busy_node(batch, controller, tmp_path, "ignore-sigterm")
            await batch.remove_node(node_id, is_abrupt=False)
            leaving = await controller.hears(AgentLeaving)
            assert leaving.node_id == node_id
            assert 0 < leaving.grace_s <= self.grace_s
            await controller.hears(HungUp)

    async def test_a_node_that_is_left_early_is_given_back_early(self, tmp_path: Path) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            node_id = await busy_node(batch, controller, tmp_path, "train")
            await batch.remove_node(node_id, is_abrupt=False)
            await controller.hears(AgentLeaving)
            stop = StopWorkers(job_id="j", worker_ids=(f"j.{node_id}",), grace_s=0)
            await controller.send(stop, node_id)
            await controller.hears(HungUp)
            await batch.add_nodes(1)
            await controller.hears(AgentHello)

    async def test_a_node_is_taken_back_without_notice(self, tmp_path: Path) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            node_id = await busy_node(batch, controller, tmp_path, "leave-a-child")
            await batch.remove_node(node_id, is_abrupt=True)
            await controller.hears(HungUp)
            assert not [m for m in controller.heard if isinstance(m, AgentLeaving)]

    async def test_the_death_of_a_node_is_told_though_nobody_asked(self, tmp_path: Path) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            node_id = await busy_node(batch, controller, tmp_path, "ignore-sigterm")
            staying = await busy_node(batch, controller, tmp_path, "train")
            self.kill(tmp_path, node_id)
            assert (await controller.hears(NodeGone)).node_id == node_id
            # It has been heard amid requests and answers.
            await batch.remove_node(staying, is_abrupt=True)
            assert (await controller.hears(NodeGone)).node_id == staying

    async def test_a_node_that_left_is_told_of_too(self, tmp_path: Path) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            await batch.add_nodes(1)
            hello = await controller.hears(AgentHello)
            await batch.remove_node(hello.node.id, is_abrupt=False)
            assert (await controller.hears(NodeGone)).node_id == hello.node.id

    async def test_what_died_without_a_controller_the_next_one_is_told(
        self, tmp_path: Path
    ) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            node_id = await busy_node(batch, controller, tmp_path, "train")
            await batch.detach()
            self.kill(tmp_path, node_id)
            await controller.hears(HungUp)
            async with self.started(tmp_path, controller):
                assert (await controller.hears(NodeGone)).node_id == node_id

    async def test_a_node_that_is_not_there_cannot_be_removed(self, tmp_path: Path) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            with pytest.raises(BatchError, match="no node nowhere"):
                await batch.remove_node("nowhere", is_abrupt=False)

    async def test_nodes_and_workers_outlive_the_controller(self, tmp_path: Path) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            node_id = await busy_node(batch, controller, tmp_path, "train")
            await batch.detach()
            await controller.close()
            # The next one even has another port.
            async with FakeController() as successor, self.started(tmp_path, successor) as again:
                hello = await successor.hears(AgentHello)
                assert [info.worker_id for info in hello.workers] == [f"j.{node_id}"]
                await again.remove_node(node_id, is_abrupt=True)
                await successor.hears(HungUp)

    async def test_stopping_takes_all_nodes_back(self, tmp_path: Path) -> None:
        async with FakeController() as controller:
            async with self.started(tmp_path, controller) as batch:
                await busy_node(batch, controller, tmp_path, "ignore-sigterm")
            await controller.hears(HungUp)


async def busy_node(batch: BatchSystem, controller: FakeController, folder: Path, mode: str) -> str:
    """Add a node and have a worker train on it; return its id."""
    node_id = await start_worker(batch, controller, folder, mode)
    await controller.hears(Switched)
    return node_id


async def start_worker(
    batch: BatchSystem, controller: FakeController, folder: Path, mode: str
) -> str:
    """Add a node and start a worker on it; return the node's id."""
    await batch.add_nodes(1)
    hello = await controller.hears(AgentHello)
    node_id: str = hello.node.id
    order = StartWorkers(
        job_id="j",
        workers=(WorkerStart(worker_id=f"j.{node_id}"),),
        command=(sys.executable, str(FAKE_WORKER), mode),
        cwd=str(folder),
        env=(),
        log_dir=str(folder / "logs"),
        settings=WorkerSettings(checkpoint_dir=str(folder)),
    )
    await controller.send(order, node_id)
    return node_id
