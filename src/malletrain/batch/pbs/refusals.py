"""Why `qsub` refuses pilots, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from malletrain.batch.commands import CommandFailedError
from malletrain.errors import BatchError

_MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class _Refusal:
    #: What qsub says, in lower case.
    phrase: str
    #: What to do.
    advice: str
    #: Waiting may help.
    is_transient: bool = False


#: The first whose phrase occurs says what it is.
_REFUSALS = (
    _Refusal("cannot connect to server", "the server is away: it is tried again", True),
    _Refusal("unknown queue", "set queue in [pbs] to one that `qstat -Q` lists"),
    _Refusal(
        "queue is not enabled",
        "ask the administrator to enable the queue, or set another in [pbs]",
    ),
    _Refusal(
        "not authorized",
        "ask the administrator for the right to use the queue (acl_users, acl_groups)",
    ),
    _Refusal(
        "access to queue is denied",
        "ask the administrator for the right to use the queue (acl_users, acl_groups)",
    ),
    _Refusal(
        "array job exceeds",
        "lower max_waiting in [scavenge]: it is more than the server's max_array_size",
    ),
    _Refusal(
        "resource limits",
        "lower walltime_s in [scavenge] to the queue's resources_max.walltime (`qstat -Qf`), or "
        "correct select in [pbs]",
    ),
    _Refusal(
        "would exceed",
        "a limit of jobs is reached: lower max_nodes or max_waiting in [scavenge], or ask the "
        "administrator to raise it (max_queued, max_run)",
        True,
    ),
    _Refusal("unknown resource", "correct select and qsub_options in [pbs]"),
    _Refusal(
        "illegal attribute or resource value", "correct select, place and qsub_options in [pbs]"
    ),
    _Refusal("project", "set project in [pbs] to one that you may charge"),
    _Refusal("illegal -", "correct qsub_options in [pbs]"),
    _Refusal("invalid option", "correct qsub_options in [pbs]"),
)


def refusal(error: CommandFailedError) -> BatchError:
    """Return what a failed `qsub` means. What nobody knows is tried again."""
    said = " ".join(error.output.replace("qsub: ", "").split())[:_MOST_SHOWN]
    said = said or "qsub gave no reason"
    for known in _REFUSALS:
        if known.phrase in said.lower():
            message = f"PBS takes no pilots ({said}): {known.advice}"
            return BatchError(message, is_transient=known.is_transient)
    advice = "it is tried again; if it stays, show this line to the administrator"
    return BatchError(f"PBS takes no pilots ({said}): {advice}", is_transient=True)
