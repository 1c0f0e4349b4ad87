"""Record which samples were consumed, and prove that each was exactly once an epoch.

Every worker appends to a file of its own, one JSON object a line. A line is written before its
samples are handed out, because a worker that is killed cannot write it afterwards; whether the
step counted follows from the generations: the steps of a generation count up to the step that
the next one starts from.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any


class Recorder:
    """One worker's file."""

    def __init__(self, directory: Path, job_id: str, worker_id: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = (directory / f"{worker_id}.jsonl").open("a", buffering=1)
        self._job_id = job_id
        self._worker_id = worker_id

    def start(self, generation: int, step: int, workers: int, epoch_samples: int) -> None:
        """Record that a generation goes on from a step."""
        self._write("start", generation, step, workers=workers, epoch_samples=epoch_samples)

    def take(
        self, generation: int, step: int, *, epoch: int, rank: int, workers: int, indices: list[int]
    ) -> None:
        """Record what this worker is about to consume."""
        self._write(
            "take", generation, step, epoch=epoch, rank=rank, workers=workers, indices=indices
        )

    def end(self, generation: int, step: int) -> None:
        """Record that training is over after so many steps; the last line of the file."""
        self._write("end", generation, step)
        self._file.close()

    def _write(self, kind: str, generation: int, step: int, **more: Any) -> None:
        line = {
            "kind": kind,
            "job": self._job_id,
            "worker": self._worker_id,
            "generation": generation,
            "step": step,
            **more,
        }
        self._file.write(json.dumps(line) + "\n")


@dataclass(frozen=True, slots=True)
class Finding:
    """What the records of a job prove."""

    is_exactly_once: bool
    steps: int = 0
    samples: int = 0
    #: Epochs that were consumed whole.
    epochs: int = 0
    generations: int = 0
    #: Handed out, but void: the step was done again in a later generation.
    void_steps: int = 0
    #: The first few things that are wrong.
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class _Records:
    starts: dict[int, int] = field(default_factory=dict)
    takes: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    epoch_samples: int = 0


_MAX_PROBLEMS = 5


def check(directory: Path, job_id: str) -> Finding:
    """Check a job that has trained to its end.

    A last epoch that was not finished (work counted in samples) is checked for duplicates only.
    """
    records = _read(directory, job_id)
    problems: list[str] = []
    if not records.ends:
        return Finding(is_exactly_once=False, problems=("no worker recorded the job's end",))
    counted, void = _counted(records)
    last_step = max(records.ends.items())[1]
    problems += _missing_ranks(counted, last_step)
    epochs: dict[int, Counter[int]] = {}
    for take in counted:
        epochs.setdefault(take["epoch"], Counter()).update(take["indices"])
    whole = 0
    for epoch, consumed in sorted(epochs.items()):
        problems += _epoch_problems(epoch, consumed, records.epoch_samples, epoch < max(epochs))
        whole += len(consumed) == records.epoch_samples
    return Finding(
        is_exactly_once=not problems,
        steps=last_step,
        samples=sum(len(take["indices"]) for take in counted),
        epochs=whole,
        generations=len(records.starts),
        void_steps=len({(take["generation"], take["step"]) for take in void}),
        problems=tuple(problems[:_MAX_PROBLEMS]),
    )


def _read(directory: Path, job_id: str) -> _Records:
    records = _Records()
    for path in sorted(directory.glob("*.jsonl")):
        for line in _whole_lines(path):
            if line["job"] != job_id:
                continue
            generation, step = line["generation"], line["step"]
            if line["kind"] == "take":
                records.takes.append(line)
            elif line["kind"] == "start":
                records.starts[generation] = step
                records.epoch_samples = line["epoch_samples"]
            else:
                records.ends[generation] = max(step, records.ends.get(generation, 0))
    return records


def _whole_lines(path: Path) -> Iterable[dict[str, Any]]:
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            # The last line of a worker that was killed while it wrote: nothing was handed out.
            return


def _counted(records: _Records) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Tell the steps that count from those that later generations, or the end, made void."""
    counted: list[dict[str, Any]] = []
    void: list[dict[str, Any]] = []
    last_generation, end = max(records.ends.items())
    limits: dict[int, int] = {}
    for generation in sorted({*records.starts, last_generation}, reverse=True):
        limits[generation] = end
        end = min(end, records.starts.get(generation, end))
    for take in records.takes:
        is_counted = take["step"] < limits.get(take["generation"], 0)
        (counted if is_counted else void).append(take)
    return counted, void


def _missing_ranks(counted: list[dict[str, Any]], last_step: int) -> list[str]:
    ranks: dict[int, set[tuple[int, int, int]]] = {}
    for take in counted:
        ranks.setdefault(take["step"], set()).add(
            (take["generation"], take["workers"], take["rank"])
        )
    problems = []
    for step in range(last_step):
        present = ranks.get(step, set())
        groups = {(generation, workers) for generation, workers, _ in present}
        workers = next(iter(groups))[1] if groups else 1
        if len(groups) != 1 or len(present) != workers:
            problems.append(f"step {step} was done by {sorted(present)} (generation, of, rank)")
    return problems


def _epoch_problems(epoch: int, consumed: Counter[int], samples: int, is_over: bool) -> list[str]:
    twice = [index for index, count in consumed.items() if count > 1]
    problems = [f"epoch {epoch}: sample {index} was consumed twice" for index in twice]
    if is_over and len(consumed) != samples:
        problems.append(f"epoch {epoch}: {samples - len(consumed)} samples were never consumed")
    return problems
