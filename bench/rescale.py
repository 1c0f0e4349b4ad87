"""How long survivors make no progress when their job grows, shrinks or loses a worker.

The reference is `torchrun --nnodes=1:4` with `DistributedDataParallel` on the same model, tuned
as far as it goes, in the same run. It is measured kindly: until any of its workers begins a step
again, however many steps it has lost, and with a checkpoint that never leaves memory.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.elastic_launch import ElasticLaunch
from bench.harness import Result
from bench.step_times import StepLog, read, stall_s
from malletrain.testing import LocalJob, WarmParent

REPETITIONS = 5
#: Each takes the reference some 40 s.
REFERENCE_REPETITIONS = 3
TWO, FOUR = ("a", "b"), ("a", "b", "c", "d")
#: Steady steps before and after each event.
STEPS = 4
LIMITS_MS = {"grow 2->4": 150.0, "shrink 4->2": 25.0, "kill 1 of 4": 500.0}
MIN_RATIO = 30.0


def run() -> Iterator[Result]:
    os.environ["OMP_NUM_THREADS"] = "1"
    ours = _ours()
    reference = _reference()
    for name, limit_ms in LIMITS_MS.items():
        value_ms, reference_ms = _median_ms(ours[name]), _median_ms(reference[name])
        spread = f"{min(ours[name]) * 1e3:.0f} to {max(ours[name]) * 1e3:.0f}"
        yield Result(
            name=f"stall of survivors, {name} ({spread} ms)",
            value=value_ms,
            unit="ms",
            target=f"<= {limit_ms:g} ms, {MIN_RATIO:g}x less",
            holds=value_ms <= limit_ms and reference_ms >= MIN_RATIO * value_ms,
            reference="torchrun --nnodes=1:4, tuned",
            reference_value=reference_ms,
        )


def _median_ms(values_s: list[float]) -> float:
    return statistics.median(values_s) * 1e3


# -- ours -----------------------------------------------------------------------------------------


def _ours() -> dict[str, list[float]]:
    stalls: dict[str, list[float]] = {name: [] for name in LIMITS_MS}
    with tempfile.TemporaryDirectory() as directory, WarmParent() as parent:
        command = [sys.executable, __file__]
        paths = {"PYTHONPATH": str(Path(__file__).parent.parent)}
        with LocalJob(
            command, Path(directory), parent, settings={"report_every_s": 0.1}, environment=paths
        ) as job:
            job.wait_rescaled(job.order(TWO))
            for _ in range(REPETITIONS):
                _steady(job)
                stalls["grow 2->4"].append(_rescale(job, FOUR))
                stalls["shrink 4->2"].append(_rescale(job, TWO))
                _rescale(job, FOUR)
                stalls["kill 1 of 4"].append(_kill(job, "d"))
                _rescale(job, TWO)
    return stalls


def _steady(job: LocalJob) -> None:
    job.wait_step(job.step + STEPS)


def _rescale(job: LocalJob, nodes: tuple[str, ...]) -> float:
    before = set(job.pids)
    ordered_at_s = time.monotonic()
    job.wait_rescaled(job.order(nodes))
    _steady(job)
    return _worst_stall(job, before & set(job.pids), ordered_at_s)


def _kill(job: LocalJob, node: str) -> float:
    before = set(job.pids)
    generation = job.generation
    killed_at_s = time.monotonic()
    job.kill(node)
    job.wait_rescaled(generation + 1)
    _steady(job)
    return _worst_stall(job, before & set(job.pids), killed_at_s)


def _worst_stall(job: LocalJob, survivors: set[int], since_s: float) -> float:
    marks = read(job.directory)
    return max(stall_s(marks[pid], since_s) for pid in survivors)


# -- the reference --------------------------------------------------------------------------------


def _reference() -> dict[str, list[float]]:
    stalls: dict[str, list[float]] = {name: [] for name in LIMITS_MS}
    with tempfile.TemporaryDirectory() as directory, ElasticLaunch(Path(directory)) as launch:
        launch.add(2)
        launch.wait_steps(STEPS)
        for _ in range(REFERENCE_REPETITIONS):
            launch.add(2)
            stalls["grow 2->4"].append(launch.stall_s(workers=4, steps=STEPS))
            launch.kill_one()
            stalls["kill 1 of 4"].append(launch.stall_s(workers=3, steps=STEPS))
            launch.add(1)
            launch.stall_s(workers=4, steps=STEPS)
            launch.end_politely(2)
            stalls["shrink 4->2"].append(launch.stall_s(workers=2, steps=STEPS))
    return stalls


# -- the worker -----------------------------------------------------------------------------------


def train() -> None:
    import torch  # noqa: PLC0415 - only workers need it
    from torch.nn import functional  # noqa: PLC0415 - only workers need it

    import malletrain.train as mt  # noqa: PLC0415 - only workers need it, it imports torch
    from bench.wide_model import (  # noqa: PLC0415 - only workers need it, it imports torch
        GLOBAL_BATCH,
        make_data,
        make_model,
        make_optimizer,
    )

    torch.set_num_threads(1)
    model = make_model()
    optimizer = make_optimizer(model)
    job = mt.attach(model, optimizer, global_batch=GLOBAL_BATCH)
    log = StepLog(Path.cwd())
    for x, y in job.batches(make_data()):
        log.begin(job.step)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        log.end(job.step)


if __name__ == "__main__":
    train()
