"""What Slurm's programs answer to the command lines of `build`.

An answer that is empty or that makes no sense is an error, never "there are none".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from malletrain.batch.slurm.states import NodeState
from malletrain.errors import BatchError, TraceError
from malletrain.traces.clock import duration_s
from malletrain.traces.hosts import expand

_NODES_HEADER = "NODELIST|STATECOMPLETE|PARTITION"
_JOBS_HEADER = "JOBID|UID|STATE|START_TIME|TIME_LIMIT|NODELIST|SCHEDNODES|NAME"
#: Names may have line breaks, after which anything may come.
_JOB = re.compile(r"(\d+(?:_\S+)?)\|(\d+)\|([A-Z_]+)\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|(.*)")
_RESERVATION = re.compile(
    r"ReservationName=\S+ StartTime=(\S+) EndTime=(\S+) .*?\bNodes=(\S*) NodeCnt="
)
_SUBMITTED = re.compile(r"^(\d+)(?:;\S+)?$", re.MULTILINE)
_EPOCH_S = re.compile(r"\d+")
_LOCAL_TIME = re.compile(r"\d{4}-")


@dataclass(frozen=True, slots=True)
class Job:
    """A job, or an array's tasks that wait. Of most in a long queue, most is never looked at."""

    #: `12`, `12_3`, or `12_[0-3,7%2]` for tasks that wait; see `task_ids`.
    id: str
    uid: int
    #: As Slurm writes it, such as PENDING.
    state: str
    name: str
    #: See `limit_s`.
    limit: str
    #: A host list, see `hosts`: where it runs. Where it waits, this says nothing.
    hosts: str = ""
    #: Epoch s at which it starts or started, as far as is planned.
    start_at_s: float | None = None
    #: A host list: where it is to start.
    planned: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    hosts: tuple[str, ...]
    start_at_s: float
    end_at_s: float


def nodes(text: str, partition: str) -> dict[str, NodeState]:
    """Return the state of every node of the partition; "" is the default one.

    Raises:
        BatchError: there is none.
    """
    found: dict[str, NodeState] = {}
    for line in _below(_NODES_HEADER, text, "sinfo"):
        fields = line.split("|")
        if len(fields) != 3:
            raise _strange("sinfo", line)
        host, state, its_partition = fields
        if partition or its_partition.endswith("*"):
            found[host] = NodeState.parse(state)
    if not found:
        what = f"partition {partition}" if partition else "the default partition"
        raise BatchError(f"sinfo lists no node of {what}", is_transient=True)
    return found


def jobs(text: str) -> Iterator[Job]:
    """Yield everybody's jobs."""
    for line in _below(_JOBS_HEADER, text, "squeue"):
        if match := _JOB.fullmatch(line):
            job_id, uid, state, start, limit, where, planned, name = match.groups()
            yield Job(
                id=job_id,
                uid=int(uid),
                state=state,
                name=name,
                limit=limit,
                hosts=where,
                start_at_s=_epoch_s(start),
                planned=planned,
            )


def task_ids(job_id: str) -> tuple[str, ...]:
    """Return one id a job or task of an array."""
    job, _, tasks = job_id.partition("_[")
    if not tasks:
        return (job_id,)
    # After %: how many may run at once.
    numbers = tasks.rstrip("]").split("%")[0]
    return tuple(f"{job}_{task}" for task in hosts(f"[{numbers}]"))


def reservations(text: str) -> tuple[Reservation, ...]:
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if match := _RESERVATION.match(line):
            start_at_s, end_at_s = _epoch_s(match[1]), _epoch_s(match[2])
            found.append(
                Reservation(
                    hosts(match[3]),
                    -math.inf if start_at_s is None else start_at_s,
                    math.inf if end_at_s is None else end_at_s,
                )
            )
        elif line != "No reservations in the system":
            raise _strange("scontrol show reservation", line)
    if not text.strip():
        raise _strange("scontrol show reservation", "")
    return tuple(found)


def submitted(text: str, count: int) -> tuple[str, ...]:
    """Return the ids of an array's pilots."""
    match = _SUBMITTED.search(text)
    if match is None:
        raise _strange("sbatch", text)
    return tuple(f"{match[1]}_{task}" for task in range(count))


def is_up(text: str) -> bool:
    """Say whether `scontrol ping` found any of the site's controllers."""
    return " is UP" in text


def _below(header: str, text: str, program: str) -> Iterator[str]:
    """Yield the lines after the header, without which the answer is none."""
    first, *lines = text.splitlines() or [""]
    if first.strip() != header:
        raise _strange(program, first)
    return filter(None, lines)


def limit_s(text: str) -> float:
    """Read a time limit; infinite where there is none."""
    try:
        known_s = duration_s(text, "TIME_LIMIT")
    except TraceError:
        return math.inf  # UNLIMITED, and the likes
    return math.inf if known_s is None else known_s


def hosts(text: str) -> tuple[str, ...]:
    """Read a host list."""
    try:
        return expand(text)
    except TraceError as error:
        raise BatchError(
            f"Slurm names hosts in a strange way: {error}", is_transient=True
        ) from error


def _epoch_s(text: str) -> float | None:
    if _EPOCH_S.fullmatch(text):
        return float(text)
    if _LOCAL_TIME.match(text):
        raise BatchError(
            f"this Slurm writes times as {text} though SLURM_TIME_FORMAT=%s asks for epoch seconds",
            is_transient=False,
        )
    return None


def _strange(program: str, line: str) -> BatchError:
    said = f"{line[:80]!r}" if line.strip() else "nothing"
    return BatchError(f"{program} ended well and said {said}", is_transient=True)
