"""Which part of a job log tells what its machine did: without its two ends, and without outages.

At its start a log misses jobs that ran already, and the machine looks emptier than it was; at its
end it misses those that were still to come.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from malletrain.errors import TraceError
from malletrain.traces.jobs import JobLog, JobRecord
from malletrain.traces.tally import Tally
from malletrain.traces.trace import TraceOptions

#: Warm by then: of the node time of jobs before the log, no more than this share is still missing.
_MISSING_SHARE = 0.05
#: However long jobs run, the warm-up takes no more than this of the log.
_MAX_WARM_UP_SHARE = 0.25
#: Longer without a job than nights and weekends of a small machine usually are, shorter than a
#: maintenance day.
DEFAULT_OUTAGE_S = 6 * 3600.0

Period = tuple[float, float]


def of_log(log: JobLog, jobs: Sequence[JobRecord], options: TraceOptions, tally: Tally) -> Period:
    """Return the period that the log tells of; `jobs` are its own, sorted by start.

    Raises:
        TraceError: nothing is left between its two ends.
    """
    first_s = jobs[0].started_at_s
    last_s = max(job.ended_at_s for job in jobs)
    to_s = _drained_at(jobs, last_s) if options.drain_s is None else last_s - options.drain_s
    if options.warm_up_s is None:
        warm_at_s = _first_end(jobs) if log.is_of_period else first_s + _warm_up_s(jobs)
        from_s = min(warm_at_s, first_s + _MAX_WARM_UP_SHARE * (to_s - first_s))
    else:
        from_s = first_s + options.warm_up_s
    if to_s <= from_s:
        raise TraceError(
            f"nothing is left of the log between warm-up ({from_s - first_s:,.0f} s) and drain "
            f"({last_s - to_s:,.0f} s): --warm-up-s 0 --drain-s 0 keeps all of it"
        )
    for which, cut_s in (("start", from_s - first_s), ("end", last_s - to_s)):
        if cut_s > 0:
            tally.add(f"seconds cut off at the {which}, where the log misses jobs that ran", cut_s)
    return from_s, to_s


def _first_end(jobs: Sequence[JobRecord]) -> float:
    """A dump of a period has all jobs that ran in it: it began when the first of them ended."""
    return min(job.ended_at_s for job in jobs)


def _drained_at(jobs: Sequence[JobRecord], last_s: float) -> float:
    """Return the last submission, or the last start where the log does not tell submissions."""
    submissions = [job.submitted_at_s for job in jobs if job.submitted_at_s is not None]
    return min(max(submissions, default=jobs[-1].started_at_s), last_s)


def _warm_up_s(jobs: Sequence[JobRecord]) -> float:
    """Return how long after a log's start jobs from before it still hold nodes.

    If jobs come evenly, those from before the start hold, x later, in the mean
    sum(nodes * max(run - x, 0)) / sum(nodes * run) of what all jobs hold.
    """
    run_s = np.array([job.ended_at_s - job.started_at_s for job in jobs])
    nodes = np.array([job.nodes for job in jobs], dtype=np.float64)
    order = np.argsort(run_s)
    run_s, nodes = run_s[order], nodes[order]
    # Node time, and nodes, of jobs longer than the k-th.
    longer_node_s = (nodes * run_s)[::-1].cumsum()[::-1] - nodes * run_s
    longer_nodes = nodes[::-1].cumsum()[::-1] - nodes
    missing = longer_node_s - run_s * longer_nodes
    is_warm = missing <= _MISSING_SHARE * (nodes * run_s).sum()
    return float(run_s[np.argmax(is_warm)])


def outages(jobs: Sequence[JobRecord], period: Period, at_least_s: float) -> list[Period]:
    """Return when no job ran on the whole machine for so long; `jobs` are sorted by start."""
    from_s, to_s = period
    found: list[Period] = []
    idle_from_s = from_s
    for job in jobs:
        if job.is_maintenance:
            continue
        if job.started_at_s >= to_s:
            break
        if job.started_at_s - idle_from_s >= at_least_s:
            found.append((idle_from_s, job.started_at_s))
        idle_from_s = max(idle_from_s, job.ended_at_s)
    if to_s - idle_from_s >= at_least_s:
        found.append((idle_from_s, to_s))
    return found
