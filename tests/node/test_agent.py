"""The agent as a process of its own, with real workers, against a controller that a test plays."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from malletrain.wire import (
    AgentHello,
    AgentLeaving,
    GroupReady,
    Malformed,
    Noted,
    PrepareGroup,
    Progress,
    ReleaseNode,
    StartWorkers,
    StopWorkers,
    StoreGet,
    StoreValue,
    Switched,
    WorkDone,
    WorkerExited,
    WorkerInfo,
    WorkerSettings,
    WorkerStart,
    WorkerWarm,
)
from tests.leftovers import is_alive, wait_until
from tests.node.fake_controller import FAKE_WORKER, TOKEN, FakeController, HungUp

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Node:
    """An agent process, started as a batch system would start it."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self.process = process

    def start(self, worker_id: str, *command: str, **changes: Any) -> StartWorkers:
        order = {
            "job_id": "j",
            "workers": (WorkerStart(worker_id=worker_id),),
            "command": command,
            "cwd": str(self.folder),
            "env": (("MODE", "test"),),
            "log_dir": str(self.folder / "logs"),
            "settings": WorkerSettings(checkpoint_dir=str(self.folder)),
        }
        return StartWorkers(**(order | changes))

    def start_fake(self, worker_id: str, mode: str) -> StartWorkers:
        return self.start(worker_id, sys.executable, str(FAKE_WORKER), mode)

    def log(self, worker_id: str) -> str:
        return (self.folder / "logs" / f"{worker_id}.log").read_text()

    async def ends(self) -> int:
        async with asyncio.timeout(20):
            return await self.process.wait()

    def below(self) -> list[int]:
        """Return the pids of all processes below the agent's."""
        tree = psutil.Process(self.process.pid).children(recursive=True)
        return [process.pid for process in tree]


@asynccontextmanager
async def agent(folder: Path, controller: FakeController, *options: str) -> AsyncIterator[Node]:
    token_file = folder / "token"
    token_file.write_text(TOKEN)
    command = ["-m", "malletrain.node.agent", "--controller", controller.url, "--node-id", "n1"]
    command += ["--token-file", str(token_file), "--run-dir", str(folder / "run"), *options]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, process_group=0)
    try:
        yield Node(folder, process)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def test_an_order_to_start_that_comes_again_starts_nothing(tmp_path: Path) -> None:
    async with FakeController() as controller, agent(tmp_path, controller) as node:
        await controller.hears(AgentHello)
        order = node.start_fake("w1", "train")
        await controller.send(order)
        await controller.hears(Switched)
        await controller.send(order)
        await controller.send(StopWorkers(job_id="j", worker_ids=("w1",), grace_s=0))
        await controller.hears(WorkerExited)
        # Nor once the worker has ended: its end and the order may have crossed.
        await controller.send(order)
        await controller.send(node.start_fake("w2", "end-well"))
        assert (await controller.hears(WorkerExited)).worker_id == "w2"
        assert not [m for m in controller.heard if isinstance(m, Switched)]
        await controller.send(ReleaseNode(reason="enough"))
        assert await node.ends() == 0


async def test_a_worker_is_started_heard_and_reaped(tmp_path: Path) -> None:
    options = ("--group", "cabinet-3", "--gpus", "2", "--node-class", "a100")
    async with FakeController() as controller, agent(tmp_path, controller, *options) as node:
        hello = await controller.hears(AgentHello)
        assert (hello.node.id, hello.node.group, hello.node.gpus) == ("n1", "cabinet-3", 2)
        assert controller.tokens == [f"Bearer {TOKEN}"]
        await controller.send(node.start_fake("w1", "end-well"))
        await controller.hears(WorkerWarm)
        exited = await controller.hears(WorkerExited)
        assert (exited.worker_id, exited.status, exited.reason) == ("w1", 0, "exited with 0")
        assert exited.log_tail == ""
        # What it said itself came before, of its progress the newest at least.
        assert [type(m) for m in controller.heard if not isinstance(m, Progress)] == [WorkDone]
        progress = [m.step for m in controller.heard if isinstance(m, Progress)]
        assert progress[-1] == 999
        await controller.send(ReleaseNode(reason="enough"))
        assert await node.ends() == 0


async def test_a_script_that_ends_at_once_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    script = "for i in range(50): print('line', i)\nraise RuntimeError('no data')"
    async with FakeController() as controller, agent(tmp_path, controller) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start("w1", sys.executable, "-c", script))
        exited = await controller.hears(WorkerExited)
        assert (exited.status, exited.had_attached) == (1, False)
        tail = exited.log_tail.splitlines()
        assert len(tail) == 20
        assert tail[-1] == "RuntimeError: no data"
        assert exited.log_path == str(tmp_path / "logs" / "w1.log")
        assert node.log("w1").splitlines()[-20:] == tail


