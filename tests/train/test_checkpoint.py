from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from malletrain.train.checkpoint import (
    BackgroundSaver,
    CheckpointError,
    Checkpoints,
    Mark,
    _write_manifest,
)
from malletrain.train.data import Position
from malletrain.train.state import TrainingState


@pytest.fixture
def state() -> TrainingState:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return TrainingState(model, optimizer, None, {})


def values(state: TrainingState) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in state.describe()[1]]


def fresh_state() -> TrainingState:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    return TrainingState(model, torch.optim.AdamW(model.parameters(), lr=0.1), None, {})


def save_steps(checkpoints: Checkpoints, state: TrainingState, *marks: Mark) -> None:
    for mark in marks:
        state.position = Position(step=mark.step)
        checkpoints.save(state.snapshot(), mark)


def load_step(checkpoints: Checkpoints, notes: list[str]) -> int | None:
    snapshot = checkpoints.load(notes.append)
    if snapshot is None:
        return None
    state = fresh_state()
    state.restore(snapshot)
    return state.position.step


def no_space(_tensors: dict[str, Any], path: Path) -> None:
    path.mkdir()
    (path / "half").write_bytes(b"...")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_saved_is_what_is_loaded(state: TrainingState, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, kept=2)
    save_steps(checkpoints, state, Mark(1, 7))
    other = fresh_state()
    snapshot = checkpoints.load(pytest.fail)
    assert snapshot is not None
    other.restore(snapshot)
    torch.testing.assert_close(values(other), values(state), rtol=0, atol=0)
    assert other.position == Position(step=7)
    # The optimizer's own numbers, too.
    header, other_header = (pickle.loads(s.describe()[0]) for s in (state, other))
    assert other_header["groups"] == header["groups"]


def test_the_newest_generation_wins_even_with_fewer_steps(
    state: TrainingState, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path, kept=5)
    save_steps(checkpoints, state, Mark(3, 40), Mark(2, 90))
    assert load_step(checkpoints, []) == 40


def test_only_the_last_few_are_kept(state: TrainingState, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, kept=2)
    save_steps(checkpoints, state, *[Mark(1, step) for step in range(5)])
    assert checkpoints.marks() == [Mark(1, 4), Mark(1, 3)]
    # A worker that was left behind takes its own away, never a newer one.
    save_steps(Checkpoints(tmp_path, kept=2), state, Mark(0, 99))
    assert checkpoints.marks() == [Mark(1, 4), Mark(1, 3)]


def test_a_full_disk_leaves_the_last_good_one(state: TrainingState, tmp_path: Path) -> None:
    save_steps(Checkpoints(tmp_path, kept=1), state, Mark(1, 5))
    full = Checkpoints(tmp_path, kept=1, writer=no_space)
    with pytest.raises(CheckpointError, match="no space left on the device"):
        full.save(state.snapshot(), Mark(1, 6))
    assert [entry.name for entry in tmp_path.iterdir()] == [Mark(1, 5).name]
    assert load_step(full, []) == 5


def test_a_failure_in_the_background_is_told(state: TrainingState, tmp_path: Path) -> None:
    told: list[str] = []
    full = Checkpoints(tmp_path, kept=1, writer=no_space)
    saver = BackgroundSaver(full, lambda *_: pytest.fail("nothing was saved"), told.append)
    saver.begin(state.snapshot(), Mark(1, 6), 60)
    saver.finish()
    assert len(told) == 1
    assert not saver.is_busy


def test_the_real_writer_on_a_full_disk_leaves_nothing_but_the_last_good_one(
    tmp_path: Path,
) -> None:
    """In a process of its own, whose files may not grow."""
    code = f"""
import resource, threading
from pathlib import Path
from tests.train.test_checkpoint import fresh_state
from malletrain.train.checkpoint import BackgroundSaver, Checkpoints, Mark

state = fresh_state()
checkpoints = Checkpoints(Path({str(tmp_path)!r}), kept=2)
checkpoints.save(state.snapshot(), Mark(1, 5))
# Python ignores SIGXFSZ: writing fails.
resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
threading.excepthook = lambda raised: print("raised", raised.exc_type)
saver = BackgroundSaver(checkpoints, lambda *_: print("saved"), print)
for step in (6, 7):
    saver.begin(state.snapshot(), Mark(1, step), 60)
    saver.finish()
"""
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    lines = child.stdout.splitlines()
    assert [line.split(" in ")[0] for line in lines] == [
        f"cannot write a checkpoint of step {step}" for step in (6, 7)
    ]
    assert all(line.endswith(f"the last good one is {Mark(1, 5).name}") for line in lines)
    assert [entry.name for entry in tmp_path.iterdir()] == [Mark(1, 5).name]


def test_a_failure_clears_what_earlier_workers_left(state: TrainingState, tmp_path: Path) -> None:
    left = tmp_path / f".{Mark(1, 4).name}.99"
    left.mkdir()
    full = Checkpoints(tmp_path, kept=1, writer=no_space)
    with pytest.raises(CheckpointError, match="there is none before it"):
        full.save(state.snapshot(), Mark(1, 6))
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_torch_cannot_read_is_passed_over(
    state: TrainingState, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path, kept=3)
    save_steps(checkpoints, state, Mark(1, 5), Mark(1, 6))
    newest = tmp_path / Mark(1, 6).name
    next(newest.glob("*.distcp")).write_bytes(b"other")
    # Its checksums are right: it was damaged before it was written.
    (newest / "malletrain.json").unlink()
    _write_manifest(newest)
    notes: list[str] = []
    assert load_step(checkpoints, notes) == 5
    assert len(notes) == 1


def test_a_saver_that_gets_no_thread_tells_and_is_free(
    state: TrainingState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    told: list[str] = []
    saver = BackgroundSaver(Checkpoints(tmp_path, kept=1), lambda *_: None, told.append)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    saver.begin(state.snapshot(), Mark(1, 6), 60)
    assert not saver.is_busy
    assert "can't start new thread" in told[0]


@pytest.mark.parametrize("damage", ["cut", "flip", "no-manifest", "garbage-manifest"])
def test_a_damaged_newest_one_is_passed_over(
    damage: str, state: TrainingState, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path, kept=3)
    save_steps(checkpoints, state, Mark(1, 5), Mark(1, 6))
    newest = tmp_path / Mark(1, 6).name
    data = next(newest.glob("*.distcp"))
    if damage == "cut":
        data.write_bytes(data.read_bytes()[:-10])
    elif damage == "flip":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    elif damage == "no-manifest":
        (newest / "malletrain.json").unlink()
    else:
        (newest / "malletrain.json").write_text("{")
    notes: list[str] = []
    assert load_step(checkpoints, notes) == 5
    assert len(notes) == 1
    assert Mark(1, 6).name in notes[0]


def test_the_same_mark_twice_is_one_checkpoint(state: TrainingState, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, kept=3)
    save_steps(checkpoints, state, Mark(1, 5), Mark(1, 5))
    assert [entry.name for entry in tmp_path.iterdir()] == [Mark(1, 5).name]


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none", kept=3).load(pytest.fail) is None
