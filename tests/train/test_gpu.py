"""On GPUs, where there are any: what one can show with one, and NCCL between three."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from malletrain.core.events import JobFinished
from malletrain.testing import LocalJob
from malletrain.train.gradients import Reducer
from malletrain.train.group import Group, GroupLostError, Rendezvous
from malletrain.wire import GroupFailed, PrepareGroup, Saved, Switched, encode
from tests.train.conftest import StartJob
from tests.train.outcome import TOLERANCE, assert_exactly_once, assert_same_state, results
from tests.train.script import Config

pytestmark = pytest.mark.train


def needs(gpus: int) -> tuple[pytest.MarkDecorator, pytest.MarkDecorator]:
    is_short = torch.cuda.device_count() < gpus
    return pytest.mark.gpu, pytest.mark.skipif(is_short, reason=f"needs {gpus} NVIDIA GPU(s)")


def gradients_and_statistics(model: nn.Module) -> list[torch.Tensor]:
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [*gradients, *[buffer.clone() for buffer in model.buffers()]]


def make_model(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).to(device)


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=needs(1))])
def test_sums_through_a_connected_group_of_one_are_its_own(kind: str) -> None:
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    batch = torch.randn(8, 6, device=device)
    plain = make_model(device)
    plain(batch).sum().backward()

    group = Group()
    group._connect(Rendezvous(dist.HashStore(), 0, 1, device, timeout_s=30.0))
    # Alone it would exchange nothing.
    group.workers = 2
    model = make_model(device)
    reducer = Reducer(model, lambda _: None)
    reducer.begin_step(group, 0, 1.0, (3.0, 2.0))
    reducer.begin_part(1.0)
    model(batch).sum().backward()
    verdict = reducer.finish()
    assert verdict.is_whole
    assert verdict.loss == 1.5
    for own, expected in zip(
        gradients_and_statistics(model), gradients_and_statistics(plain), strict=True
    ):
        torch.testing.assert_close(own, expected)
    group.release()
    with pytest.raises(GroupLostError):
        group.all_reduce(batch)


@pytest.mark.parametrize("kind", [pytest.param("cuda", marks=needs(1))])
def test_one_worker_is_suspended_resumed_and_revived(
    kind: str, start: StartJob, tmp_path: Path
) -> None:
    config = Config(str(tmp_path / "one"), device=kind, model="norm", step_s=0.02)
    disturbed = dataclasses.replace(config, directory=str(tmp_path / "two"), cannot_abort=True)
    for each in (config, disturbed):
        Path(each.directory).mkdir()
    undisturbed = start(config)
    undisturbed.wait_rescaled(undisturbed.order(["a"]))
    finish(undisturbed, config)
    assert_exactly_once(undisturbed, config)

    job = start(disturbed)
    job.wait_rescaled(job.order(["a"]))
    job.wait_step(5)
    job.wait_rescaled(job.order([]))
    job.wait_rescaled(job.order(["a"]))
    resumed = job.sent(Switched)[-1]
    assert resumed.step == job.sent(Saved)[-1].step
    job.wait_step(resumed.step + 3)
    revive(job, resumed)
    finish(job, disturbed)
    assert_same_state(results(config)[0], results(disturbed)[0], TOLERANCE)
    assert_exactly_once(job, disturbed)


def revive(job: LocalJob, member: Switched) -> None:
    """Have the member's group given up; it refuses, so the worker executes its script anew."""
    pids = job.pids
    announce(job, member.worker_id, member.generation + 1)
    # The next process image is to build another.
    job.wait_for(lambda: job.sent(GroupFailed))
    generation = member.generation + 2
    announce(job, member.worker_id, generation)
    revived = job.wait_for(lambda: [m for m in job.sent(Switched) if m.generation == generation])
    assert revived[0].step >= member.step + 3
    assert job.pids == pids
    assert "starting over in a new process image" in job.log(member.worker_id)


def announce(job: LocalJob, worker_id: str, generation: int) -> None:
    alone = (worker_id,)
    message = PrepareGroup(
        job_id=job.job_id, generation=generation, members=alone, to=alone, is_immediate=True
    )
    job.send("a", encode(message))


@pytest.mark.parametrize("kind", [pytest.param("cuda", marks=needs(3))])
def test_workers_with_a_gpu_each_grow_shrink_and_lose_one(
    kind: str, start: StartJob, tmp_path: Path
) -> None:
    config = Config(str(tmp_path), device=kind, step_s=0.05, epochs=20)
    job = start(config)
    job.wait_rescaled(job.order(["a", "b"]))
    job.wait_rescaled(job.order(["a", "b", "c"]))
    job.wait_step(job.step + 3)
    generation = job.generation
    job.kill("b")
    job.wait_rescaled(generation + 1)
    job.wait_rescaled(job.order(["c"]))
    finish(job, config)
    ended = results(config)
    for other in ended[1:]:
        assert_same_state(ended[0], other, 0.0)
    assert_exactly_once(job, config)


def finish(job: LocalJob, config: Config) -> None:
    config.hurry()
    job.wait_ended()
    assert isinstance(job.events[-1], JobFinished)
