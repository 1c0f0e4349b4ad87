"""What Slurm's answers mean for the scavenger."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from malletrain.batch.queue import Survey
from malletrain.batch.slurm import parse
from malletrain.batch.slurm.parse import Job, Reservation
from malletrain.batch.slurm.states import Fitness, NodeState

_WAITING = "PENDING"


def survey_of(
    at_s: float,
    nodes: Mapping[str, NodeState],
    jobs: Iterable[Job],
    reservations: Iterable[Reservation],
    *,
    name: str,
    uid: int,
) -> Survey:
    """Put the answers together; own pilots are the jobs of this name and user."""
    waiting: dict[str, float] = {}
    running: dict[str, str] = {}
    wanted_at_s: dict[str, float] = {}

    def want(hosts: Iterable[str], start_at_s: float) -> None:
        for host in hosts:
            wanted_at_s[host] = min(start_at_s, wanted_at_s.get(host, math.inf))

    for job in jobs:
        if job.uid == uid and job.name == name:
            if job.state == _WAITING:
                waiting |= dict.fromkeys(parse.task_ids(job.id), parse.limit_s(job.limit))
            else:
                running |= dict.fromkeys(parse.hosts(job.hosts), job.id)
        elif job.state == _WAITING and job.start_at_s is not None:
            want(parse.hosts(job.planned), job.start_at_s)
    for reservation in reservations:
        if reservation.end_at_s > at_s:
            want(reservation.hosts, reservation.start_at_s)
    return Survey(
        at_s=at_s,
        waiting=waiting,
        running=running,
        idle=_idle(at_s, nodes, wanted_at_s, running),
        wanted_at_s=wanted_at_s,
        unfit={h: str(state) for h, state in nodes.items() if state.fitness is Fitness.UNFIT},
    )


def _idle(
    at_s: float,
    nodes: Mapping[str, NodeState],
    wanted_at_s: Mapping[str, float],
    running: Mapping[str, str],
) -> dict[str, float]:
    """Return idle hosts and when each is wanted; one wanted by now is no more idle.

    Before every large job Slurm marks all idle hosts as planned: they are the holes, each with an
    end. Without one that is known, such a host is left alone.
    """
    ends: dict[str, float] = {}
    for host, state in nodes.items():
        end_at_s = wanted_at_s.get(host, math.inf)
        is_free = state.fitness is Fitness.FREE
        is_hole = state.fitness is Fitness.PLANNED and end_at_s < math.inf
        if (is_free or is_hole) and host not in running and end_at_s > at_s:
            ends[host] = end_at_s
    return ends
