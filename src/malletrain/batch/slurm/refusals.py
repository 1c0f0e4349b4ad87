"""Why `sbatch` refuses pilots, and what to do about it."""

from __future__ import annotations

import re

from malletrain.batch.commands import CommandFailedError
from malletrain.batch.refusals import Refusal, refused
from malletrain.errors import BatchError

_PREFIX = re.compile(r"sbatch: error: (?:Batch job submission failed: )?|allocation failure: ")
_MOST_SHOWN = 200


#: The first whose phrase occurs says what it is.
_REFUSALS = (
    Refusal("unable to contact slurm controller", "slurmctld is away: it is tried again", True),
    Refusal(
        "invalid partition",
        "set partition in [slurm] to one that `sinfo -s` lists; ask the administrator which one "
        "has jobs that others may preempt",
    ),
    Refusal(
        "invalid account",
        "set account in [slurm]; ask the administrator for an account that may use the partition",
    ),
    Refusal(
        "invalid qos",
        "set qos in [slurm]; ask the administrator for a QOS that your account and the partition "
        "allow",
    ),
    Refusal(
        "job violates accounting/qos policy",
        "a limit of jobs, nodes or time is reached: lower max_nodes, max_waiting or walltime_s in "
        "[scavenge], or ask the administrator to raise the limits of the account or QOS "
        "(MaxSubmitJobs, GrpTRES, MaxWall)",
        True,
    ),
    Refusal(
        "requested time limit is invalid",
        "lower walltime_s in [scavenge] to the partition's MaxTime (`scontrol show partition`), or "
        "ask the administrator to raise it",
    ),
    Refusal(
        "group not permitted",
        "ask the administrator to let your group use the partition (AllowGroups)",
    ),
    Refusal(
        "permission denied",
        "ask the administrator for the right to use the partition with your account and QOS",
    ),
    Refusal("partition not available", "the partition is down or drained: it is tried again", True),
    Refusal(
        "node configuration is not available",
        "no node of the partition has what sbatch_options in [slurm] ask for: change them, or ask "
        "the administrator for the partition's limits for whole nodes",
    ),
    Refusal("invalid feature", "correct --constraint in sbatch_options of [slurm]"),
    Refusal("generic resource", "correct --gres or --gpus in sbatch_options of [slurm]"),
    Refusal("requested reservation", "correct --reservation in sbatch_options of [slurm]"),
    Refusal("node name", "correct the hosts in sbatch_options of [slurm]"),
    Refusal(
        "invalid job array", "lower max_waiting in [scavenge]: it is more than MaxArraySize allows"
    ),
    Refusal("unrecognized option", "correct sbatch_options in [slurm]"),
    Refusal("unrecognised option", "correct sbatch_options in [slurm]"),
    Refusal("invalid --", "correct sbatch_options in [slurm]"),
)


def refusal(error: CommandFailedError) -> BatchError:
    """Return what a failed `sbatch` means."""
    # The reasons without what comes before each.
    reasons = [_PREFIX.sub("", line).strip() for line in error.output.splitlines()]
    return refused("Slurm", "; ".join(filter(None, reasons))[:_MOST_SHOWN], _REFUSALS, "sbatch")
