"""Main jobs that took nodes of ours back, and how long they waited for them."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from malletrain.impact.accounting import RESOLUTION_S, BatchJob
from malletrain.impact.pilots import CLOCKS_APART_S, Queue
from malletrain.impact.stays import Leave, Stay

#: A job that had a node freed for it starts well within this after the node is free.
_STARTS_WITHIN_S = 60.0
#: Pilots that ended so were not preempted, even if a waiting job had the node next.
_NOT_PREEMPTED = ("CANCELLED", "TIMEOUT", "DEADLINE", "NODE_FAIL")


class Taking(Struct, frozen=True, kw_only=True):
    """A main job that started on nodes which we were asked back from for it."""

    job_id: str
    started_at_s: float
    #: Of ours.
    nodes: int
    #: From the first time that one of its nodes was asked back to its start.
    waited_s: float
    #: From when it was submitted and eligible to its start: it may have waited for others too.
    waited_at_most_s: float


def takings(stays: Iterable[Stay], queue: Queue, from_s: float, to_s: float) -> tuple[Taking, ...]:
    """Find, for each node asked back in the period, the job that had waited and started next."""
    started: dict[str, list[tuple[float, BatchJob]]] = defaultdict(list)
    for job in queue.main_jobs:
        if job.started_at_s is not None:
            for host in job.hosts:
                started[host].append((job.started_at_s, job))
    for runs in started.values():
        runs.sort(key=_start)
    asked: dict[BatchJob, list[float]] = defaultdict(list)
    for stay in stays:
        if stay.leave is not Leave.ASKED or not from_s <= (stay.asked_at_s or 0.0) <= to_s:
            continue
        pilot = queue.pilot_of(stay)
        if pilot and pilot.state.startswith(_NOT_PREEMPTED):
            continue
        if taker := _taker(stay, started.get(stay.host, ())):
            asked[taker].append(stay.asked_at_s or 0.0)
    found = [_taking(job, moments_s) for job, moments_s in asked.items()]
    return tuple(sorted(found, key=lambda taking: taking.started_at_s))


def _start(run: tuple[float, BatchJob]) -> float:
    return run[0]


def _taker(stay: Stay, runs: Sequence[tuple[float, BatchJob]]) -> BatchJob | None:
    """Return the first to start on the host since it was asked back, if the ask was for it."""
    asked_at_s = stay.asked_at_s or 0.0
    # A start is rounded down.
    first = bisect.bisect_left(runs, asked_at_s - RESOLUTION_S - CLOCKS_APART_S, key=_start)
    if first == len(runs):
        return None
    started_at_s, job = runs[first]
    free_at_s = asked_at_s if stay.gone_at_s is None else stay.gone_at_s
    ready_at_s = job.ready_at_s
    has_waited = ready_at_s is not None and ready_at_s <= asked_at_s + CLOCKS_APART_S
    return job if has_waited and started_at_s <= free_at_s + _STARTS_WITHIN_S else None


def _taking(job: BatchJob, asked_at_s: Sequence[float]) -> Taking:
    started_at_s, ready_at_s = job.started_at_s, job.ready_at_s
    assert started_at_s is not None
    assert ready_at_s is not None
    waited_s = max(0.0, started_at_s - min(asked_at_s))
    return Taking(
        job_id=job.id,
        started_at_s=started_at_s,
        nodes=len(asked_at_s),
        waited_s=waited_s,
        waited_at_most_s=max(waited_s, started_at_s - ready_at_s),
    )
