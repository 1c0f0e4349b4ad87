from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from demo import controller, outcome
from demo.checks import check_run, emptied_jobs
from demo.jobs import DemoJob
from malletrain.core.events import AnyEvent
from malletrain.errors import MalleTrainError
from malletrain.report import Comparison, gather
from malletrain.train.audit import Finding
from tests.report.story import two_jobs

SAME = Comparison(final_loss=0.5, twin_final_loss=0.5002, tolerance=5e-4)
OTHER = Comparison(final_loss=0.5, twin_final_loss=0.51, tolerance=5e-4)
JOB = DemoJob("wide", "wide_mlp.py", max_nodes=2)


def _failures(
    comparisons: dict[str, Comparison],
    leftovers: list[int],
    *,
    events: list[AnyEvent] | None = None,
    problems: tuple[str, ...] = (),
    missing_samples: int = 0,
) -> list[str]:
    events = two_jobs().events if events is None else events
    run = gather(events, comparisons)
    findings = {
        report.job.spec.name: Finding(
            is_exactly_once=not problems,
            samples=round(report.job.done_samples) - missing_samples,
            problems=problems,
        )
        for report in run.jobs
    }
    checks = check_run(run, events, findings, leftovers)
    return [check.found for check in checks if not check.holds]


def test_a_run_with_all_that_was_promised_lacks_only_node_events() -> None:
    assert _failures({"heavy": SAME}, []) == ["11 node events, at least 30 were to be seen"]


def test_what_went_wrong_is_said() -> None:
    found = "\n".join(_failures({"heavy": OTHER}, [4711], problems=("sample 7 twice",)))
    assert "difference 1.0e-02, tolerance 5.0e-04" in found
    assert "heavy: not every sample was consumed once: sample 7 twice" in found
    assert "processes left over: 4711" in found


def test_the_journal_must_count_the_samples_that_were_consumed() -> None:
    found = _failures({"heavy": SAME}, [], missing_samples=5)
    assert any("samples were consumed, the journal says" in line for line in found)


def test_a_run_without_a_twin_does_not_pass() -> None:
    assert "no job was compared with an undisturbed twin" in _failures({}, [])


def test_a_run_that_was_cut_short_does_not_pass() -> None:
    events = [e for e in two_jobs().events if type(e).__name__ not in ("JobFinished", "NodesLost")]
    failed = _failures({"heavy": SAME}, [], events=events)
    assert any("heavy is active" in found for found in failed)
    assert "nodes killed without notice: 0" in failed
    assert "time with no node at all: 0.0 s" in failed


def test_jobs_that_lose_all_their_nodes_at_once_are_named() -> None:
    assert emptied_jobs(two_jobs().events) == ["heavy", "wide"]


def test_what_scripts_print_is_compared() -> None:
    job_log = "samples 128 loss 2.0\nfinal loss 0.500100\nfinal loss 0.500100\n"
    twin_log = "stated samples/s [0.0, 5.0, 9.0, 12.0]\nsamples 128 loss 2.0\nfinal loss 0.5\n"
    compared = outcome.compare(JOB, job_log, twin_log, is_exactly_once=True)
    assert compared.difference == pytest.approx(1e-4)
    assert compared.tolerance == pytest.approx(4.5e-4)
    assert compared.losses == compared.twin_losses == ((128.0, 2.0),)
    assert compared.stated_rates == (0.0, 5.0, 9.0)


@pytest.mark.parametrize(
    ("log", "said"), [("", "it printed none"), ("final loss 1\nfinal loss 2", "2 different ones")]
)
def test_no_common_final_loss_is_an_error(log: str, said: str) -> None:
    with pytest.raises(MalleTrainError, match=said):
        outcome.final_loss(log, "wide")


def test_processes_left_over_are_found(tmp_path: Path) -> None:
    env = {**os.environ, "ANY_VARIABLE": str(tmp_path / "state")}
    command = [sys.executable, "-c", "import sys; print('on', flush=True); sys.stdin.read()"]
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        assert controller.processes_of(tmp_path) == [process.pid]
        process.communicate("")
    assert controller.processes_of(tmp_path) == []
