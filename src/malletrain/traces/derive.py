"""From a job log to the intervals in which nodes were idle.

Where the log names a job's nodes, the machine is the nodes that it ever names: whether others
were there cannot be known. Where it only counts them, a job is placed on the lowest-numbered free
nodes as it starts, and its nodes are free again as it ends. Schedulers that know no topology do
the same, and what is idle gathers on the high numbers, in long pieces. A job that finds fewer
nodes free than it had is placed on those.

Every node is taken to be up all the time, but for outages of the whole machine and maintenance.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec.structs import replace

from malletrain.errors import TraceError, UsageError
from malletrain.traces import period
from malletrain.traces.intervals import IdleInterval, group_of
from malletrain.traces.jobs import MOST_NODES, JobLog, JobRecord
from malletrain.traces.tally import Tally
from malletrain.traces.trace import Trace, TraceOptions


def derive(log: JobLog, source: str, options: TraceOptions, tally: Tally) -> Trace:
    """Return the trace of the nodes that a log's jobs left idle.

    Raises:
        TraceError: it has no jobs, or no time between its warm-up and its end.
        UsageError: an option cannot apply to it.
    """
    _count_unsorted(log.jobs, tally)
    jobs = _in_order(log, tally)
    if not jobs:
        notes = "; ".join(tally.notes())
        raise TraceError(f"no job of it ever had nodes ({notes or 'it is empty'})")
    during = period.of_log(log, jobs, options, tally)
    outage_s = period.DEFAULT_OUTAGE_S if options.outage_s is None else options.outage_s
    outages = period.outages(jobs, during, outage_s)
    if any(job.node_ids for job in jobs):
        nodes, placed = _named(jobs, during, options, tally)
    else:
        nodes, placed = _counted(jobs, log, options, tally)
    if outages:
        lost_s = sum(to_s - from_s for from_s, to_s in outages)
        tally.add(f"outages, {outage_s:,.0f} s or longer without any job", len(outages))
        tally.add("node-hours of outages, not counted as idle", len(nodes) * lost_s / 3600)
    tally.say(
        "every node is taken to be up throughout, for all that a job log says: "
        "nodes that were down or reserved count as idle"
    )
    return Trace(
        source=source,
        origin_epoch_s=during[0] if log.has_dates else None,
        length_s=during[1] - during[0],
        num_machine_nodes=len(nodes),
        intervals=tuple(_idle(nodes, placed, during, outages)),
        notes=tally.notes(),
    )


#: A job's time on its nodes.
_Placed = tuple[float, float, Sequence[str]]


def _count_unsorted(jobs: Sequence[JobRecord], tally: Tally) -> None:
    times_s = [job.submitted_at_s for job in jobs if job.submitted_at_s is not None]
    unsorted = sum(after_s < before_s for before_s, after_s in pairwise(times_s))
    if unsorted:
        tally.add("jobs submitted before the one above them in the log, sorted here", unsorted)


def _in_order(log: JobLog, tally: Tally) -> list[JobRecord]:
    """Return jobs sorted by start, each once; those that still run end with the log."""
    last_s = max((max(j.ended_at_s, j.submitted_at_s or 0.0) for j in log.jobs), default=0.0)
    ordered: list[JobRecord] = []
    for job in sorted(log.jobs, key=lambda j: (j.started_at_s, j.id, j.ended_at_s)):
        is_repeated = bool(ordered) and ordered[-1] == job
        if is_repeated and (job.node_ids or not log.has_shared_ids):
            tally.add("lines that repeat another, left out")
            continue
        if is_repeated:
            tally.add("lines that repeat another, kept as tasks of an array")
        ordered.append(job)
    return [replace(job, ended_at_s=last_s) if job.is_running else job for job in ordered]


def _named(
    jobs: Sequence[JobRecord], during: period.Period, options: TraceOptions, tally: Tally
) -> tuple[list[str], Iterator[_Placed]]:
    if options.nodes is not None:
        raise UsageError("--nodes cannot apply: the log names its nodes, and they are the machine")
    nodes = sorted({node for job in jobs for node in job.node_ids})
    tally.add("nodes of the machine, all that the log names", len(nodes))
    if unnamed := sum(not job.node_ids for job in jobs):
        tally.add("jobs whose nodes are not named while others' are, left out", unnamed)
    if sharing := _num_sharing(jobs):
        tally.add("jobs that came onto a node which had one; it is idle when all ended", sharing)
    if unseen_s := _unseen_node_s(jobs, during):
        rule = "node-hours before a node's first job or after its last, when it is taken to be up"
        tally.add(rule, unseen_s / 3600)
    return nodes, ((job.started_at_s, job.ended_at_s, job.node_ids) for job in jobs)


def _num_sharing(jobs: Sequence[JobRecord]) -> int:
    busy_until_s: dict[str, float] = {}
    sharing = 0
    for job in jobs:
        ends_s = [busy_until_s.get(node, job.started_at_s) for node in job.node_ids]
        sharing += any(end_s > job.started_at_s for end_s in ends_s)
        busy_until_s.update(
            (node, max(end_s, job.ended_at_s))
            for node, end_s in zip(job.node_ids, ends_s, strict=True)
        )
    return sharing


def _unseen_node_s(jobs: Sequence[JobRecord], during: period.Period) -> float:
    from_s, to_s = during
    first_s: dict[str, float] = {}
    last_s: dict[str, float] = {}
    for job in jobs:
        for node in job.node_ids:
            first_s.setdefault(node, job.started_at_s)
            last_s[node] = max(last_s.get(node, job.ended_at_s), job.ended_at_s)
    before_s = sum(min(max(at_s, from_s), to_s) - from_s for at_s in first_s.values())
    after_s = sum(to_s - min(max(at_s, from_s), to_s) for at_s in last_s.values())
    return before_s + after_s


def _counted(
    jobs: Sequence[JobRecord], log: JobLog, options: TraceOptions, tally: Tally
) -> tuple[list[str], Iterator[_Placed]]:
    num_nodes = options.nodes or log.num_machine_nodes
    if num_nodes is None:
        num_nodes = _most_at_once(jobs)
        tally.add("nodes of the machine, the most in use at once; --nodes says better", num_nodes)
    else:
        whose = "--nodes" if options.nodes else "the log's header"
        tally.add(f"nodes of the machine, as {whose} says", num_nodes)
    if num_nodes > MOST_NODES:
        raise TraceError(f"a machine of {num_nodes:,} nodes: no more than {MOST_NODES:,} can be")
    tally.say("the log names no nodes: jobs were placed on the lowest-numbered free ones")
    width = len(str(num_nodes))
    nodes = [f"n{number:0{width}}" for number in range(1, num_nodes + 1)]
    return nodes, _on_lowest(jobs, nodes, tally)


def _most_at_once(jobs: Sequence[JobRecord]) -> int:
    changes = [(job.started_at_s, job.nodes) for job in jobs]
    changes += [(job.ended_at_s, -job.nodes) for job in jobs]
    most = in_use = 0
    for _, change in sorted(changes):
        in_use += change
        most = max(most, in_use)
    return most


def _on_lowest(jobs: Sequence[JobRecord], nodes: list[str], tally: Tally) -> Iterator[_Placed]:
    free = list(range(len(nodes)))
    running: list[tuple[float, list[int]]] = []
    for job in jobs:
        while running and running[0][0] <= job.started_at_s:
            for number in heapq.heappop(running)[1]:
                heapq.heappush(free, number)
        taken = [heapq.heappop(free) for _ in range(min(job.nodes, len(free)))]
        heapq.heappush(running, (job.ended_at_s, taken))
        if excess := job.nodes - len(taken):
            tally.add("jobs that exceed the machine at their start, placed on what was free")
            run_h = (job.ended_at_s - job.started_at_s) / 3600
            tally.add("node-hours of jobs beyond the machine, left out", excess * run_h)
        yield job.started_at_s, job.ended_at_s, [nodes[number] for number in taken]


def _idle(
    nodes: Sequence[str],
    placed: Iterator[_Placed],
    during: period.Period,
    outages: Sequence[period.Period],
) -> list[IdleInterval]:
    """Return when nodes have no job, but for outages; times from the period's start."""
    from_s, to_s = during
    free_from_s = dict.fromkeys(nodes, from_s)
    pieces: list[tuple[float, str, float]] = []
    for start_s, end_s, ids in placed:
        for node in ids:
            if free_from_s[node] < min(start_s, to_s):
                pieces.extend(_without(outages, node, free_from_s[node], min(start_s, to_s)))
            free_from_s[node] = max(free_from_s[node], end_s)
    for node, free_s in free_from_s.items():
        if free_s < to_s:
            pieces.extend(_without(outages, node, free_s, to_s))
    groups = {node: group_of(node) for node in nodes}
    return [
        IdleInterval(node=node, from_s=start_s - from_s, to_s=end_s - from_s, group=groups[node])
        for start_s, node, end_s in sorted(pieces)
    ]


def _without(
    outages: Sequence[period.Period], node: str, from_s: float, to_s: float
) -> Iterator[tuple[float, str, float]]:
    """Yield what is left of a node's interval beside outages, which are sorted and disjoint."""
    first = max(bisect_left(outages, (from_s, from_s)) - 1, 0)
    for out_from_s, out_to_s in outages[first:]:
        if out_from_s >= to_s:
            break
        if from_s < out_from_s:
            yield from_s, node, out_from_s
        from_s = max(from_s, out_to_s)
    if from_s < to_s:
        yield from_s, node, to_s
