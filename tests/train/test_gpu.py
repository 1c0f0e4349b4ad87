"""NCCL, where there are GPUs for it; this project's own machine has none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from malletrain.core.events import JobFinished
from tests.train.conftest import StartJob
from tests.train.outcome import assert_exactly_once, assert_same_state, results
from tests.train.script import Config

pytestmark = [
    pytest.mark.train,
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 3, reason="needs 3 NVIDIA GPUs: NCCL untested"),
]


def test_workers_with_a_gpu_each_grow_shrink_and_lose_one(start: StartJob, tmp_path: Path) -> None:
    config = Config(str(tmp_path), device="cuda", step_s=0.05, epochs=20)
    job = start(config)
    job.wait_rescaled(job.order(["a", "b"]))
    job.wait_rescaled(job.order(["a", "b", "c"]))
    job.wait_step(job.step + 3)
    generation = job.generation
    job.kill("b")
    job.wait_rescaled(generation + 1)
    job.wait_rescaled(job.order(["c"]))
    config.hurry()
    job.wait_ended()
    assert isinstance(job.events[-1], JobFinished)
    ended = results(config)
    for other in ended[1:]:
        assert_same_state(ended[0], other, 0.0)
    assert_exactly_once(job, config)
