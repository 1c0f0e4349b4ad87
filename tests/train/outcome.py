"""Compare what workers ended with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from malletrain.testing import LocalJob
from malletrain.train import audit
from tests.train.script import Config, train

#: In double precision only the order of sums differs between numbers of workers.
TOLERANCE = 1e-12


def results(config: Config) -> list[dict[str, Any]]:
    paths = sorted(Path(config.directory).glob("*.pt"))
    assert paths, "no worker came to the end of its script"
    return [torch.load(path, weights_only=False) for path in paths]


def assert_same_state(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    torch.testing.assert_close(one["model"], other["model"], rtol=0, atol=tolerance)
    torch.testing.assert_close(
        one["optimizer"]["state"], other["optimizer"]["state"], rtol=0, atol=tolerance
    )
    for key in ("step", "samples", "epochs", "seen", "learning_rate"):
        assert one[key] == other[key], key


def assert_as_undisturbed(config: Config) -> None:
    """All workers that came to the end have the state of a run that nobody disturbed."""
    ended = results(config)
    for other in ended[1:]:
        assert_same_state(ended[0], other, 0.0)
    alone = train(Config(**{**vars_of(config), "step_s": 0.0, "children": 0}))
    assert_same_state(ended[0], alone, TOLERANCE)


def vars_of(config: Config) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def assert_exactly_once(job: LocalJob, config: Config) -> audit.Finding:
    finding = audit.check(job.audit_dir, job.job_id)
    assert finding.is_exactly_once, finding.problems
    assert finding.epochs == config.epochs
    assert finding.samples == config.epochs * config.samples
    return finding
