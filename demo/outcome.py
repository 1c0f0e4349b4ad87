"""What a job said at its end, beside what its undisturbed twin said."""

from __future__ import annotations

import re

import msgspec

from demo.jobs import DemoJob
from malletrain.errors import MalleTrainError
from malletrain.live.state_dir import StateDir
from malletrain.report import Comparison, LossPoints

#: Two undisturbed runs with 2 and with 4 workers differ by this much in single precision after
#: some hundred steps, because sums are added up in another order. No less can be claimed.
RELATIVE_TOLERANCE = 9e-4

_FINAL_LOSS = re.compile(r"^final loss (\S+)$", re.MULTILINE)
_LOSS = re.compile(r"^samples (\d+) loss (\S+)$", re.MULTILINE)
_STATED = re.compile(r"^stated samples/s (\[.*\])$", re.MULTILINE)


def compare(job: DemoJob, job_log: str, twin_log: str, *, is_exactly_once: bool) -> Comparison:
    """Compare what both printed.

    Raises:
        MalleTrainError: one of them printed no final loss, or its workers do not agree.
    """
    twin_final_loss = final_loss(twin_log, f"the undisturbed {job.name}")
    return Comparison(
        final_loss=final_loss(job_log, job.name),
        twin_final_loss=twin_final_loss,
        tolerance=RELATIVE_TOLERANCE * abs(twin_final_loss),
        losses=_losses(job_log),
        twin_losses=_losses(twin_log),
        is_exactly_once=is_exactly_once,
        stated_rates=_stated_rates(twin_log)[: job.max_nodes + 1],
    )


def final_loss(log: str, whose: str) -> float:
    """Read what a script's workers printed last.

    Raises:
        MalleTrainError: they printed none, or do not agree.
    """
    found = set(_FINAL_LOSS.findall(log))
    if len(found) != 1:
        said = f"{len(found)} different ones" if found else "none"
        raise MalleTrainError(f"{whose} should print one final loss, it printed {said}")
    return float(found.pop())


def _losses(log: str) -> LossPoints:
    return tuple((float(at), float(loss)) for at, loss in _LOSS.findall(log))


def _stated_rates(log: str) -> tuple[float, ...]:
    found = _STATED.search(log)
    return tuple(msgspec.json.decode(found[1], type=list[float])) if found else ()


def job_log(state_dir: StateDir, job_id: str) -> str:
    """Return what all workers of a job have printed."""
    files = sorted(state_dir.log_dir(job_id).glob("*.log"))
    return "\n".join(path.read_text(errors="replace") for path in files)
