"""Every reason of sbatch's in one line, with what to do and whether waiting helps."""

from __future__ import annotations

import pytest

from malletrain.batch.commands import CommandFailedError
from malletrain.batch.slurm.refusals import refusal

FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("output", "reason", "advice", "is_transient"),
    [
        (
            f"sbatch: error: invalid partition specified: x\n{FAILED}Invalid partition name\n",
            "invalid partition specified: x; Invalid partition name",
            "partition in [slurm]",
            False,
        ),
        (
            f"{FAILED}Invalid account or account/partition combination specified\n",
            "Invalid account",
            "ask the administrator for an account",
            False,
        ),
        (f"{FAILED}Invalid qos specification\n", "Invalid qos", "ask the administrator", False),
        (
            f"sbatch: error: AssocMaxSubmitJobLimit\n{FAILED}Job violates accounting/QOS policy\n",
            "AssocMaxSubmitJobLimit; Job violates",
            "max_waiting",
            True,
        ),
        (
            f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)\n",
            "Requested time limit",
            "walltime_s",
            False,
        ),
        (f"{FAILED}Unable to contact slurm controller (connect failure)\n", "", "away", True),
        ("sbatch: unrecognized option '--foo'\nTry \"sbatch --help\"\n", "", "[slurm]", False),
        ("sbatch: error: the site's own rule 7\n", "the site's own rule 7", "administrator", True),
        ("", "sbatch gave no reason", "administrator", True),
    ],
)
def test_a_refusal_says_what_to_do(
    output: str, reason: str, advice: str, is_transient: bool
) -> None:
    error = refusal(CommandFailedError("", 1, output))
    assert reason in str(error)
    assert advice in str(error)
    assert "\n" not in str(error)
    assert error.is_transient is is_transient
