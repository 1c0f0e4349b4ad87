from __future__ import annotations

import pytest

from malletrain.batch.commands import CommandFailedError
from malletrain.batch.pbs.refusals import refusal


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("qsub: Unknown queue\n", "qstat -Q"),
        ("qsub: Queue is not enabled", "enable the queue"),
        ("qsub: Unauthorized Request\nqsub: user not authorized to use queue", "acl_users"),
        ("qsub: Array job exceeds server or queue size limit", "max_array_size"),
        ("qsub: Job violates queue and/or server resource limits", "resources_max"),
        ("qsub: Unknown resource: Resource_List.gpu", "select"),
        ("qsub: illegal -l value", "qsub_options"),
    ],
)
def test_what_cannot_be_is_said_once_with_what_to_do(said: str, advice: str) -> None:
    error = refusal(CommandFailedError("qsub ended with 1", 1, said))
    assert advice in str(error)
    assert "\n" not in str(error)
    assert not error.is_transient


@pytest.mark.parametrize(
    "said",
    [
        "qsub: cannot connect to server pbs01 (errno=15010)",
        "qsub: would exceed queue generic's per-user limit of jobs in 'Q' state",
        "qsub: the moon is full",
        "",
    ],
)
def test_what_may_pass_is_tried_again(said: str) -> None:
    assert refusal(CommandFailedError("qsub ended with 1", 1, said)).is_transient
