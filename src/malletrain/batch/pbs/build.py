"""Command lines of PBS's programs. What they answer is read by `parse`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from malletrain.config import PbsSettings

#: Users may ask for no less.
_LOWEST_PRIORITY = -1024


def show_nodes() -> tuple[str, ...]:
    """List all vnodes: a host may be made of several."""
    return ("pbsnodes", "-av", "-F", "json")


def show_jobs() -> tuple[str, ...]:
    """List everybody's jobs that wait or run.

    Without -t, by which every member of everybody's arrays has a record of its own: which of ours
    wait is in the array's record, and which run is in the vnodes'.
    """
    return ("qstat", "-f", "-F", "json")


def show_reservations() -> tuple[str, ...]:
    return ("pbs_rstat", "-f")


def ping() -> tuple[str, ...]:
    return ("qstat", "-B")


def submit(
    count: int,
    limit_s: int,
    name: str,
    log_dir: Path,
    settings: PbsSettings,
    *,
    keep_env: Iterable[str],
) -> tuple[str, ...]:
    """Submit so many pilots whose script comes by standard input: each a node, behind all others.

    PBS takes no array of one member, and none that must not be run again; nor does a job that must
    not make way where others requeue (preempt_order = R). A pilot that PBS puts back into the queue
    waits there once more under its id.
    """
    members = () if count == 1 else ("-J", f"0-{count - 1}")
    named = {"-q": settings.queue, "-P": settings.project, "-v": ",".join(keep_env)}
    return (
        # -f: no process stays behind to serve a next qsub, with our pipes open.
        *("qsub", "-f", "-N", name, "-S", "/bin/sh", "-p", str(_LOWEST_PRIORITY)),
        *("-l", f"select={settings.select}", "-l", f"place={settings.place}"),
        *("-l", f"walltime={limit_s}", "-r", "y", *members),
        *(word for option, value in named.items() if value for word in (option, value)),
        # No checkpoints, no mail; both outputs in one file, named by the pilot's id.
        *("-c", "n", "-m", "n", "-j", "oe", "-o", f"{log_dir}/"),
        *settings.qsub_options,
    )


def cancel(pilot_ids: Iterable[str]) -> tuple[str, ...]:
    return ("qdel", *pilot_ids)
