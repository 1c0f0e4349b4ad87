"""Real workers through rescales and deaths: the arithmetic must not notice."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from malletrain.core.events import JobFinished, RescaleDone, WorkersLost
from malletrain.testing import LocalJob
from malletrain.wire import Progress, Saved, Switched, WorkDone, WorkerHello
from tests.train.conftest import StartJob
from tests.train.outcome import (
    TOLERANCE,
    assert_as_undisturbed,
    assert_exactly_once,
    assert_same_state,
    results,
)
from tests.train.script import Config, train

pytestmark = pytest.mark.train
NODES = ("a", "b", "c", "d")


def finish(job: LocalJob, config: Config) -> None:
    config.hurry()
    job.wait_ended()
    assert isinstance(job.events[-1], JobFinished)


def disturb(job: LocalJob, draw: random.Random, nodes: list[str]) -> list[str]:
    """Grow, shrink or kill; returns the nodes left."""
    if len(nodes) > 1 and draw.random() < 0.4:
        victim = draw.choice(nodes)
        generation = job.generation
        job.kill(victim)
        job.wait_rescaled(generation + 1)
        return [node for node in nodes if node != victim]
    target = draw.sample(NODES, draw.randint(1, len(NODES)))
    job.wait_rescaled(job.order(target))
    return target


@pytest.mark.parametrize(
    ("seed", "variant"),
    [
        (1, {"batch": 16, "epochs": 8}),
        (2, {"batch": 7, "epochs": 4, "optimizer": "adam"}),
        (3, {"batch": 3, "epochs": 2, "micro_batch": 1}),
    ],
)
def test_random_rescales_and_deaths_end_as_an_undisturbed_run(
    seed: int, variant: dict[str, Any], start: StartJob, tmp_path: Path
) -> None:
    config = Config(str(tmp_path), schedule=True, step_s=0.2, **variant)
    job = start(config)
    draw = random.Random(seed)
    nodes = ["a"]
    job.wait_rescaled(job.order(nodes))
    for _ in range(6):
        nodes = disturb(job, draw, nodes)
        job.wait_step(job.step + draw.randint(0, 3))
    finish(job, config)
    assert_as_undisturbed(config)
    assert_exactly_once(job, config)
    assert sum(isinstance(event, RescaleDone) for event in job.events) >= 7


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_orders_and_deaths_at_any_moment_end_as_an_undisturbed_run(
    seed: int, start: StartJob, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    config = Config(str(tmp_path), step_s=0.05, epochs=3, batch=draw.choice([2, 5, 16]))
    job = start(config, checkpoint_every_s=0.3)
    job.wait_rescaled(job.order(["a"]))
    for _ in range(8):
        # Warming, connecting, switching or recovering: whatever it is at.
        if draw.random() < 0.4 and job.nodes_in_use:
            job.kill(draw.choice(job.nodes_in_use))
        else:
            job.order(draw.sample(NODES, draw.randint(1, len(NODES))))
        threading.Event().wait(draw.choice([0, 0.05, 0.2, 0.4]))
    config.hurry()
    while job.wait_for(lambda: job.has_finished or job.is_idle) and not job.has_finished:
        # All were dead at once: the controller would start it anew.
        job.order(["a"])
    job.wait_ended()
    assert_as_undisturbed(config)
    assert_exactly_once(job, config)


def test_two_of_four_die_at_once(start: StartJob, tmp_path: Path) -> None:
    config = Config(str(tmp_path), step_s=0.02)
    job = start(config)
    generation = job.order(NODES)
    job.wait_rescaled(generation)
    job.wait_step(5)
    job.kill("b")
    job.kill("a")
    done = job.wait_rescaled(generation + 1)
    finish(job, config)
    lost = [event for event in job.events if isinstance(event, WorkersLost)]
    assert {node for event in lost for node in event.node_ids} == {"a", "b"}
    # Nothing but the step in flight was lost.
    assert done.samples >= 5 * config.batch
    assert_as_undisturbed(config)
    assert_exactly_once(job, config)


def test_workers_that_are_cut_off_do_not_hold_the_others(start: StartJob, tmp_path: Path) -> None:
    config = Config(str(tmp_path), step_s=0.02)
    job = start(config)
    job.wait_rescaled(job.order(NODES[:3]))
    job.wait_step(3)
    # It neither answers nor dies: no connection is reset, the others wait in their collective.
    job.kill("b", signal.SIGSTOP)
    generation = job.lose("b")
    job.wait_rescaled(generation, timeout_s=10)
    # Back from the dead, it must not disturb the job.
    step = job.step
    job.kill_stray("b", signal.SIGCONT)
    job.wait_step(step + 3)
    job.kill_stray("b", signal.SIGKILL)
    finish(job, config)
    assert_as_undisturbed(config)
    assert_exactly_once(job, config)


def test_a_member_that_dies_in_the_last_step_holds_nobody(start: StartJob, tmp_path: Path) -> None:
    config = Config(str(tmp_path), epochs=2, last_fault="step")
    job = start(config)
    job.wait_rescaled(job.order(NODES[:3]))
    job.wait_ended()
    assert isinstance(job.events[-1], JobFinished)
    # b has it from a, that waited for it; c is dead.
    assert sorted(end.status for end in job.exits) == [-signal.SIGKILL, 0, 0]
    assert len(results(config)) == 2
    assert_as_undisturbed(config)
    assert_exactly_once(job, config)


def test_one_that_hears_too_late_that_all_have_the_last_step_ends_well(
    start: StartJob, tmp_path: Path
) -> None:
    config = Config(str(tmp_path), epochs=2, last_fault="end")
    job = start(config)
    job.wait_rescaled(job.order(NODES[:3]))
    job.wait_ended()
    assert isinstance(job.events[-1], JobFinished)
    assert [end.status for end in job.exits] == [0, 0, 0]
    # Still exactly one is the first.
    assert sorted(result["rank"] for result in results(config)) == [0, 1, 2]
    assert_as_undisturbed(config)
    assert_exactly_once(job, config)


def test_a_member_that_dies_after_the_loop_brings_nobody_back(
    start: StartJob, tmp_path: Path
) -> None:
    config = Config(str(tmp_path), epochs=2, last_fault="after")
    job = start(config)
    job.order(NODES[:3])
    job.wait_ended()
    assert job.has_finished
    assert sorted(end.status for end in job.exits) == [-signal.SIGKILL, 0, 0]
    assert len(results(config)) == 2
    assert_as_undisturbed(config)
    assert_exactly_once(job, config)
    assert len(job.sent(WorkerHello)) == 3


def test_a_group_that_does_not_go_costs_a_new_process_image(
    start: StartJob, tmp_path: Path
) -> None:
    config = Config(str(tmp_path), step_s=0.02, cannot_abort=True)
    job = start(config)
    generation = job.order(NODES[:3])
    job.wait_rescaled(generation)
    job.wait_step(5)
    pids = set(job.pids)
    job.kill("c")
    job.wait_rescaled(generation + 1)
    assert set(job.pids) < pids
    finish(job, config)
    assert_as_undisturbed(config)
    assert_exactly_once(job, config)


def test_a_suspended_job_resumes_from_its_checkpoint(start: StartJob, tmp_path: Path) -> None:
    config = Config(str(tmp_path), optimizer="adam", schedule=True, step_s=0.02)
    job = start(config)
    job.wait_rescaled(job.order(["a", "b"]))
    job.wait_step(20)
    job.wait_rescaled(job.order([]))
    assert not job.pids
    assert [end.status for end in job.exits] == [0, 0]
    (saved,) = job.sent(Saved)
    job.wait_rescaled(job.order(["c", "a", "d"]))
    resumed = job.sent(Switched)[-3:]
    assert {message.step for message in resumed} == {saved.step}
    finish(job, config)
    assert_as_undisturbed(config)
    assert_exactly_once(job, config)


def test_a_job_that_lost_all_nodes_resumes_from_its_last_checkpoint(
    start: StartJob, tmp_path: Path
) -> None:
    config = Config(str(tmp_path), step_s=0.02)
    job = start(config, checkpoint_every_s=0.1)
    job.wait_rescaled(job.order(["a", "b"]))
    job.wait_for(lambda: job.sent(Saved)[1:])
    step = job.step
    job.stop_recovering()
    job.kill("a")
    job.kill("b")
    job.wait_ended()
    saved = job.sent(Saved)[-1]
    assert saved.step <= step + 2
    job.wait_rescaled(job.order(["a", "b"]))
    assert job.sent(Switched)[-1].step == saved.step
    finish(job, config)
    assert_as_undisturbed(config)
    assert_exactly_once(job, config)


@pytest.mark.parametrize(
    "variant",
    [
        {"model": "branches"},
        {"micro_batch": 3, "batch": 19, "optimizer": "adam", "epochs": 5},
        # More workers than samples: some have no part in a step.
        {"batch": 2, "epochs": 1},
        {"children": 2, "epochs": 5},
    ],
    ids=["parts-unused", "micro-batches", "tiny-batch", "fetched-ahead"],
)
def test_what_a_worker_takes_of_a_batch_does_not_matter(
    variant: dict[str, Any], start: StartJob, tmp_path: Path
) -> None:
    config = Config(str(tmp_path), step_s=0.02, schedule=True, **variant)
    job = start(config)
    job.wait_rescaled(job.order(NODES[:3]))
    job.wait_step(4)
    job.wait_rescaled(job.order(NODES[1:]))
    job.wait_step(job.step + 3)
    finish(job, config)
    assert_as_undisturbed(config)
    assert_exactly_once(job, config)
    if config.model == "branches":
        # Weight decay would have shrunk it, had it ever had a gradient.
        end = results(config)[0]
        assert end["model"]["never.weight"].equal(end["initial"]["never.weight"])


def test_batch_norm_ends_the_same_on_all_workers_and_after_a_death(
    start: StartJob, tmp_path: Path
) -> None:
    config = Config(str(tmp_path), model="norm", step_s=0.02)
    job = start(config)
    job.wait_rescaled(job.order(NODES[:3]))
    job.wait_step(5)
    job.kill("c")
    finish(job, config)
    first, second = results(config)
    assert_same_state(first, second, 0.0)
    assert not first["model"]["1.running_mean"].equal(first["initial"]["1.running_mean"])


def test_scaled_batches_with_a_scaled_rate_are_larger_batches(
    start: StartJob, tmp_path: Path
) -> None:
    config = Config(str(tmp_path), batch=8, batch_scaling="scaled", lr_scaling="linear", epochs=4)
    job = start(config)
    job.order(["a", "b"])
    finish(job, config)
    same = Config(str(tmp_path), batch=16, learning_rate=2 * config.learning_rate, epochs=4)
    end = results(config)[0]
    alone = train(same)
    assert end["learning_rate"] == config.learning_rate
    assert end["step"] == alone["step"]
    torch.testing.assert_close(end["model"], alone["model"], rtol=0, atol=TOLERANCE)


def test_exactly_one_is_the_first_after_the_loop(start: StartJob, tmp_path: Path) -> None:
    config = Config(str(tmp_path), epochs=2)
    job = start(config)
    job.order(NODES[:3])
    job.wait_ended()
    assert sorted(result["rank"] for result in results(config)) == [0, 1, 2]


def test_a_loop_that_is_left_early_ends_well(start: StartJob, tmp_path: Path) -> None:
    config = Config(str(tmp_path), leave_after=10)
    job = start(config)
    job.order(["a", "b"])
    job.wait_ended()
    assert isinstance(job.events[-1], JobFinished)
    assert job.events[-1].samples == 10 * config.batch
    assert [result["step"] for result in results(config)] == [10, 10]


def test_work_counted_in_samples_ends_at_that_step(start: StartJob, tmp_path: Path) -> None:
    config = Config(str(tmp_path))
    job = start(config, work_samples=500.0)
    job.order(["a", "b"])
    job.wait_ended()
    (done,) = job.sent(WorkDone)
    assert 500 <= done.samples < 500 + config.batch


def test_progress_is_reported_by_one_worker_with_the_loss_of_all(
    start: StartJob, tmp_path: Path
) -> None:
    config = Config(str(tmp_path), step_s=0.01)
    job = start(config)
    job.wait_rescaled(job.order(["a", "b"]))
    finish(job, config)
    told = job.sent(Progress)
    assert {message.worker_id for message in told} == {"job.1.a.0"}
    measured = [message for message in told if message.steps > 1]
    assert measured
    assert all(m.samples_per_s > 0 and m.variance >= 0 and m.workers == 2 for m in measured)
    losses = [message.loss for message in told if message.loss is not None]
    assert losses[-1] < losses[0]
