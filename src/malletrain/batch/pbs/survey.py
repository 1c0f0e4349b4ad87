"""What PBS's answers mean for the scavenger."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from malletrain.batch.pbs.parse import Job, Reservation, Vnode, array_of
from malletrain.batch.pbs.states import Fitness, fitness
from malletrain.batch.queue import Survey

#: Queued, held, waiting for its time, on its way.
_WAITING = frozenset("QHWT")


def survey_of(
    at_s: float,
    vnodes: Mapping[str, Vnode],
    jobs: Iterable[Job],
    reservations: Iterable[Reservation],
    *,
    name: str,
    user: str,
    queue: str,
) -> Survey:
    """Put the answers together; own pilots are the jobs and arrays of this name and user."""
    own: dict[str, Job] = {}
    others: list[Job] = []
    for job in jobs:
        if job.name == name and job.user == user:
            own[job.id] = job
        else:
            others.append(job)
    running = {
        vnode.host: job_id
        for vnode in vnodes.values()
        for job_id in vnode.jobs
        if array_of(job_id) in own
    }
    wanted_at_s = _wanted_at_s(at_s, vnodes, others, reservations)
    ends = {host: wanted_at_s.get(host, math.inf) for host in _free(vnodes.values(), queue)}
    started = set(running.values())
    return Survey(
        at_s=at_s,
        waiting={p: limit_s for p, limit_s in _waiting(own.values()) if p not in started},
        running=running,
        # One wanted by now is no more idle.
        idle={host: end_at_s for host, end_at_s in ends.items() if end_at_s > at_s},
        wanted_at_s=wanted_at_s,
        unfit={v.host: v.state for v in vnodes.values() if fitness(v.state) is Fitness.UNFIT},
    )


def groups_of(vnodes: Iterable[Vnode]) -> dict[str, str]:
    """Return the group of every host that has one."""
    return {vnode.host: vnode.group for vnode in vnodes if vnode.group}


def _waiting(own: Iterable[Job]) -> Iterable[tuple[str, float]]:
    for job in own:
        if job.is_array:
            yield from ((job.member(index), job.walltime_s) for index in job.waiting)
        elif job.state in _WAITING:
            yield job.id, job.walltime_s


def _free(vnodes: Iterable[Vnode], queue: str) -> list[str]:
    """Return hosts all of whose vnodes are free, used by nobody and not kept for another queue."""
    is_free: dict[str, bool] = {}
    for vnode in vnodes:
        is_idle = fitness(vnode.state) is Fitness.FREE and not vnode.jobs
        is_ours = vnode.queue in ("", queue)
        is_free[vnode.host] = is_free.get(vnode.host, True) and is_idle and is_ours
    return [host for host, is_so in is_free.items() if is_so]


def _wanted_at_s(
    at_s: float,
    vnodes: Mapping[str, Vnode],
    others: Iterable[Job],
    reservations: Iterable[Reservation],
) -> dict[str, float]:
    found: dict[str, float] = {}

    def want(vnode_names: Iterable[str], from_s: float) -> None:
        for vnode_name in vnode_names:
            if vnode := vnodes.get(vnode_name):
                found[vnode.host] = min(found.get(vnode.host, math.inf), from_s)

    for job in others:
        if job.state in _WAITING and job.planned_at_s is not None:
            want(job.planned, job.planned_at_s)
    starts_at_s = {}
    for reservation in reservations:
        start_at_s = reservation.start_at_s
        starts_at_s[reservation.id] = at_s if start_at_s is None else start_at_s
        want(reservation.vnodes, starts_at_s[reservation.id])
    for name, vnode in vnodes.items():
        for resv_id in vnode.reservations:
            # One of which PBS says no more may start at any moment.
            want((name,), starts_at_s.get(resv_id, at_s))
    return found
