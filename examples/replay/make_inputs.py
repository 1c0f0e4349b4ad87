"""Make the logs that come with the replay: `python -m examples.replay.make_inputs`.

Nothing is taken from a real machine's log. A small batch scheduler (first come, first served, with
backfill) runs jobs drawn from a fixed seed on named nodes. `accounting.txt` is what `sacct -P`
would print of two days of it; `idle.csv.gz` is what another machine of it leaves idle in a day.
"""

from __future__ import annotations

import gzip
import heapq
import io
import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ClusterShell.NodeSet import NodeSet

from malletrain.traces import intervals
from malletrain.traces.load import load
from malletrain.traces.trace import TraceOptions

HERE = Path(__file__).parent
_HOUR_S = 3600.0
#: The machine has been running for so long when a log begins.
_BEFORE_S = 18 * _HOUR_S
_DAY_S = 24 * _HOUR_S
#: Monday, 7 September 2026, 00:00 UTC.
_EPOCH_S = datetime(2026, 9, 7, tzinfo=UTC).timestamp()
_COLUMNS = "JobID|JobName|Partition|Reservation|State|Submit|Start|End|NNodes|NodeList"
_NAMES = ("cfd", "md", "genome", "weather", "fem", "qchem")


@dataclass(frozen=True, kw_only=True)
class Machine:
    seed: int
    nodes: Sequence[str]
    length_s: float
    #: Node time asked for, of all there is.
    load: float
    median_run_s: float
    #: A reservation of all nodes: from, to.
    maintenance: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    number: int
    submit_s: float
    run_s: float
    limit_s: float
    size: int
    start_s: float = math.inf
    nodes: tuple[str, ...] = ()

    @property
    def end_s(self) -> float:
        return self.start_s + self.run_s


