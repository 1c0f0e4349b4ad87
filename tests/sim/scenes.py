"""Traces, workloads and replays for the simulator's tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from malletrain.sim.engine import Replay
from malletrain.sim.policies import policy
from malletrain.sim.results import PolicyResult
from malletrain.sim.settings import ReplayOptions
from malletrain.traces.intervals import IdleInterval, IntervalEnd, group_of
from malletrain.workloads.workload import MalleableJob, TrueCurve, Workload

#: 10 samples/s a node.
LINEAR = TrueCurve((1, 64), (10.0, 640.0))
CURVES = {
    "linear": LINEAR,
    "middling": TrueCurve((1, 2, 4, 8, 16), (50.0, 90.0, 150.0, 220.0, 260.0)),
    "flat": TrueCurve((1, 4, 16), (300.0, 500.0, 600.0)),
}


def idle(node: str, from_s: float, to_s: float, end: str = "planned") -> IdleInterval:
    return IdleInterval(
        node=node, from_s=from_s, to_s=to_s, end=IntervalEnd(end), group=group_of(node)
    )


def job(job_id: str = "a", curve: str = "linear", **more: Any) -> MalleableJob:
    fields = {
        "submitted_at_s": 0.0,
        "max_nodes": 16,
        "work_samples": None,
        "scale_up_s": 4.0,
        "scale_down_s": 2.0,
    }
    return MalleableJob(id=job_id, curve=curve, **(fields | more))


def workload(*jobs: MalleableJob) -> Workload:
    return Workload(name="test", jobs=jobs, curves=CURVES)


def drawn_intervals(
    seed: int, *, num_nodes: int = 16, length_s: float = 3600.0, mean_s: float = 600.0
) -> list[IdleInterval]:
    """Draw nodes that come and go, some together and some taken back without notice."""
    draws = random.Random(seed)
    intervals = []
    for number in range(num_nodes):
        at_s = draws.choice([0.0, draws.uniform(0.0, mean_s)])
        while at_s < length_s:
            to_s = at_s + draws.expovariate(1.0 / mean_s) + 1.0
            if draws.random() < 0.5:  # with others
                to_s = 60.0 * (to_s // 60.0 + 1.0)
            end = "kill" if draws.random() < 0.2 else "planned"
            intervals.append(idle(f"c{number // 4}n{number}", at_s, min(to_s, length_s), end))
            at_s = to_s + draws.choice([0.0, 5.0, draws.expovariate(2.0 / mean_s)])
    return sorted(intervals, key=lambda interval: (interval.from_s, interval.node))


def drawn_workload(seed: int, *, num_jobs: int = 6, work_s: float = 2000.0) -> Workload:
    """Draw jobs of all curves; one alone takes about `work_s` on one node."""
    draws = random.Random(seed)
    names = list(CURVES)
    at_s, jobs = 0.0, []
    for number in range(num_jobs):
        curve = names[number % len(names)]
        min_nodes = draws.choice([1, 1, 2, 3])
        work = work_s * draws.uniform(0.5, 2.0) * CURVES[curve].samples_per_s[0]
        jobs.append(
            job(
                f"j{number}",
                curve,
                submitted_at_s=at_s,
                min_nodes=min_nodes,
                max_nodes=draws.choice([min_nodes, 6, 16]),
                work_samples=work,
                scale_up_s=draws.choice([0.0, 3.0, 18.0]),
                scale_down_s=draws.choice([0.0, 1.0, 12.0]),
            )
        )
        at_s += draws.choice([0.0, 120.0, 400.0])
    return workload(*jobs)


def length_of(intervals: Sequence[IdleInterval]) -> float:
    return max(interval.to_s for interval in intervals)


def replay(
    intervals: Sequence[IdleInterval],
    work: Workload,
    options: ReplayOptions | None = None,
    *,
    name: str = "malletrain",
    journal: BytesIO | None = None,
) -> Replay:
    return Replay(
        intervals,
        work,
        policy(name),
        options or ReplayOptions(),
        length_s=length_of(intervals),
        journal=journal,
    )


def result(*args: Any, **more: Any) -> PolicyResult:
    return replay(*args, **more).run()
