"""What an agent leaves behind on a node: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.node import scratch as module
from malletrain.node.scratch import orphaned_shared_memory, scratch


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "shm"
    place.mkdir()
    monkeypatch.setattr(module, "_SHARED_MEMORY", place)
    monkeypatch.delenv("TMPDIR", raising=False)
    return place


def ended_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def test_the_directory_is_private_and_gone_with_all_that_is_in_it(
    tmp_path: Path, shared_memory: Path
) -> None:
    assert shared_memory.exists()
    with pytest.raises(KeyError), scratch(tmp_path) as place:  # noqa: PT012 - both must be seen
        assert place.stat().st_mode & 0o077 == 0
        assert os.environ["TMPDIR"] == str(place)
        (place / "deep" / "er").mkdir(parents=True)
        raise KeyError
    assert not place.exists()


def test_shared_memory_of_the_dead_is_removed_and_nothing_else(
    tmp_path: Path, shared_memory: Path
) -> None:
    dead = shared_memory / f"torch_{ended_pid()}_12_0"
    living = shared_memory / f"torch_{os.getpid()}_12_0"
    foreign = shared_memory / "somebody-elses"
    for path in (dead, living, foreign):
        path.touch()
    assert orphaned_shared_memory() == [dead]
    with scratch(tmp_path):
        assert dead.exists()
    assert sorted(shared_memory.iterdir()) == sorted([living, foreign])


def test_what_killed_agents_left_is_removed_by_the_next(
    tmp_path: Path, shared_memory: Path
) -> None:
    assert shared_memory.exists()
    dead = tmp_path / f"malletrain-{ended_pid()}-abc"
    living = tmp_path / f"malletrain-{os.getpid()}-abc"
    foreign = tmp_path / "malletrain-xyz"
    for path in (dead, living, foreign):
        (path / "deep").mkdir(parents=True)
    with scratch(tmp_path):
        assert not dead.exists()
    assert living.exists()
    assert foreign.exists()
