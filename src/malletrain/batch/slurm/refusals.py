"""Why `sbatch` refuses pilots, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from malletrain.batch.commands import CommandFailedError
from malletrain.errors import BatchError

_PREFIX = re.compile(r"sbatch: error: (?:Batch job submission failed: )?|allocation failure: ")
_MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class _Refusal:
    #: What sbatch says, in lower case.
    phrase: str
    #: What to do.
    advice: str
    #: Waiting may help.
    is_transient: bool = False


#: The first whose phrase occurs says what it is.
_REFUSALS = (
    _Refusal("unable to contact slurm controller", "slurmctld is away: it is tried again", True),
    _Refusal(
        "invalid partition",
        "set partition in [slurm] to one that `sinfo -s` lists; ask the administrator which one "
        "has jobs that others may preempt",
    ),
    _Refusal(
        "invalid account",
        "set account in [slurm]; ask the administrator for an account that may use the partition",
    ),
    _Refusal(
        "invalid qos",
        "set qos in [slurm]; ask the administrator for a QOS that your account and the partition "
        "allow",
    ),
    _Refusal(
        "job violates accounting/qos policy",
        "a limit of jobs, nodes or time is reached: lower max_nodes, max_waiting or walltime_s in "
        "[scavenge], or ask the administrator to raise the limits of the account or QOS "
        "(MaxSubmitJobs, GrpTRES, MaxWall)",
        True,
    ),
    _Refusal(
        "requested time limit is invalid",
        "lower walltime_s in [scavenge] to the partition's MaxTime (`scontrol show partition`), or "
        "ask the administrator to raise it",
    ),
    _Refusal(
        "group not permitted",
        "ask the administrator to let your group use the partition (AllowGroups)",
    ),
    _Refusal(
        "permission denied",
        "ask the administrator for the right to use the partition with your account and QOS",
    ),
    _Refusal(
        "partition not available", "the partition is down or drained: it is tried again", True
    ),
    _Refusal(
        "node configuration is not available",
        "no node of the partition has what sbatch_options in [slurm] ask for: change them, or ask "
        "the administrator for the partition's limits for whole nodes",
    ),
    _Refusal("invalid feature", "correct --constraint in sbatch_options of [slurm]"),
    _Refusal("generic resource", "correct --gres or --gpus in sbatch_options of [slurm]"),
    _Refusal("requested reservation", "correct --reservation in sbatch_options of [slurm]"),
    _Refusal("node name", "correct the hosts in sbatch_options of [slurm]"),
    _Refusal(
        "invalid job array", "lower max_waiting in [scavenge]: it is more than MaxArraySize allows"
    ),
    _Refusal("unrecognized option", "correct sbatch_options in [slurm]"),
    _Refusal("unrecognised option", "correct sbatch_options in [slurm]"),
    _Refusal("invalid --", "correct sbatch_options in [slurm]"),
)


def refusal(error: CommandFailedError) -> BatchError:
    """Return what a failed `sbatch` means. What nobody knows is tried again."""
    said = _in_one_line(error.output)
    for known in _REFUSALS:
        if known.phrase in said.lower():
            message = f"Slurm takes no pilots ({said}): {known.advice}"
            return BatchError(message, is_transient=known.is_transient)
    advice = "it is tried again; if it stays, show this line to the administrator"
    return BatchError(f"Slurm takes no pilots ({said}): {advice}", is_transient=True)


def _in_one_line(output: str) -> str:
    """Return the reasons without what comes before each."""
    reasons = [_PREFIX.sub("", line).strip() for line in output.splitlines()]
    return "; ".join(filter(None, reasons))[:_MOST_SHOWN] or "sbatch gave no reason"