@pytest.mark.parametrize(
    ("command", "changes", "status", "says"),
    [
        ((sys.executable, "gone.py"), {}, 127, "script gone.py is not there"),
        (("./not-executable",), {}, 126, "Permission denied"),
        (("true",), {"cwd": "/no/such/folder"}, 126, "/no/such/folder"),
        (("true",), {"log_dir": "/dev/null/logs"}, 126, "/dev/null/logs"),
    ],
)
async def test_what_cannot_be_started_is_reported(
    tmp_path: Path, command: tuple[str, ...], changes: dict[str, Any], status: int, says: str
) -> None:
    (tmp_path / "not-executable").write_text("#!/bin/sh\n")
    async with FakeController() as controller, agent(tmp_path, controller) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start("w1", *command, **changes))
        exited = await controller.hears(WorkerExited)
        assert exited.status == status
        assert says in exited.reason + exited.log_tail


async def test_messages_and_answers_reach_the_workers_they_are_for(tmp_path: Path) -> None:
    async with FakeController() as controller, agent(tmp_path, controller) as node:
        await controller.hears(AgentHello)
        for worker_id in ("w1", "w2"):
            await controller.send(node.start_fake(worker_id, "rendezvous"))
            await controller.hears(WorkerWarm)
        to = ("elsewhere", "w1", "w2")
        await controller.send(PrepareGroup(job_id="j", generation=9, members=to, to=to))
        asked = [await controller.hears(StoreGet) for _ in range(2)]
        # Both called it their request 7; on the agent's connection it is one of each.
        assert len({get.request for get in asked}) == 2
        for get in asked:
            value = get.key.encode()
            await controller.send(StoreValue(request=get.request, value=value))
        for worker_id in ("w1", "w2"):
            ready = await controller.hears(GroupReady, lambda m, w=worker_id: m.worker_id == w)
            assert ready.generation == 9
            await controller.hears(Noted, lambda m, w=worker_id: m.note == f"{w} got key-of-{w}")


async def test_a_stopped_worker_has_its_grace_period(tmp_path: Path) -> None:
    async with FakeController() as controller, agent(tmp_path, controller) as node:
        await controller.hears(AgentHello)
        for worker_id, mode in (("w1", "train"), ("w2", "ignore-sigterm")):
            await controller.send(node.start_fake(worker_id, mode))
            await controller.hears(Switched)
        stop = StopWorkers(job_id="j", worker_ids=("w1", "w2", "unknown"), grace_s=0.3)
        await controller.send(stop)
        first, second = [await controller.hears(WorkerExited) for _ in range(2)]
        assert (first.worker_id, first.reason) == ("w1", "killed by SIGTERM")
        assert (second.worker_id, second.reason) == ("w2", "killed by SIGKILL")


async def test_a_leaving_node_ends_as_soon_as_its_workers_have(tmp_path: Path) -> None:
    options = ("--grace-s", "100")
    async with FakeController() as controller, agent(tmp_path, controller, *options) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start_fake("w1", "train"))
        await controller.hears(Switched)
        node.process.terminate()
        leaving = await controller.hears(AgentLeaving)
        assert leaving.node_id == "n1"
        assert 95 < leaving.grace_s <= 100
        # Nothing is started any more on a node that is left.
        await controller.send(node.start_fake("w2", "train"))
        await controller.send(StopWorkers(job_id="j", worker_ids=("w1",), grace_s=0))
        assert (await controller.hears(WorkerExited)).worker_id == "w1"
        assert await node.ends() == 0


async def test_an_empty_node_is_left_at_once(tmp_path: Path) -> None:
    options = ("--grace-s", "100", "--leave-signal", "SIGUSR1")
    async with FakeController() as controller, agent(tmp_path, controller, *options) as node:
        await controller.hears(AgentHello)
        node.process.send_signal(signal.SIGUSR1)
        assert await node.ends() == 0
        await controller.hears(AgentLeaving)


async def test_a_released_node_ends_with_its_workers_whatever_the_grace_period(
    tmp_path: Path,
) -> None:
    options = ("--grace-s", "100")
    async with FakeController() as controller, agent(tmp_path, controller, *options) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start_fake("w1", "ignore-sigterm"))
        await controller.hears(Switched)
        node.process.terminate()
        await controller.hears(AgentLeaving)
        await controller.send(ReleaseNode(reason="its job has shrunk"))
        assert await node.ends() == 0
        assert "its job has shrunk" in (await controller.hears(WorkerExited)).reason


