"""Which part of a job log tells what its machine did: without its two ends, and without outages.

At its start a log misses jobs that ran or waited already, and the machine looks emptier than it
was; at its end it misses those that were still to come.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
_Floats = NDArray[np.float64]


def of_log(log: JobLog, jobs: Sequence[JobRecord], options: TraceOptions, tally: Tally) -> Period:
    """Return the period that the log tells of; `jobs` are its own, sorted by start.

    Raises:
        TraceError: nothing is left between its two ends.
    """
    first_s = jobs[0].started_at_s
    last_s = max(job.ended_at_s for job in jobs)
    to_s = _drained_at(jobs, last_s) if options.drain_s is None else last_s - options.drain_s
    if options.warm_up_s is not None:
        from_s = first_s + options.warm_up_s
    elif log.is_of_period:
        from_s = _first_end(jobs)
    else:
        latest_s = first_s + _MAX_WARM_UP_SHARE * (to_s - first_s)
        from_s = max(_warm_at_s(jobs), first_s)
        if from_s > latest_s:
            from_s = latest_s
            tally.say(
                "the log is short beside its jobs: those from before it may still hold nodes "
                "when its use begins, which are then taken to be idle"
            )
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


def _warm_at_s(jobs: Sequence[JobRecord]) -> float:
    """Return when jobs submitted before the log's first hold but a small share of the nodes.

    If jobs come evenly, those submitted before the first hold, x later, in the mean
    sum(nodes * (max(wait + run - x, 0) - max(wait - x, 0))) / sum(nodes * run) of what all hold.
    """
    submitted = [job.started_at_s if (at_s := job.submitted_at_s) is None else at_s for job in jobs]
    submitted_at_s = np.array(submitted)
    wait_s = np.array([job.started_at_s for job in jobs]) - submitted_at_s
    end_s = np.array([job.ended_at_s for job in jobs]) - submitted_at_s
    nodes = np.array([job.nodes for job in jobs], dtype=np.float64)
    later_s = np.unique(np.concatenate([wait_s, end_s]))
    missing = _node_s_after(later_s, end_s, nodes) - _node_s_after(later_s, wait_s, nodes)
    is_warm = missing <= _MISSING_SHARE * (nodes * (end_s - wait_s)).sum()
    return float(submitted_at_s.min() + later_s[np.argmax(is_warm)])


def _node_s_after(later_s: _Floats, until_s: _Floats, nodes: _Floats) -> _Floats:
    """Return sum(nodes * max(until - later, 0)) for each of `later_s`, shape `(num_later,)`."""
    order = np.argsort(until_s)
    held = np.append(nodes[order][::-1].cumsum()[::-1], 0.0)
    held_s = np.append((nodes * until_s)[order][::-1].cumsum()[::-1], 0.0)
    first = np.searchsorted(until_s[order], later_s)
    after: _Floats = held_s[first] - later_s * held[first]
    return after


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
