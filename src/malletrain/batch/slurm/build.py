"""Command lines of Slurm's programs. What they answer is read by `parse`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from malletrain.config import SlurmSettings
from malletrain.errors import BatchError

#: What users may have set to change what these programs ask or show by default, and what a job
#: has where the controller runs in one: pilots would inherit it, and `srun` would heed it there.
_DROPPED = re.compile(r"(SQUEUE|SINFO|SBATCH|SCANCEL|SCONTROL|SRUN|SLURMD|SLURM)_\w+")
_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"}
#: States of jobs in which they have, or are to have, nodes.
_JOB_STATES = "PD,CF,R,S"
_MINUTE_S = 60


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which Slurm's programs do what their command lines say."""
    kept = {
        name: value
        for name, value in inherited.items()
        if name in _KEPT or not _DROPPED.fullmatch(name)
    }
    # Times as epoch seconds need no time zone; lists of array tasks are not to be cut short.
    return kept | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def show_nodes(partition: str) -> tuple[str, ...]:
    """List one node a line, of all partitions where none is named."""
    chosen = ("-p", partition) if partition else ()
    return ("sinfo", "-N", *chosen, "-O", "NodeList:|,StateComplete:|,Partition:")


def show_jobs() -> tuple[str, ...]:
    """List everybody's jobs that wait or run.

    One query: slurmctld sends its whole table of jobs for any, and `squeue` chooses. Arrays that
    wait stay one line each. The name comes last, as it may have any characters.
    """
    return ("squeue", "-a", "-t", _JOB_STATES, "-o", "%i|%U|%T|%S|%l|%N|%Y|%j")


def show_reservations() -> tuple[str, ...]:
    return ("scontrol", "-o", "show", "reservation")


def ping() -> tuple[str, ...]:
    return ("scontrol", "ping")


def limit_min(walltime_s: float) -> int:
    """Return the time limit in minutes, which are all that Slurm tells apart.

    Rounded up, a pilot would outlast its hole, and not be started in it.

    Raises:
        BatchError: nothing is left.
    """
    if walltime_s < _MINUTE_S:
        raise BatchError(
            f"a pilot of {walltime_s:g} s is shorter than Slurm's shortest time limit, 60 s",
            is_transient=False,
        )
    return int(walltime_s // _MINUTE_S)


def submit(
    count: int, minutes: int, name: str, log_dir: Path, settings: SlurmSettings
) -> tuple[str, ...]:
    """Submit an array of pilots whose script comes by standard input."""
    return (
        *("sbatch", "--parsable", f"--array=0-{count - 1}"),
        *pilot_options(minutes, name, log_dir, settings),
    )


def pilot_options(
    minutes: int, name: str, log_dir: Path, settings: SlurmSettings
) -> tuple[str, ...]:
    """Return how any pilot is asked for: one whole node, behind everybody else."""
    return (
        *(f"--job-name={name}", f"--time={minutes}"),
        *("--nodes=1", "--ntasks=1", "--exclusive", "--mem=0"),
        # A pilot that is preempted is replaced where and when a node is idle, not where it was.
        *("--no-requeue", f"--nice={settings.nice}"),
        *_place(settings),
        *("--export=NONE", "--chdir=/", f"--output={log_dir}/pilot-%A_%a.log"),
        *settings.sbatch_options,
    )


def run_at_once(limit_s: int, settings: SlurmSettings) -> tuple[str, ...]:
    """Run a command for a moment on a node that is idle within the limit, as a pilot would be."""
    return (
        *("srun", f"--immediate={limit_s}", "--quiet", "--nodes=1", "--ntasks=1", "--time=1"),
        *("--job-name=malletrain-probe", f"--nice={settings.nice}", "--export=NONE"),
        *_place(settings),
    )


def _place(settings: SlurmSettings) -> Iterator[str]:
    named = {"partition": settings.partition, "account": settings.account, "qos": settings.qos}
    return (f"--{option}={value}" for option, value in named.items() if value)


def cancel(pilot_ids: Iterable[str]) -> tuple[str, ...]:
    """Cancel pilots: one request for each array, whatever the number of its tasks."""
    tasks: dict[str, list[str]] = {}
    for pilot_id in pilot_ids:
        job, _, task = pilot_id.partition("_")
        tasks.setdefault(job, []).append(task)
    return ("scancel", "--quiet", *(f"{job}_[{','.join(tasks[job])}]" for job in tasks))
