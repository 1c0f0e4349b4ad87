"""Who is the first worker, at every moment of a script that real workers run."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from malletrain.core.events import JobFinished
from malletrain.testing import LocalJob, WarmParent

pytestmark = pytest.mark.train
SOLO_STEPS = 3
STEPS = 200

#: It notes who is the first, and reports 100 as its loss while it warms up and 1 afterwards.
SCRIPT = """
import json, os, sys, time
from pathlib import Path

import torch
import malletrain.train as mt

directory, solo_steps, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
notes = directory / (os.environ["MALLETRAIN_WORKER_ID"] + ".notes")


def note(moment):
    with notes.open("a") as file:
        print(json.dumps([moment, job.step, job.is_first, job.loss]), file=file)


torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dataset = torch.utils.data.TensorDataset(torch.ones(4 * steps, 3))
job = mt.attach(model, optimizer, global_batch=4, on_leave=lambda: note("leave"))
note("before")
bodies = 0
for (x,) in job.batches(dataset, epochs=1):
    bodies += 1
    is_warming_up = bodies <= solo_steps
    note("warm-up" if is_warming_up else "loop")
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
    job.report(100.0 if is_warming_up else 1.0)
    if not (directory / "hurry").exists():
        time.sleep(0.02)
note("after")
"""


@dataclass(frozen=True)
class Note:
    moment: str
    step: int
    is_first: bool
    loss: float | None


@pytest.fixture
def job(parent: WarmParent, tmp_path: Path) -> Iterator[LocalJob]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path), str(SOLO_STEPS), str(STEPS)]
    with LocalJob(command, tmp_path, parent, settings={"solo_steps": SOLO_STEPS}) as started:
        yield started


def notes(directory: Path) -> list[Note]:
    lines = [line for path in directory.glob("*.notes") for line in path.read_text().splitlines()]
    return [Note(*json.loads(line)) for line in lines]


def test_no_worker_is_the_first_without_a_group_and_exactly_one_is_within(
    job: LocalJob, tmp_path: Path
) -> None:
    # It grows, loses its first worker, is suspended, and resumes.
    for nodes in (["a", "b"], ["a", "b", "c"], ["b", "c"], [], ["c", "a"]):
        job.wait_rescaled(job.order(nodes))
        if nodes:
            job.wait_step(job.step + 3)
    (tmp_path / "hurry").touch()
    job.wait_ended()
    assert isinstance(job.events[-1], JobFinished)

    noted = notes(tmp_path)
    joined, left = 5, 3
    assert Counter(n.moment for n in noted if n.moment != "loop") == {
        "before": joined,
        "warm-up": joined * SOLO_STEPS,
        "leave": left,
        "after": joined - left,
    }
    firsts = [n for n in noted if n.is_first]
    # Twice the first worker itself left: for the others, and for the suspension.
    assert Counter(n.moment for n in firsts) == {"loop": STEPS, "leave": 2, "after": 1}
    assert {n.step for n in firsts if n.moment == "loop"} == set(range(STEPS))
    # What was reported while warming up counts for nothing.
    assert {n.loss for n in noted} == {None, 1.0}
