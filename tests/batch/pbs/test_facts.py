"""What the doctor learns of a site's PBS."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.batch.commands import Commands
from malletrain.batch.pbs.facts import (
    PbsFacts,
    QueueFacts,
    SchedulerFacts,
    ServerFacts,
    gather,
    newest_s,
    parse_queues,
    parse_scheduler,
    parse_server,
)
from malletrain.clock import WallClock
from malletrain.config import PbsSettings, ScavengeSettings
from malletrain.errors import BatchError
from tests.batch.pbs.fake_pbs import FakePbs

SERVER = """{
    "timestamp":1699630815,
    "pbs_version":"2022.1.1.20220926110806",
    "pbs_server":"pbs01",
    "Server":{
        "pbs01":{
            "server_state":"Active",
            "scheduling":"True",
            "default_queue":"workq",
            "query_other_jobs":"False",
            "max_array_size":10
        }
    }
}"""
QUEUES = """{
    "timestamp":1699630815,
    "pbs_version":"2022.1.1.20220926110806",
    "pbs_server":"pbs01",
    "Queue":{
        "routeq":{
            "queue_type":"Route",
            "enabled":"True",
            "started":"True"
        },
        "cpu":{
            "queue_type":"Execution",
            "Priority":100,
            "resources_default":{
                "preempt_targets":"QUEUE=scavenge, Resource_List.ncpus=4"
            },
            "max_queued":"[o:PBS_ALL=10]",
            "max_queued":"[u:PBS_GENERIC=2]",
            "enabled":"True",
            "started":"False"
        },
        "scavenge":{
            "queue_type":"Execution",
            "Priority":-5,
            "resources_max":{
                "walltime":"02:00:00"
            },
            "kill_delay":30,
            "max_array_size":8,
            "enabled":"False",
            "started":"True"
        }
    }
}"""


def test_the_server() -> None:
    assert parse_server(SERVER) == ServerFacts(
        name="pbs01",
        version="2022.1.1.20220926110806",
        default_queue="workq",
        max_array_size=10,
        is_open=False,
    )


def test_queues() -> None:
    assert parse_queues(QUEUES) == (
        QueueFacts(name="routeq", is_routing=True, max_walltime_s=math.inf),
        QueueFacts(
            name="cpu",
            is_started=False,
            priority=100,
            max_walltime_s=math.inf,
            targets=frozenset({"scavenge"}),
        ),
        QueueFacts(
            name="scavenge",
            is_enabled=False,
            priority=-5,
            max_walltime_s=7200.0,
            kill_delay_s=30.0,
            max_array_size=8,
        ),
    )


def test_the_scheduler() -> None:
    text = (
        "Sched default\n"
        "    sched_host = pbs01\n"
        '    preempt_prio = "express_queue, normal_jobs, queue_softlimits"\n'
        '    preempt_order = "SCR 80 SC 50 S"\n'
        "    preempt_queue_prio = 200\n"
    )
    assert parse_scheduler(text) == SchedulerFacts(
        preempt_order="SCR 80 SC 50 S",
        preempt_prio="express_queue, normal_jobs, queue_softlimits",
        express_priority=200,
    )
    assert parse_scheduler("Sched default\n    preempt_order = R\n") == SchedulerFacts(
        preempt_order="R"
    )


def test_a_scheduler_that_says_nothing_of_preemption_is_not_known() -> None:
    assert parse_scheduler("Sched default\n    sched_host = pbs01\n") is None
    assert parse_scheduler("") is None


def test_the_newest_time_of_any_vnode() -> None:
    nodes = '"a":{"last_used_time":20,"last_state_change_time":5},"b":{"state":"free"}'
    assert newest_s(f'{{"nodes":{{{nodes}}}}}') == 20


@pytest.mark.parametrize("text", ["", "{}", '{"pbs_server":"pbs01"}'])
def test_an_answer_without_a_server_or_a_queue_is_none(text: str) -> None:
    with pytest.raises(BatchError, match="qstat"):
        parse_server(text)
    with pytest.raises(BatchError, match="qstat"):
        parse_queues(text)


@pytest.fixture
def pbs(tmp_path: Path) -> Iterator[FakePbs]:
    site = FakePbs(tmp_path / "pbs", ScavengeSettings())
    yield site
    site.close()


def gathered(pbs: FakePbs, folder: Path, path: str = "") -> PbsFacts:
    environment = pbs.environment
    commands = Commands(folder / "commands.jsonl", WallClock(), environment)
    return asyncio.run(
        gather(
            commands,
            WallClock(),
            ScavengeSettings(),
            PbsSettings(queue="scavenge"),
            path=path or environment["PATH"],
        )
    )


def test_facts_are_gathered_by_queries(pbs: FakePbs, tmp_path: Path) -> None:
    facts = gathered(pbs, tmp_path)
    assert facts.server is not None
    assert facts.server.default_queue == "workq"
    assert facts.queue is not None
    assert facts.queue.priority == 1
    assert facts.scheduler == SchedulerFacts(preempt_order="D", express_priority=50)
    assert not facts.missing_programs


def test_what_is_missing_is_said(pbs: FakePbs, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    missing = gathered(pbs, tmp_path, str(tmp_path / "none")).missing_programs
    assert set(missing) == pbs.programs
    pbs.stop_server()
    facts = gathered(pbs, tmp_path)
    assert "cannot connect to server" in facts.server_problem
    assert facts.server is None
