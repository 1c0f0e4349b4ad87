from __future__ import annotations

from pathlib import Path

from malletrain.train.audit import Finding, Recorder, check


def record(directory: Path, *steps: tuple[int, int, list[int]], end: int = 2) -> Finding:
    """Two generations of one worker, four samples an epoch: (generation, step, indices)."""
    recorder = Recorder(directory, "job", "w")
    recorder.start(1, 0, 1, 4)
    for generation, step, indices in steps:
        if generation == 2 and step == 1:
            recorder.start(2, 1, 1, 4)
        recorder.take(generation, step, epoch=0, rank=0, workers=1, indices=indices)
    recorder.end(max(generation for generation, _, _ in steps), end)
    return check(directory, "job")


def test_a_step_done_again_in_a_later_generation_counts_once(tmp_path: Path) -> None:
    finding = record(tmp_path, (1, 0, [0, 3]), (1, 1, [1, 2]), (2, 1, [1, 2]))
    assert finding == Finding(
        is_exactly_once=True, steps=2, samples=4, epochs=1, generations=2, void_steps=1
    )


def test_a_sample_consumed_twice_is_found(tmp_path: Path) -> None:
    finding = record(tmp_path, (1, 0, [0, 3]), (1, 1, [0, 2]))
    assert not finding.is_exactly_once
    assert "epoch 0: sample 0 was consumed twice" in finding.problems


def test_a_step_that_nobody_did_is_found(tmp_path: Path) -> None:
    finding = record(tmp_path, (1, 0, [0, 3]), end=2)
    assert not finding.is_exactly_once
    assert finding.problems[0].startswith("step 1 was done by []")


def test_a_missing_rank_is_found(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "job", "w")
    recorder.start(1, 0, 2, 4)
    recorder.take(1, 0, epoch=0, rank=0, workers=2, indices=[0, 1])
    recorder.end(1, 1)
    assert not check(tmp_path, "job").is_exactly_once


def test_a_line_cut_short_by_death_was_not_handed_out(tmp_path: Path) -> None:
    finding = record(tmp_path, (1, 0, [0, 3]), (1, 1, [1, 2]))
    with next(tmp_path.glob("*.jsonl")).open("a") as file:
        file.write('{"kind": "take", "job": "jo')
    assert check(tmp_path, "job") == finding


def test_other_jobs_and_unfinished_ones_prove_nothing(tmp_path: Path) -> None:
    record(tmp_path, (1, 0, [0, 3]), (1, 1, [1, 2]))
    finding = check(tmp_path, "other")
    assert not finding.is_exactly_once
    assert finding.problems == ("no worker recorded the job's end",)