async def test_the_end_of_grace_is_the_end(tmp_path: Path) -> None:
    options = ("--grace-s", "0.5")
    async with FakeController() as controller, agent(tmp_path, controller, *options) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start_fake("w1", "ignore-sigterm"))
        await controller.hears(Switched)
        node.process.terminate()
        assert await node.ends() == 0
        exited = await controller.hears(WorkerExited)
        assert exited.reason == "ended with its node: the grace period is over"


async def test_nobody_waits_for_a_node_as_long_as_grace_where_the_controller_does_nothing(
    tmp_path: Path,
) -> None:
    options = ("--grace-s", "1000", "--shrink-within-s", "0.1", "--save-within-s", "0.2")
    async with FakeController() as controller, agent(tmp_path, controller, *options) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start_fake("w1", "ignore-sigterm"))
        await controller.hears(Switched)
        node.process.terminate()
        assert (await controller.hears(AgentLeaving)).save_within_s == 0.2
        assert await node.ends() == 0


async def test_the_end_of_the_walltime_is_announced_ahead(tmp_path: Path) -> None:
    options = ("--expected-end", str(time.time() + 100), "--leave-ahead-s", "95")
    async with FakeController() as controller, agent(tmp_path, controller, *options) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start_fake("w1", "train"))
        await controller.hears(Switched)
        leaving = await controller.hears(AgentLeaving)
        assert leaving.reason == "its walltime ends"
        assert 90 < leaving.grace_s <= 100
        # What leaves less time counts, whatever was announced.
        node.process.terminate()
        await controller.send(StopWorkers(job_id="j", worker_ids=("w1",), grace_s=0))
        assert await node.ends() == 0


async def test_a_signal_shortens_the_time_that_the_walltime_left(tmp_path: Path) -> None:
    options = ("--expected-end", str(time.time() + 100), "--leave-ahead-s", "95")
    options += ("--grace-s", "0.5")
    async with FakeController() as controller, agent(tmp_path, controller, *options) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start_fake("w1", "ignore-sigterm"))
        await controller.hears(Switched)
        await controller.hears(AgentLeaving)
        node.process.terminate()
        assert await node.ends() == 0
        exited = await controller.hears(WorkerExited)
        assert exited.reason == "ended with its node: the grace period is over"


async def test_a_pilots_agent_stays_in_its_group_and_leaves_its_scratch_directory_empty(
    tmp_path: Path,
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    async with FakeController() as controller:
        command = ["-m", "malletrain.node.agent", "--controller", controller.url]
        command += ["--node-id", "nd01-7_0", "--host", "nd01", "--pilot-id", "7_0"]
        command += ["--token-file", str(token_file), "--scratch-dir", str(tmp_path)]
        # As below a container's program: the group is not the agent's own.
        shell = ["/bin/sh", "-c", '"$@"; exit $?', "sh", sys.executable, *command]
        process = await asyncio.create_subprocess_exec(*shell, process_group=0)
        try:
            hello = await controller.hears(AgentHello)
            assert (hello.node.host, hello.node.pilot_id) == ("nd01", "7_0")
            assert os.getpgid(hello.pid) == process.pid
            assert len(scratch_dirs(tmp_path)) == 1
            os.kill(hello.pid, signal.SIGTERM)
            async with asyncio.timeout(20):
                assert await process.wait() == 0
            assert scratch_dirs(tmp_path) == []
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def scratch_dirs(folder: Path) -> list[Path]:
    return list(folder.glob("malletrain-*"))


async def test_nothing_outlives_a_killed_agent(tmp_path: Path) -> None:
    async with FakeController() as controller, agent(tmp_path, controller) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start_fake("w1", "leave-a-child"))
        await controller.send(node.start("w2", "sleep", "1000"))
        await controller.hears(Switched)
        escaped = int(node.log("w1"))
        wait_until(lambda: len(node.below()) == 4, lambda: f"{node.below()}")
        pids = node.below()
        assert escaped in pids
        node.process.kill()
        wait_until(lambda: not any(map(is_alive, pids)), lambda: "something is left")


async def test_a_killed_zygote_costs_its_workers_and_no_more(tmp_path: Path) -> None:
    async with FakeController() as controller, agent(tmp_path, controller) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start_fake("w1", "train"))
        await controller.hears(Switched)
        (zygote,) = psutil.Process(node.process.pid).children()
        zygote.kill()
        exited = await controller.hears(WorkerExited)
        assert (exited.worker_id, exited.reason) == ("w1", "killed by SIGKILL")
        await controller.send(node.start_fake("w2", "end-well"))
        assert (await controller.hears(WorkerExited)).status == 0