def draw_jobs(machine: Machine, random_: random.Random) -> list[Job]:
    """Draw sizes that are powers of two, and run times with a long tail."""
    capacity = len(machine.nodes) * (_BEFORE_S + machine.length_s) * machine.load
    jobs: list[Job] = []
    asked = at_s = 0.0
    while asked < capacity:
        size = min(2 ** int(random_.expovariate(0.6)), len(machine.nodes) // 2)
        run_s = float(
            round(min(machine.median_run_s * math.exp(random_.gauss(0, 1.3)), 12 * _HOUR_S))
        )
        limit_s = min(run_s * random_.uniform(1.1, 4), 12 * _HOUR_S)
        jobs.append(Job(number=0, submit_s=0, run_s=run_s, limit_s=limit_s, size=size))
        asked += size * run_s
    times_s = sorted(random_.uniform(-_BEFORE_S, machine.length_s) for _ in jobs)
    for number, at_s in enumerate(times_s):
        jobs[number] = replace(jobs[number], number=4001 + number, submit_s=float(round(at_s)))
    return jobs


def schedule(machine: Machine, jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield jobs as they start: in order, or earlier where it delays the first one waiting not."""
    free = set(machine.nodes)
    running: list[tuple[float, int, Job]] = []
    waiting: list[Job] = []
    moments = [job.submit_s for job in jobs]
    moments += list(machine.maintenance or ())
    arrivals = list(jobs)
    heapq.heapify(moments)
    while moments and moments[0] <= machine.length_s:
        now_s = heapq.heappop(moments)
        while running and running[0][0] <= now_s:
            free.update(heapq.heappop(running)[2].nodes)
        while arrivals and arrivals[0].submit_s <= now_s:
            waiting.append(arrivals.pop(0))
        for job in _startable(machine, waiting, free, running, now_s):
            started = replace(job, start_s=now_s, nodes=tuple(sorted(free)[: job.size]))
            free.difference_update(started.nodes)
            waiting.remove(job)
            heapq.heappush(running, (started.end_s, started.number, started))
            heapq.heappush(moments, started.end_s)
            yield started


def _startable(
    machine: Machine,
    waiting: Sequence[Job],
    free: set[str],
    running: Sequence[tuple[float, int, Job]],
    now_s: float,
) -> list[Job]:
    startable: list[Job] = []
    num_free = len(free)
    head_at_s = math.inf
    for job in waiting:
        is_clear = machine.maintenance is None or not (
            now_s < machine.maintenance[1] and now_s + job.limit_s > machine.maintenance[0]
        )
        if job.size <= num_free and is_clear and now_s + job.limit_s <= head_at_s:
            startable.append(job)
            num_free -= job.size
        elif math.isinf(head_at_s) and is_clear:
            head_at_s = _enough_free_at_s(job.size - num_free, running, now_s)
    return startable


def _enough_free_at_s(
    missing: int, running: Sequence[tuple[float, int, Job]], now_s: float
) -> float:
    for limit_s, size in sorted((job.start_s + job.limit_s, job.size) for *_, job in running):
        missing -= size
        if missing <= 0:
            return max(limit_s, now_s)
    return now_s


def accounting(machine: Machine) -> Iterator[str]:
    """Yield the lines of a `sacct -P` dump, in order of job ids."""
    random_ = random.Random(machine.seed)  # noqa: S311  # logs to replay, no secret
    jobs = draw_jobs(machine, random_)
    cancelled = {job.number for job in jobs if random_.random() < 0.04}
    kept = [job for job in jobs if job.number not in cancelled]
    started = {job.number: job for job in schedule(machine, kept)}
    yield _COLUMNS
    if machine.maintenance is not None:
        from_s, to_s = machine.maintenance
        update = Job(
            number=4000,
            submit_s=0.0,
            run_s=to_s - from_s,
            limit_s=0.0,
            size=len(machine.nodes),
            start_s=from_s,
            nodes=tuple(machine.nodes),
        )
        yield _line(update, "4000|update|batch|maintenance|COMPLETED")
    for job in jobs:
        seen = started.get(job.number, job)
        if job.number in cancelled:
            seen = replace(job, run_s=0.0, start_s=job.submit_s + 30)
        if seen.end_s > 0:
            yield from _lines(seen, machine, random_)


def _lines(job: Job, machine: Machine, random_: random.Random) -> Iterator[str]:
    name = random_.choice(_NAMES)
    # Some numbers are tasks of an array of four.
    array, task = divmod(job.number, 4)
    id_ = f"{4 * array}_{task}" if array % 12 == 0 else str(job.number)
    state = random_.choices(("COMPLETED", "FAILED", "TIMEOUT"), (90, 7, 3))[0]
    if not job.nodes:
        state = "PENDING" if math.isinf(job.start_s) else "CANCELLED by 1007"
    elif job.end_s > machine.length_s:
        state = "RUNNING"
        job = replace(job, run_s=math.inf)
    yield _line(job, f"{id_}|{name}|batch||{state}")
    if job.nodes and random_.random() < 0.3:
        first = replace(job, nodes=job.nodes[:1], size=1)
        yield _line(first, f"{id_}.batch|batch|||{state}")
        yield _line(job, f"{id_}.0|{name}|||{state}")


def _line(job: Job, head: str) -> str:
    nodes = str(NodeSet(",".join(job.nodes))) if job.nodes else "None assigned"
    times = f"{_time(job.submit_s)}|{_time(job.start_s)}|{_time(job.end_s)}"
    return f"{head}|{times}|{job.size}|{nodes}"


def _time(at_s: float) -> str:
    if math.isinf(at_s):
        return "Unknown"
    return datetime.fromtimestamp(_EPOCH_S + int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%S")


def idle_log(machine: Machine) -> bytes:
    """Return the idle intervals that a machine's jobs leave, as a compressed CSV."""
    with tempfile.TemporaryDirectory() as directory:
        dump = Path(directory, "accounting.txt")
        dump.write_text("\n".join(accounting(machine)) + "\n")
        trace = load(dump, TraceOptions())
    text = io.StringIO()
    intervals.write(trace.intervals, text)
    return gzip.compress(text.getvalue().encode(), mtime=0)


SMALL = Machine(
    seed=2026,
    nodes=[f"nd{number:02}" for number in range(1, 33)],
    length_s=2 * _DAY_S,
    load=0.95,
    median_run_s=2700.0,
    maintenance=(30 * _HOUR_S, 34 * _HOUR_S),
)
CABINETS = Machine(
    seed=817,
    nodes=[f"c{cabinet}n{number}" for cabinet in range(1, 9) for number in range(1, 9)],
    length_s=_DAY_S,
    load=0.9,
    median_run_s=900.0,
)

if __name__ == "__main__":
    (HERE / "accounting.txt").write_text("\n".join(accounting(SMALL)) + "\n")
    (HERE / "idle.csv.gz").write_bytes(idle_log(CABINETS))
