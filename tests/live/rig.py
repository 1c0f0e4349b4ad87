"""A controller with a real port and a real journal, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace

from malletrain.allocate.exact import ExactAllocator
from malletrain.batch.base import BatchListener
from malletrain.clock import WallClock
from malletrain.config import Config, LiveSettings
from malletrain.core.apply import check
from malletrain.core.model import Cluster, Job, Node
from malletrain.core.problem import Allocator
from malletrain.errors import BatchError
from malletrain.live.api import Api, HttpServer, bind
from malletrain.live.controller import Controller
from malletrain.live.orders import Orders
from malletrain.live.state_dir import StateDir
from malletrain.live.store import EventStore, SqliteStore
from tests.live.fake_agents import FakeAgent

TOKEN = "let-me-in"
LIVE = LiveSettings(
    settle_s=0.001,
    progress_decide_s=0.05,
    progress_journal_s=0.05,
    agent_away_limit_s=0.3,
    agent_closed_limit_s=0.3,
    reattach_s=0.5,
    journal_retry_s=0.02,
    shutdown_limit_s=5.0,
    stop_grace_s=0.1,
)


@dataclass
class FakeBatch:
    max_nodes: int | None = 8
    asked: list[Any] = field(default_factory=list)

    async def start(
        self, controller_url: str, token_file: Path, listener: BatchListener
    ) -> None: ...

    async def add_nodes(self, count: int) -> None:
        if self.max_nodes is not None and count > self.max_nodes:
            raise BatchError(f"{count} nodes are more than there are", is_transient=False)
        self.asked.append(count)

    async def remove_node(self, node_id: str, *, is_abrupt: bool) -> None:
        self.asked.append((node_id, is_abrupt))

    async def detach(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass
class Rig:
    state_dir: StateDir
    controller: Controller
    url: str
    http: httpx.AsyncClient
    batch: FakeBatch
    shut_down_asked: asyncio.Event
    kill: Callable[[], None]

    @property
    def cluster(self) -> Cluster:
        return self.controller.cluster

    def agent(self, node_id: str, **node: Any) -> FakeAgent:
        return FakeAgent(Node(id=node_id, opened_at_s=1.0, **node), self.url, TOKEN)

    async def submit(self, **fields: Any) -> str:
        body = {"name": "job", "command": ["true"], "cwd": "/", "min_nodes": 1, "max_nodes": 8}
        answer = await self.http.post("/v1/jobs", json=body | fields)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["job_id"])

    def job(self, job_id: str) -> Job:
        return self.cluster.jobs[job_id]

    async def until(self, is_so: Callable[[Cluster], bool]) -> None:
        while not is_so(self.cluster):  # noqa: ASYNC110 - the product needs no such event
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(
    path: Path,
    *,
    live: LiveSettings = LIVE,
    store: EventStore | None = None,
    config: Config | None = None,
    allocator: Allocator | None = None,
    heed: Callable[[Cluster], None] = lambda _: None,
) -> AsyncIterator[Rig]:
    """Run a controller; `Rig.kill` drops it without a word, as SIGKILL would."""
    state_dir = StateDir(path)
    own_store = store or SqliteStore(state_dir.journal_path)
    controller = Controller(
        replace(config or Config(), live=live),
        store=own_store,
        allocator=allocator or ExactAllocator(),
        clock=WallClock(),
        paths=state_dir,
        heed=heed,
    )
    await controller.recover()
    batch = FakeBatch()
    asked = asyncio.Event()
    api = Api(controller, Orders(controller, batch), state_dir, TOKEN, asked.set)
    server = HttpServer(api, ping_every_s=live.ping_every_s)
    listener = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    working = asyncio.create_task(controller.run())
    serving = asyncio.create_task(server.run_on(listener))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
            yield Rig(state_dir, controller, url, http, batch, asked, working.cancel)
            if not working.done():
                check(controller.cluster)
    finally:
        working.cancel()
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await working
        await serving
        listener.close()
        own_store.close()
