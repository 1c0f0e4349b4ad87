"""Why `qsub` refuses pilots, and what to do about it."""

from __future__ import annotations

from malletrain.batch.commands import CommandFailedError
from malletrain.batch.refusals import Refusal, refused
from malletrain.errors import BatchError

_MOST_SHOWN = 200


#: The first whose phrase occurs says what it is.
_REFUSALS = (
    Refusal("cannot connect to server", "the server is away: it is tried again", True),
    Refusal("unknown queue", "set queue in [pbs] to one that `qstat -Q` lists"),
    Refusal(
        "queue is not enabled",
        "ask the administrator to enable the queue, or set another in [pbs]",
    ),
    Refusal(
        "not authorized",
        "ask the administrator for the right to use the queue (acl_users, acl_groups)",
    ),
    Refusal(
        "access to queue is denied",
        "ask the administrator for the right to use the queue (acl_users, acl_groups)",
    ),
    Refusal(
        "array job exceeds",
        "lower max_waiting in [scavenge]: it is more than the server's max_array_size",
    ),
    Refusal(
        "resource limits",
        "lower walltime_s in [scavenge] to the queue's resources_max.walltime (`qstat -Qf`), or "
        "correct select in [pbs]",
    ),
    Refusal(
        "would exceed",
        "a limit of jobs is reached: lower max_nodes or max_waiting in [scavenge], or ask the "
        "administrator to raise it (max_queued, max_run)",
        True,
    ),
    Refusal("unknown resource", "correct select and qsub_options in [pbs]"),
    Refusal(
        "illegal attribute or resource value", "correct select, place and qsub_options in [pbs]"
    ),
    Refusal("project", "set project in [pbs] to one that you may charge"),
    Refusal("illegal -", "correct qsub_options in [pbs]"),
    Refusal("invalid option", "correct qsub_options in [pbs]"),
)


def refusal(error: CommandFailedError) -> BatchError:
    """Return what a failed `qsub` means."""
    said = " ".join(error.output.replace("qsub: ", "").split())[:_MOST_SHOWN]
    return refused("PBS", said, _REFUSALS, "qsub")
