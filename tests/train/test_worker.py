"""A worker and its agent: what they tell each other, and what becomes of one without the other."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from malletrain.core.events import JobFinished
from malletrain.testing import LocalJob, WarmParent
from malletrain.train.link import AGENT_LOST_STATUS
from malletrain.wire import STACK_SIGNAL, Heartbeat, Noted, Saved, Switched
from tests.leftovers import wait_until
from tests.train.conftest import StartJob
from tests.train.script import Config

pytestmark = pytest.mark.train


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(str(tmp_path), step_s=0.02, epochs=100)


@pytest.fixture
def job(config: Config, start: StartJob) -> LocalJob:
    """One worker that trains."""
    job = start(config)
    job.stop_recovering()
    job.wait_rescaled(job.order(["a"]))
    return job


def test_nonsense_from_the_agent_ends_the_worker_with_a_clear_line(job: LocalJob) -> None:
    job.send("a", b"\x81\xa4type\xa7Nothing")
    job.wait_ended()
    assert job.exits[0].status == AGENT_LOST_STATUS
    assert "the agent sent nonsense" in job.exits[0].log_tail


def test_a_worker_does_not_outlive_its_agent(job: LocalJob) -> None:
    job.hang_up("a")
    job.wait_ended()
    assert job.exits[0].status == AGENT_LOST_STATUS
    assert "agent is gone" in job.exits[0].log_tail


def test_it_is_heard_from_every_second_and_says_how_far_it_is(job: LocalJob) -> None:
    count = len(job.sent(Heartbeat))
    beats = job.wait_for(lambda: job.sent(Heartbeat)[count + 1 :], timeout_s=10)
    assert beats[-1].step > 0


def test_its_stacks_are_written_when_asked_for(job: LocalJob) -> None:
    job.kill("a", STACK_SIGNAL)
    wait_until(lambda: "in train" in job.log("job.1.a.0"), lambda: job.log("job.1.a.0"))
    assert job.pids


def test_asked_to_end_it_ends_at_a_step_boundary(job: LocalJob) -> None:
    job.kill("a", signal.SIGTERM)
    job.wait_ended(timeout_s=20)
    assert job.exits[0].status == 128 + signal.SIGTERM


def test_a_job_that_shrinks_in_time_ignores_the_signal(job: LocalJob, config: Config) -> None:
    job.wait_rescaled(job.order(["a", "b"]))
    # The batch system tells every process of the node.
    job.kill("b", signal.SIGTERM)
    job.wait_rescaled(job.order(["a"]))
    assert [end.status for end in job.exits] == [0]
    config.hurry()
    job.wait_ended()
    assert isinstance(job.events[-1], JobFinished)


def test_a_checkpoint_that_cannot_be_written_is_noted_and_training_goes_on(
    config: Config, start: StartJob, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    job = start(config, checkpoint_dir=str(in_the_way / "below"), checkpoint_every_s=0.05)
    job.wait_rescaled(job.order(["a"]))
    notes = job.wait_for(lambda: job.sent(Noted))
    assert "cannot write a checkpoint" in notes[0].note
    config.hurry()
    job.wait_ended()
    assert isinstance(job.events[-1], JobFinished)
    assert not job.sent(Saved)


def test_a_job_is_suspended_well_on_a_full_disk(start: StartJob, tmp_path: Path) -> None:
    # The state has some 770 kB.
    config = Config(str(tmp_path), model="wide", step_s=0.02, file_limit_bytes=256 * 1024)
    job = start(config, checkpoint_every_s=0.1)
    job.wait_rescaled(job.order(["a"]))
    job.wait_for(lambda: job.sent(Saved))
    config.fill_up()
    first_failure = job.wait_for(lambda: job.sent(Noted))[0]
    # Training goes on, and later ones are tried.
    job.wait_for(lambda: [note for note in job.sent(Noted) if note != first_failure])
    job.wait_rescaled(job.order([]))
    assert [end.status for end in job.exits] == [0]
    saved = job.sent(Saved)[-1]
    note = job.sent(Noted)[-1].note
    assert "cannot write a checkpoint of step" in note
    assert f"the last good one is {Path(saved.path).name}" in note
    left = [entry.name for entry in job.checkpoint_dir.iterdir() if entry.name.startswith(".")]
    assert not left
    # Without the limit, as on a disk that was cleared, it goes on from there.
    (tmp_path / "full").unlink()
    job.wait_rescaled(job.order(["b"]))
    assert job.sent(Switched)[-1].step == saved.step


def test_no_member_that_stays_hands_the_state_over(job: LocalJob, config: Config) -> None:
    job.wait_step(10)
    done = job.wait_rescaled(job.order(["b", "c"]))
    assert done.samples >= 10 * config.batch
    assert [end.status for end in job.exits] == [0]


def test_a_second_attach_is_refused_in_words(parent: WarmParent, tmp_path: Path) -> None:
    script = tmp_path / "twice.py"
    script.write_text(
        "import torch\nimport malletrain.train as mt\n"
        "model = torch.nn.Linear(1, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(2):\n    mt.attach(model, optimizer, global_batch=1)\n"
    )
    with LocalJob([sys.executable, str(script)], tmp_path, parent) as job:
        job.stop_recovering()
        job.order(["a"])
        job.wait_ended()
        assert "attach() ran before" in job.exits[0].log_tail
