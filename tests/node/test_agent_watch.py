"""When a worker counts as hung, under a clock of the test's."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from malletrain.node.launcher import OnExit
from malletrain.node.workers import WatchSettings, Workers
from malletrain.node.zygote import Spawn
from malletrain.wire import (
    PROTOCOL,
    STACK_SIGNAL,
    Heartbeat,
    Message,
    StartWorkers,
    WorkDone,
    WorkerHello,
    WorkerSettings,
    WorkerStart,
)
from tests.live.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class FakeLauncher:
    def __init__(self) -> None:
        self.spawned: list[Spawn] = []
        #: To the one worker there is.
        self.signals: list[int] = []

    async def start(self, on_exit: OnExit) -> None:
        pass

    async def spawn(self, spawn: Spawn) -> None:
        self.spawned.append(spawn)

    def signal(self, worker_id: str, signum: int) -> None:
        assert worker_id == "w"
        self.signals.append(signum)

    async def close(self) -> None:
        pass


class World:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.launcher = FakeLauncher()
        self.said: list[Message] = []
        self.workers = Workers(
            "n1",
            folder / "run",
            WatchSettings(heartbeat_limit_s=10.0, hang_limit_s=120.0),
            base_env={"PATH": "/bin", "MODE": "node"},
            clock=self.clock,
            launcher=self.launcher,
            new_secret=lambda: "secret",
            say=self.said.append,
            forget=lambda _request: None,
        )

    def attach(self) -> None:
        self.workers.welcome(WorkerHello(protocol=PROTOCOL, worker_id="w", secret="", pid=1))

    async def beat(self, seconds: int, *, steps: bool = False, is_waiting: bool = False) -> None:
        """Hear a heartbeat a second."""
        for second in range(seconds):
            step = second if steps else 7
            beat = Heartbeat(worker_id="w", step=step, is_waiting=is_waiting)
            self.workers.worker_said("w", beat)
            await self.clock.advance(1.0)


@asynccontextmanager
async def one_worker(folder: Path) -> AsyncIterator[World]:
    world = World(folder)

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks:
            await world.workers.start(tasks)

    serving = asyncio.create_task(serve())
    order = StartWorkers(
        job_id="j",
        workers=(WorkerStart(worker_id="w", gpu=1),),
        command=("train",),
        cwd="/",
        env=(("MODE", "job"),),
        log_dir=str(folder),
        settings=WorkerSettings(checkpoint_dir=""),
    )
    try:
        await world.clock.advance(0.25)
        await world.workers.start_workers(order)
        yield world
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await world.workers.close()


GIVEN_UP = [STACK_SIGNAL, signal.SIGCONT, signal.SIGKILL]


async def test_a_worker_finds_its_agent_its_gpu_and_what_its_job_asked_for(tmp_path: Path) -> None:
    async with one_worker(tmp_path) as world:
        (spawn,) = world.launcher.spawned
        assert spawn.env == {
            "PATH": "/bin",
            "MODE": "job",
            "CUDA_VISIBLE_DEVICES": "1",
            "MALLETRAIN_AGENT_SOCKET": str(tmp_path / "run" / "workers.sock"),
            "MALLETRAIN_JOB_ID": "j",
            "MALLETRAIN_WORKER_ID": "w",
            "MALLETRAIN_SECRET": "secret",
        }
        assert [info.slot for info in world.workers.infos] == [1]


async def test_silence_is_a_hang(tmp_path: Path) -> None:
    async with one_worker(tmp_path) as world:
        world.attach()
        await world.beat(20, steps=True)
        await world.clock.advance(8)
        assert world.launcher.signals == []
        await world.clock.advance(4)
        assert world.launcher.signals == GIVEN_UP


async def test_no_step_for_long_is_a_hang(tmp_path: Path) -> None:
    async with one_worker(tmp_path) as world:
        world.attach()
        await world.beat(115)
        assert world.launcher.signals == []
        await world.beat(10)
        assert world.launcher.signals == GIVEN_UP


async def test_waiting_for_others_is_none(tmp_path: Path) -> None:
    async with one_worker(tmp_path) as world:
        world.attach()
        await world.beat(300, is_waiting=True)
        await world.beat(100)
        assert world.launcher.signals == []


async def test_a_worker_that_has_not_attached_is_the_controllers_business(tmp_path: Path) -> None:
    async with one_worker(tmp_path) as world:
        await world.clock.advance(500, step_s=1.0)
        assert world.launcher.signals == []


async def test_what_comes_after_the_work_may_take_any_time(tmp_path: Path) -> None:
    async with one_worker(tmp_path) as world:
        world.attach()
        done = WorkDone(worker_id="w", job_id="j", generation=1, step=9, samples=9.0)
        world.workers.worker_said("w", done)
        await world.clock.advance(500, step_s=1.0)
        assert world.launcher.signals == []
        assert world.said == [done]


async def test_an_agent_that_was_stopped_itself_blames_nobody(tmp_path: Path) -> None:
    async with one_worker(tmp_path) as world:
        world.attach()
        await world.beat(5, steps=True)
        await world.clock.jump(3600)
        assert world.launcher.signals == []
        await world.beat(30, steps=True)
        assert world.launcher.signals == []