async def test_a_hung_worker_is_given_up_with_its_stacks(tmp_path: Path) -> None:
    options = ("--hang-limit-s", "0.5")
    async with FakeController() as controller, agent(tmp_path, controller, *options) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start_fake("w1", "stuck"))
        exited = await controller.hears(WorkerExited)
        assert (exited.status, exited.reason) == (-signal.SIGKILL, "hung: no step for 0.5 s")
        assert "in stuck_in_a_step" in node.log("w1")
        assert "in stuck_in_a_step" in exited.log_tail


async def test_a_worker_that_was_stopped_by_a_signal_is_given_up(tmp_path: Path) -> None:
    options = ("--heartbeat-limit-s", "0.5")
    async with FakeController() as controller, agent(tmp_path, controller, *options) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start_fake("w1", "train"))
        await controller.hears(Switched)
        (zygote,) = psutil.Process(node.process.pid).children()
        (worker,) = zygote.children()
        worker.suspend()
        exited = await controller.hears(WorkerExited)
        assert (exited.status, exited.reason) == (-9, "hung: no heartbeat for 0.5 s")
        assert "in beat" in node.log("w1")


async def test_workers_outlive_the_controller(tmp_path: Path) -> None:
    async with FakeController() as controller, agent(tmp_path, controller) as node:
        first = await controller.hears(AgentHello)
        for worker_id, mode in (("w1", "train"), ("w2", "train"), ("w3", "train")):
            await controller.send(node.start_fake(worker_id, mode))
            await controller.hears(Switched)
        await controller.close()
        zygote = psutil.Process(node.process.pid).children()[0]
        victim = min(zygote.children(), key=lambda worker: worker.create_time())
        victim.kill()
        controller.heard.clear()
        stop_w2 = type(controller.welcome)(
            protocol=controller.welcome.protocol, controller="another", stop_worker_ids=("w2",)
        )
        controller.welcome = stop_w2
        await controller.open()
        hello = await controller.hears(AgentHello)
        assert hello.incarnation == first.incarnation
        told = {info.worker_id: info for info in hello.workers}
        expected = WorkerInfo(worker_id="w3", job_id="j", node_id="n1", generation=3, is_warm=True)
        assert told["w3"] == expected
        exits = {(await controller.hears(WorkerExited)).worker_id for _ in range(2)}
        assert exits == {"w1", "w2"}


async def test_an_agent_whose_controller_stays_away_ends_with_its_workers(tmp_path: Path) -> None:
    options = ("--controller-away-limit-s", "0.5")
    async with FakeController() as controller, agent(tmp_path, controller, *options) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start_fake("w1", "train"))
        await controller.hears(Switched)
        await controller.close()
        assert await node.ends() == 0


async def test_nonsense_closes_the_connection_and_no_more(tmp_path: Path) -> None:
    async with FakeController() as controller, agent(tmp_path, controller) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start_fake("w1", "train"))
        await controller.hears(Switched)
        await controller.send_raw(b"\xc1 no message")
        await controller.hears(HungUp)
        hello = await controller.hears(AgentHello)
        assert [info.worker_id for info in hello.workers] == ["w1"]
        await controller.send(node.start_fake("w2", "nonsense"))
        exited = await controller.hears(WorkerExited)
        assert (exited.worker_id, exited.status) == ("w2", 70)
        assert (await controller.hears(Malformed)).connections == 1
        assert is_alive(node.process.pid)


async def test_a_stranger_cannot_speak_for_a_worker(tmp_path: Path) -> None:
    script = (
        "import os, sys, runpy\n"
        "os.environ['MALLETRAIN_SECRET'] = 'guessed'\n"
        f"sys.argv = ['', 'nonsense']\nrunpy.run_path({str(FAKE_WORKER)!r})\n"
    )
    async with FakeController() as controller, agent(tmp_path, controller) as node:
        await controller.hears(AgentHello)
        await controller.send(node.start("w1", sys.executable, "-c", script))
        exited = await controller.hears(WorkerExited)
        assert not exited.had_attached
        assert (await controller.hears(Malformed)).connections == 1
        assert not [m for m in controller.heard if isinstance(m, WorkerWarm)]
        assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


async def test_a_socket_path_that_is_too_long_is_a_clear_error(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    async with FakeController() as controller, agent(folder, controller) as node:
        assert await node.ends() == 1
