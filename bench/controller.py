"""How long the controller takes over a burst: 2,000 agents connected, 1,000 leave at once.

Agents are real WebSockets, all in this process; the controller is a process of its own, with a
real journal. Timed is what counts for the nodes' owner: from the first agent's word that it must
leave until every job that had members among the thousand has been told its new group, by the
agents' clock. The reference is the same with one leaving agent, in the same run.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import httpx

from bench.harness import Result
from malletrain.config import LiveSettings
from malletrain.core.model import Node
from malletrain.live.main import collect_seldom
from malletrain.wire import Message, PrepareGroup
from tests.live.fake_agents import FakeAgent
from tests.live.rig import TOKEN, running

AGENTS = 2_000
LEAVING = 1_000
JOBS = 20
JOB_NODES = 64
REPORT_EVERY_S = 1.0
TARGET_S = 1.0
_GROUP_NODES = 40
_CONNECTING = 50
_LIMIT_S = 60.0


class Fleet:
    """The agents, and what their jobs were last told."""

    def __init__(self, url: str) -> None:
        self.agents = {
            f"n{i:04}": FakeAgent(
                Node(id=f"n{i:04}", opened_at_s=0.0, group=f"g{i // _GROUP_NODES}"), url, TOKEN
            )
            for i in range(AGENTS)
        }
        #: Job id -> (when told, nodes) of its newest group.
        self.groups: dict[str, tuple[float, frozenset[str]]] = {}
        for agent in self.agents.values():
            agent.ignores = self._note

    async def connect(self) -> float:
        """Return how long it took until all were welcome."""
        gate = asyncio.Semaphore(_CONNECTING)
        start_s = time.perf_counter()

        async def call(agent: FakeAgent) -> None:
            async with gate:
                await agent.call()

        await asyncio.gather(*map(call, self.agents.values()))
        return time.perf_counter() - start_s

    async def burst(self, node_ids: list[str]) -> float:
        """Have these leave; return the seconds until the last job concerned knew its new group."""
        leaving = frozenset(node_ids)
        concerned = [job for job, (_, nodes) in self.groups.items() if nodes & leaving]
        start_s = time.perf_counter()
        for node_id in node_ids:
            await self.agents[node_id].leave(grace_s=30.0)
        async with asyncio.timeout(_LIMIT_S):
            while any(self.groups[job][1] & leaving for job in concerned):  # noqa: ASYNC110 - short
                await asyncio.sleep(0.002)
        return max(self.groups[job][0] for job in concerned) - start_s

    async def report(self) -> None:
        """Have every job's first worker report progress, for ever."""
        samples = 0.0
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            samples += 1000.0
            for agent in self.agents.values():
                for worker_id, worker in list(agent.workers.items()):
                    nodes = self.groups.get(worker.job_id, (0.0, frozenset()))[1]
                    if agent.node.id == min(nodes, default="") and not agent.is_released:
                        await agent.progress(worker_id, len(nodes), samples)

    async def hang_up(self) -> None:
        await asyncio.gather(*(agent.hang_up() for agent in self.agents.values()))

    def _note(self, message: Message) -> bool:
        if isinstance(message, PrepareGroup):
            nodes = frozenset(member.split(".")[2] for member in message.members)
            if self.groups.get(message.job_id, (0.0, None))[1] != nodes:
                self.groups[message.job_id] = (time.perf_counter(), nodes)
        return False


@contextmanager
def _controller() -> Iterator[tuple[str, int]]:
    """Run a controller in a process of its own; yield its URL and process id."""
    with tempfile.TemporaryDirectory() as state_dir:
        command = [sys.executable, "-m", "bench.controller", state_dir]
        with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield process.stdout.readline().strip(), process.pid
            finally:
                process.stdin.close()
                process.wait(timeout=30)


async def _serve(state_dir: Path) -> None:
    async with running(state_dir, live=LiveSettings()) as rig:
        rig.batch.max_nodes = None
        collect_seldom()
        print(rig.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def _drive(url: str, pid: int) -> dict[str, float]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=60, trust_env=False
    ) as http:
        fleet = Fleet(url)
        measured = {"empty_mib": _memory_mib(pid), "connect_s": await fleet.connect()}
        for i in range(JOBS):
            job = {"name": f"job{i}", "command": ["true"], "cwd": "/", "max_nodes": JOB_NODES}
            (await http.post("/v1/jobs", json=job)).raise_for_status()
        await _until_all_train(http)
        reporting = asyncio.create_task(fleet.report())
        await asyncio.sleep(3 * REPORT_EVERY_S)
        members = sorted(set().union(*(nodes for _, nodes in fleet.groups.values())))
        measured["one_s"] = await fleet.burst([members[-1]])
        await _until_all_train(http)
        measured["full_mib"] = _memory_mib(pid)
        draw = random.Random(7)  # noqa: S311 - which nodes leave is no secret
        staying = sorted(set(fleet.agents) - {members[-1]})
        measured["burst_s"] = await fleet.burst(draw.sample(staying, LEAVING))
        await _until_all_train(http)
        state = (await http.get("/v1/state")).json()
        left = sum(node["state"] != "leaving" for node in state["nodes"])
        measured["lost"] = AGENTS - LEAVING - 1 - left
        measured["troubles"] = sum(state["counters"].values())
        reporting.cancel()
        await fleet.hang_up()
    return measured


async def _until_all_train(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(_LIMIT_S):
        while True:
            jobs = (await http.get("/v1/jobs")).json()
            if all(job["activity"] == "training" for job in jobs):
                return
            await asyncio.sleep(0.1)


def _memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def run() -> Iterator[Result]:
    _raise_file_limit()
    with _controller() as (url, pid):
        measured = asyncio.run(_drive(url, pid))
    burst_s, lost = measured["burst_s"], measured["lost"]
    is_well = lost == 0 and measured["troubles"] == 0
    yield Result(
        f"{LEAVING:,} of {AGENTS:,} leave: orders out",
        burst_s,
        "s",
        f"<= {TARGET_S:g} s, no other agent lost",
        burst_s <= TARGET_S and is_well,
        reference="one leaves",
        reference_value=measured["one_s"],
    )
    yield Result("others lost", lost, "agents", "0", is_well)
    yield Result(f"{AGENTS:,} connect", measured["connect_s"], "s")
    yield Result(
        f"memory with {AGENTS:,}",
        measured["full_mib"],
        "MiB",
        reference="with none",
        reference_value=measured["empty_mib"],
    )


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    _raise_file_limit()
    asyncio.run(_serve(Path(sys.argv[1])))
