from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from malletrain.testing import LocalJob, WarmParent
from malletrain.wire import WorkerHello
from tests.leftovers import is_alive, no_process_left, wait_until
from tests.train.script import Config

StartJob = Callable[..., LocalJob]


@pytest.fixture(scope="session")
def parent() -> Iterator[WarmParent]:
    with pytest.MonkeyPatch.context() as patch:
        # Two cores for up to four workers.
        patch.setenv("OMP_NUM_THREADS", "1")
        with no_process_left(), WarmParent() as warm:
            yield warm


@pytest.fixture
def start(parent: WarmParent) -> Iterator[StartJob]:
    """Start a job of the script; all its processes must be gone at the end."""
    jobs: list[LocalJob] = []

    def make(config: Config, **settings: Any) -> LocalJob:
        settings = {"report_every_s": 0.02, "checkpoint_every_s": 3600.0, **settings}
        directory = Path(config.directory)
        jobs.append(LocalJob(config.command, directory, parent, settings=settings))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()
    pids = [hello.pid for job in jobs for hello in job.sent(WorkerHello)]
    wait_until(lambda: not any(map(is_alive, pids)), lambda: f"workers are left: {pids}")
