"""What PBS's programs answer to the command lines of `build`.

An answer that is empty or that makes no sense is an error, never "there are none".
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import Struct, field

from malletrain.batch.pbs.answers import Text, decode, duration_s, text_of
from malletrain.errors import BatchError

_JOB_ID = re.compile(r"(\d+)(\[\d*\])?\.(\S+)")
#: `(a:ncpus=4)+(b[0]:ncpus=2+b[1]:ncpus=2)+(c)`
_VNODE = re.compile(r"[(+]([^:+()]+)")
_RESERVATION = re.compile(r"^Resv ID: (\S+)$", re.MULTILINE)
_START = re.compile(r"^reserve_start = (.+)$", re.MULTILINE)
_RESERVED = re.compile(r"^resv_nodes = (.+)$", re.MULTILINE)
#: As ctime(3) writes it, in the local time of whoever asks.
_TIME = "%a %b %d %H:%M:%S %Y"
#: What `qdel` says of jobs that are gone, or about to go.
_GONE = re.compile(
    r"unknown job id|job has finished|invalid state|invalid for state", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Vnode:
    #: Without its domain.
    host: str
    #: Words joined by commas.
    state: str
    #: Ids of those that run there.
    jobs: tuple[str, ...]
    #: Ids of those that are running or to come.
    reservations: tuple[str, ...]
    #: The only one whose jobs it takes; "" if it takes all.
    queue: str
    #: The site's smallest: a rack or a switch (tier0), else a dragonfly group (tier1).
    group: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job or an array."""

    id: str
    name: str
    #: Without the host.
    user: str
    #: PBS's letter.
    state: str
    walltime_s: float
    #: Members of an array that wait.
    waiting: tuple[int, ...]
    #: When and on which vnodes it starts, as far as is planned.
    planned_at_s: float | None
    planned: tuple[str, ...]

    @property
    def is_array(self) -> bool:
        return "[]" in self.id

    def member(self, index: int) -> str:
        return self.id.replace("[]", f"[{index}]")


@dataclass(frozen=True, slots=True)
class Reservation:
    id: str
    #: None where PBS does not say.
    start_at_s: float | None
    vnodes: tuple[str, ...]


def array_of(job_id: str) -> str:
    """Return the id of the array whose member this is; a job's own if it is none."""
    return re.sub(r"\[\d+\]", "[]", job_id)


# -- pbsnodes --------------------------------------------------------------------------------------


class _Resources(Struct, frozen=True):
    host: Text = None
    tier0: Text = None
    tier1: Text = None


class _Node(Struct, frozen=True):
    state: str = ""
    mom: Text = field(name="Mom", default=None)
    jobs: tuple[str, ...] = ()
    resv: str | tuple[str, ...] = ()
    queue: Text = None
    resources: _Resources = field(name="resources_available", default=_Resources())


class _Nodes(Struct, frozen=True):
    timestamp: float
    nodes: dict[str, _Node]


def nodes(text: str) -> tuple[float, dict[str, Vnode]]:
    """Return the epoch s of the answer, and every vnode by its name.

    Raises:
        BatchError: there is none.
    """
    answer = decode(text, _Nodes, "pbsnodes")
    if not answer.nodes:
        raise BatchError("pbsnodes lists no node", is_transient=True)
    return answer.timestamp, {name: _vnode(name, node) for name, node in answer.nodes.items()}


def _vnode(name: str, node: _Node) -> Vnode:
    host = text_of(node.resources.host) or text_of(node.mom) or name
    listed = node.resv.split(",") if isinstance(node.resv, str) else node.resv
    return Vnode(
        host=host.partition(".")[0],
        state=node.state,
        jobs=node.jobs,
        reservations=tuple(filter(None, map(str.strip, listed))),
        queue=text_of(node.queue),
        group=text_of(node.resources.tier0) or text_of(node.resources.tier1),
    )


# -- qstat -----------------------------------------------------------------------------------------


