"""Stories over a controller with real ports, a real journal and pretended workers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from malletrain.live.store import read_events
from tests.live.rig import Rig, running


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await story

    asyncio.run(bounded())


def is_training(rig: Rig, job_id: str, nodes: int) -> bool:
    job = rig.job(job_id)
    return len(job.node_ids) == nodes and job.rescaling is None and not job.is_broken


def test_a_job_grows_with_its_nodes_and_shrinks_with_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1"):
            job_id = await rig.submit()
            await rig.until(lambda _: is_training(rig, job_id, 1))
            async with rig.agent("n2") as second:
                await rig.until(lambda _: is_training(rig, job_id, 2))
                await second.leave()
                await second.until(lambda agent: agent.is_released)
                await rig.until(lambda cluster: set(cluster.nodes) == {"n1"})
                await rig.until(lambda _: is_training(rig, job_id, 1))
        generations = [
            e.generation
            for e in read_events(rig.state_dir.journal_path)
            if type(e).__name__ == "RescaleDone"
        ]
        assert generations == sorted(set(generations))

    run(story())
