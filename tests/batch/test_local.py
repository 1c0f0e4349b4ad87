"""The local batch system, its host process and the nodes below it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from malletrain.batch.base import BatchSystem
from malletrain.batch.local import LocalBatch
from malletrain.batch.local_host import read_host_file
from malletrain.config import LocalSettings
from malletrain.errors import BatchError, TraceError
from malletrain.frames import frame
from malletrain.live.lenders import local_batch
from malletrain.wire import AgentHello, AgentLeaving, WorkerExited
from tests.batch.contract import BatchContract, busy_node, start_worker
from tests.leftovers import is_alive, wait_until
from tests.node.fake_controller import TOKEN, BatchAbused, BatchEnded, FakeController, HungUp

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class TestLocal(BatchContract):
    def make(self, folder: Path, **options: Any) -> LocalBatch:
        return LocalBatch(
            folder, **({"max_nodes": 3, "grace_s": self.grace_s, "preload": ()} | options)
        )

    def kill(self, folder: Path, node_id: str) -> None:
        for agent in host_process(folder).children():
            if node_id in agent.cmdline():
                os.killpg(agent.pid, signal.SIGKILL)

    async def test_all_nodes_die_with_the_host(self, tmp_path: Path) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            await busy_node(batch, controller, tmp_path, "ignore-sigterm")
            host = host_process(tmp_path)
            below = [process.pid for process in host.children(recursive=True)]
            assert len(below) == 4  # zygote, agent, the agent's fork of the zygote, worker
            host.kill()
            # Nobody had to ask.
            ended = await controller.hears(BatchEnded)
            assert "malletrain down, then malletrain up" in ended.reason
            wait_until(lambda: not any(map(is_alive, below)), lambda: "something is left")
            with pytest.raises(BatchError, match=r"has ended.*host\.log"):
                await batch.add_nodes(1)

    async def test_an_end_that_was_asked_for_is_no_news(self, tmp_path: Path) -> None:
        async with FakeController() as controller:
            async with self.started(tmp_path, controller) as batch:
                await batch.detach()
            async with self.started(tmp_path, controller):
                pass
            assert not [m for m in controller.heard if isinstance(m, BatchEnded)]

    async def test_a_killed_host_is_followed_by_another(self, tmp_path: Path) -> None:
        async with FakeController() as controller:
            async with self.started(tmp_path, controller) as batch:
                await batch.add_nodes(1)
                await controller.hears(AgentHello)
                killed = read_host_file(tmp_path / "local")
                host_process(tmp_path).kill()
                await controller.hears(HungUp)
            async with self.started(tmp_path, controller) as batch:
                await batch.add_nodes(1)
                await controller.hears(AgentHello)
                assert killed
                assert not is_there(killed.run_dir)

    async def test_the_configured_watch_is_kept_over_workers(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text(TOKEN)
        async with FakeController() as controller:
            batch = local_batch(tmp_path, LocalSettings(hang_limit_s=0.5), preload=())
            await batch.start(controller.url, tmp_path / "token", controller)
            await start_worker(batch, controller, tmp_path, "stuck")
            exited = await controller.hears(WorkerExited)
            assert exited.reason == "hung: no step for 0.5 s"
            await batch.stop()

    async def test_a_host_without_a_controller_ends(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text(TOKEN)
        async with FakeController() as controller:
            batch = self.make(tmp_path, away_limit_s=0.3)
            await batch.start(controller.url, tmp_path / "token", controller)
            await busy_node(batch, controller, tmp_path, "train")
            host = host_process(tmp_path)
            below = [process.pid for process in host.children(recursive=True)]
            await batch.detach()
            wait_until(lambda: not is_alive(host.pid), lambda: "the host lives")
            assert not any(map(is_alive, below))

    async def test_sigterm_ends_the_host_and_its_nodes(self, tmp_path: Path) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            await busy_node(batch, controller, tmp_path, "ignore-sigterm")
            host = host_process(tmp_path)
            below = [process.pid for process in host.children(recursive=True)]
            host.terminate()
            wait_until(lambda: not is_alive(host.pid), lambda: "the host lives")
            assert not any(map(is_alive, below))

    async def test_workers_outlive_the_machines_zygote(self, tmp_path: Path) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            await busy_node(batch, controller, tmp_path, "train")
            host = host_process(tmp_path)
            zygote = next(p for p in host.children() if "malletrain.node.zygote" in p.cmdline())
            (fork,) = zygote.children()
            zygote.kill()
            another = await busy_node(batch, controller, tmp_path, "train")
            await batch.remove_node(another, is_abrupt=True)
            await controller.hears(HungUp)
            await busy_node(batch, controller, tmp_path, "train")
            assert is_alive(fork.pid)

    async def test_nonsense_closes_the_connection_and_no_more(self, tmp_path: Path) -> None:
        async with FakeController() as controller, self.started(tmp_path, controller) as batch:
            host = read_host_file(tmp_path / "local")
            assert host
            for nonsense in (frame(b"\xc1"), frame(b"") * 2, b"\xff" * 8, b"\0"):
                reader, writer = await asyncio.open_unix_connection(host.socket_path)
                writer.write(nonsense)
                writer.write_eof()
                assert await reader.read() == b""
                writer.close()
                assert (await controller.hears(BatchAbused)).times == 1
            await batch.detach()
            async with self.started(tmp_path, controller) as again:
                # The next controller is told, too.
                assert (await controller.hears(BatchAbused)).times == 4
                await again.add_nodes(1)
                await controller.hears(AgentHello)

    async def test_a_trace_gives_and_takes_nodes(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace.csv"
        trace.write_text(
            "node,idle_from_s,idle_to_s,end\na1,0,250,kill\nb1,0,300,planned\nb1,330,10000,kill\n"
        )
        options = {"trace_path": trace, "speed": 100.0}
        (tmp_path / "token").write_text(TOKEN)
        async with FakeController() as controller:
            batch = self.make(tmp_path, **options)
            assert batch.max_nodes == 2
            await batch.start(controller.url, tmp_path / "token", controller)
            hellos = [await controller.hears(AgentHello) for _ in range(2)]
            assert {(h.node.id, h.node.group) for h in hellos} == {("a1", "a"), ("b1", "b")}
            assert (await controller.hears(HungUp)).node_id == "a1"
            assert (await controller.hears(AgentLeaving)).node_id == "b1"
            assert (await controller.hears(HungUp)).node_id == "b1"
            again = await controller.hears(AgentHello)
            assert again.node.id == "b1"
            assert again.incarnation not in {h.incarnation for h in hellos}
            await batch.stop()

    def test_a_wrong_trace_is_refused_before_anything_starts(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace.csv"
        trace.write_text("node,idle_from_s,idle_to_s\na1,9,1\n")
        with pytest.raises(TraceError, match=r"trace\.csv, line 2"):
            self.make(tmp_path, trace_path=trace)

    async def test_a_host_that_cannot_start_says_where_it_says_why(self, tmp_path: Path) -> None:
        (tmp_path / "local" / "host.lock").mkdir(parents=True)
        batch = self.make(tmp_path)
        with pytest.raises(BatchError, match=r"host\.log"):
            await batch.start("http://127.0.0.1:1", tmp_path / "token", FakeController())
        assert "host: [Errno 21] Is a directory" in (tmp_path / "local" / "host.log").read_text()

    def test_it_is_a_batch_system(self, tmp_path: Path) -> None:
        batch: BatchSystem = self.make(tmp_path)
        assert batch.max_nodes == 3


def is_there(folder: str) -> bool:
    return Path(folder).exists()


def host_process(folder: Path) -> psutil.Process:
    host = read_host_file(folder / "local")
    assert host is not None
    return psutil.Process(host.pid)
