"""PBS's queue over programs that play PBS: what every batch system must do, and its own ways."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from malletrain.batch.commands import Commands
from malletrain.batch.pilot_script import PilotFiles
from malletrain.batch.queue import Queue
from malletrain.clock import WallClock
from malletrain.config import ScavengeSettings
from malletrain.errors import BatchError
from malletrain.live.state_dir import Endpoint
from malletrain.testing.queues import QueueContract
from malletrain.wire import AgentHello, AgentLeaving
from tests.batch.pbs.fake_pbs import FakePbs
from tests.node.fake_controller import TOKEN, FakeController, HungUp


@pytest.fixture
def pbs(tmp_path: Path) -> Iterator[FakePbs]:
    site = FakePbs(tmp_path / "pbs", ScavengeSettings(grace_s=5.0, scratch_dir=str(tmp_path)))
    yield site
    site.close()


class TestQueue(QueueContract):
    @pytest.fixture
    def site(self, pbs: FakePbs) -> FakePbs:
        return pbs


def queue_of(pbs: FakePbs, folder: Path) -> Queue:
    commands = Commands(folder / "commands.jsonl", WallClock(), pbs.environment)
    return pbs.queue(commands, files_in(folder))


def files_in(folder: Path) -> PilotFiles:
    return PilotFiles(folder / "endpoint.json", folder / "token", folder / "pilots")


@pytest.mark.parametrize("count", [1, 2])
def test_a_pilot_calls_the_controller_and_leaves_when_it_is_preempted(
    pbs: FakePbs, tmp_path: Path, count: int
) -> None:
    queue = queue_of(pbs, tmp_path)
    files = files_in(tmp_path)
    files.token.write_text(TOKEN)

    async def story() -> None:
        async with FakeController() as controller:
            endpoint = Endpoint(url=controller.url, pid=1)
            files.endpoint.write_bytes(msgspec.json.encode(endpoint))
            began_at_s = (await queue.survey()).at_s
            ids = await queue.submit(count, 900.0)
            assert set((await queue.survey()).waiting) == set(ids)
            pbs.free()
            running = (await queue.survey()).running
            for _ in ids:
                node = (await controller.hears(AgentHello)).node
                assert running[node.host] == node.pilot_id
                assert node.id == f"{node.host}-{node.pilot_id}"
                assert node.group == f"rack-of-{node.host}"
                assert began_at_s + 900 <= node.expected_end_at_s <= began_at_s + 930
            await asyncio.to_thread(pbs.preempt, node.host)
            leaving = await controller.hears(AgentLeaving)
            assert leaving.node_id == node.id
            # Somebody waits: not the whole grace period of 5 s.
            assert 0.0 < leaving.grace_s < 4.0
            assert leaving.shrink_within_s is not None
            await controller.hears(HungUp, lambda hung: hung.node_id == node.id)
            assert set((await queue.survey()).running) == set(running) - {node.host}

    asyncio.run(story())


def test_reservations_are_asked_for_only_where_there_are_any(pbs: FakePbs, tmp_path: Path) -> None:
    queue = queue_of(pbs, tmp_path)
    asyncio.run(queue.survey())
    assert "pbs_rstat" not in (tmp_path / "commands.jsonl").read_text()
    with pbs.changing() as state:
        state["nodes"]["nid0002"]["resv"] = "R5.pbs01"
        state["reservations"].append(
            "Resv ID: R5.pbs01\nreserve_start = Wed Nov 12 12:00:00 2099\n"
            "resv_nodes = (nid0002:ncpus=64)\n"
        )
    survey = asyncio.run(queue.survey())
    assert set(survey.wanted_at_s) == {"nid0002"}
    assert survey.at_s < survey.idle["nid0002"] < survey.idle["nid0001"]


def test_a_refusal_says_what_to_do(pbs: FakePbs, tmp_path: Path) -> None:
    queue = queue_of(pbs, tmp_path)
    pbs.stop_server()
    with pytest.raises(BatchError, match="the server is away") as error:
        asyncio.run(queue.submit(2, 600.0))
    assert error.value.is_transient