class _Request(Struct, frozen=True):
    walltime: Text = None


class _Estimate(Struct, frozen=True):
    exec_vnode: Text = None
    start_time: Text = None


class _Job(Struct, frozen=True):
    name: Text = field(name="Job_Name", default=None)
    owner: Text = field(name="Job_Owner", default=None)
    state: Text = field(name="job_state", default=None)
    request: _Request = field(name="Resource_List", default=_Request())
    waiting: Text = field(name="array_indices_remaining", default=None)
    estimated: _Estimate = _Estimate()


class _Jobs(Struct, frozen=True):
    #: Every answer has it, so that one without jobs is told from none.
    pbs_server: str
    jobs: dict[str, _Job] = field(name="Jobs", default_factory=dict)


def jobs(text: str) -> Iterator[Job]:
    """Yield everybody's jobs that wait or run, as far as the server shows them to us."""
    for job_id, job in decode(text, _Jobs, "qstat").jobs.items():
        yield Job(
            id=job_id,
            name=text_of(job.name),
            user=text_of(job.owner).partition("@")[0],
            state=text_of(job.state),
            walltime_s=duration_s(job.request.walltime),
            waiting=tuple(_indices(text_of(job.waiting))),
            planned_at_s=_at_s(text_of(job.estimated.start_time)),
            planned=_vnodes(text_of(job.estimated.exec_vnode)),
        )


def _indices(text: str) -> Iterator[int]:
    """Read `0-3,5`; a step may follow, as in `0-8:2`. "-" is none."""
    for part in filter(None, text.replace(" ", "").strip("-").split(",")):
        found, _, step = part.partition(":")
        first, _, last = found.partition("-")
        try:
            yield from range(int(first), int(last or first) + 1, int(step or 1))
        except ValueError:
            raise BatchError(
                f"qstat says that of an array {text[:80]!r} wait", is_transient=True
            ) from None


# -- the others ------------------------------------------------------------------------------------


def reservations(text: str) -> tuple[Reservation, ...]:
    """Return all of them; the empty answer is that there are none."""
    _, *parts = _RESERVATION.split(text)
    if text.strip() and not parts:
        raise BatchError(f"pbs_rstat ended well and said {text.strip()[:80]!r}", is_transient=True)
    return tuple(
        Reservation(
            id=resv_id,
            start_at_s=_at_s(start[1]) if (start := _START.search(block)) else None,
            vnodes=_vnodes(reserved[1]) if (reserved := _RESERVED.search(block)) else (),
        )
        for resv_id, block in zip(parts[::2], parts[1::2], strict=True)
    )


def is_up(text: str) -> bool:
    """Say whether `qstat -B` has a line of a server."""
    return len(text.splitlines()) > 2


def submitted(text: str, count: int) -> tuple[str, ...]:
    """Return the pilots' ids, of what `qsub` says of a job or an array of so many."""
    said = text.strip().splitlines() or [""]
    match = _JOB_ID.fullmatch(said[-1].strip())
    if match is None or (match[2] == "[]") != (count > 1):
        raise BatchError(f"qsub ended well and said {text.strip()[:80]!r}", is_transient=True)
    if count == 1:
        return (match[0],)
    return tuple(f"{match[1]}[{index}].{match[3]}" for index in range(count))


def is_only_of_the_gone(errors: str) -> bool:
    """Say whether all that `qdel` complains of is that jobs are gone already."""
    lines = [line for line in errors.splitlines() if line.strip()]
    return bool(lines) and all(_GONE.search(line) for line in lines)


def _vnodes(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_VNODE.findall(text)))


def _at_s(text: str) -> float | None:
    """Return the epoch s; None for what is no time, such as UNKNOWN."""
    if text.isdecimal():
        return float(text) or None
    with contextlib.suppress(ValueError, OverflowError):
        return time.mktime(time.strptime(" ".join(text.split()), _TIME))
    return None
