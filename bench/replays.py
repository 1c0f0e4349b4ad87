"""Replays of the public data, alone or many on all cores, for the benchmarks that compare them."""

from __future__ import annotations

import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress

from bench.harness import NotRunError
from malletrain.core.settings import CoreSettings, HorizonSettings, ObjectiveKind
from malletrain.processes import die_with_parent
from malletrain.sim.engine import Replay
from malletrain.sim.moments import moments
from malletrain.sim.policies import Policy
from malletrain.sim.settings import ReplayOptions
from malletrain.traces.load import load
from malletrain.traces.trace import Trace, TraceOptions
from malletrain.workloads import file as workload_file
from malletrain.workloads.generate import GeneratorSettings, generate
from malletrain.workloads.workload import Workload

#: The papers' public trace and workloads, which are not ours to bundle.
DATA = Path(os.environ.get("MALLETRAIN_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
_TRACE = DATA / "summit" / "idle-week1.csv.gz"
DAY_S = 86_400.0

IMAGENET, HPO = "imagenet-mix-1001", "hpo-shufflenet-1000"
#: How a list of jobs outlasts the trace: jobs end and the list begins again, or they never end.
MODES: Mapping[str, Mapping[str, Any]] = {"finite": {"repeat": True}, "endless": {"endless": True}}

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Case:
    """One replay."""

    #: The name of a file of `DATA`'s workloads, or how to draw one from the replay's seed.
    workload: str | GeneratorSettings
    policy: Policy
    options: ReplayOptions
    #: Those of the trace's nodes that there are, in the natural order of their names; None: all.
    nodes: slice | None = None
    #: All jobs wait from the start, whatever their file says.
    is_at_once: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """What benchmarks tell of one replay."""

    samples: float
    makespan_s: float | None
    #: Shares of the node-seconds offered.
    profiling: float
    idle: float
    decisions: int
    #: Times at which nodes came or went.
    moments: int
    journal_sha256: str
    #: Of the replay by itself: the processor's time and the clock's.
    cpu_s: float
    wall_s: float
    #: Of the reading of the trace, which replays in one process share.
    load_cpu_s: float
    #: The most memory that the process ever had.
    peak_bytes: int


def core(
    horizon_s: float | None, objective: ObjectiveKind = ObjectiveKind.SAMPLES, **others: Any
) -> CoreSettings:
    """Return the core's settings; the papers' objective and, for None, an adaptive horizon."""
    return CoreSettings(objective=objective, horizon=HorizonSettings(fixed_s=horizon_s), **others)


def run_alone(case: Case) -> Figures:
    """Replay in a process of its own, which finds nothing in memory that others left."""
    return _run({None: case}, 1)[None]


def run_all(cases: Mapping[_Key, Case]) -> dict[_Key, Figures]:
    """Replay all on all cores; the times that each took say nothing then."""
    return _run(cases, len(os.sched_getaffinity(0)))


def _run(cases: Mapping[_Key, Case], processes: int) -> dict[_Key, Figures]:
    if not _TRACE.exists():
        raise NotRunError(f"for want of {_TRACE}: name its place by MALLETRAIN_TEST_DATA")
    with ProcessPoolExecutor(
        processes,
        multiprocessing.get_context("spawn"),
        initializer=die_with_parent,
        initargs=(os.getpid(),),
    ) as pool:
        keys = {pool.submit(_figures, case): key for key, case in cases.items()}
        console = Console(stderr=True)
        is_quiet = not console.is_terminal
        try:
            with Progress(console=console, transient=True, disable=is_quiet) as progress:
                done = progress.track(as_completed(keys), len(keys), description="replays")
                return {keys[future]: future.result() for future in done}
        finally:
            pool.shutdown(cancel_futures=True)


def percent(figures: Sequence[Figures], of: Sequence[Figures]) -> list[float]:
    """Return the samples of each in percent of those of its counterpart."""
    pairs = zip(figures, of, strict=True)
    return [100.0 * ours.samples / theirs.samples for ours, theirs in pairs]


def spread(values: Sequence[float]) -> str:
    """Return words for the mean of some percentages and the most of them."""
    if len(values) == 1:
        return "one run"
    return f"{len(values)} seeds: mean {statistics.fmean(values):.2f}, most {max(values):.2f}"


def _figures(case: Case) -> Figures:
    began_s = time.process_time()
    trace = _trace()
    load_cpu_s = time.process_time() - began_s
    intervals = trace.intervals
    if case.nodes is not None:
        nodes = {*_node_names()[case.nodes]}
        intervals = tuple(interval for interval in intervals if interval.node in nodes)
    workload = _workload(case.workload, case.options.seed)
    if case.is_at_once:
        jobs = tuple(replace(job, submitted_at_s=0.0) for job in workload.jobs)
        workload = replace(workload, jobs=jobs)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    length_s = trace.length_s
    result = Replay(intervals, workload, case.policy, case.options, length_s=length_s).run()
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    return Figures(
        samples=result.done_samples,
        makespan_s=result.makespan_s,
        profiling=result.node_s.profiling / result.node_s.offered,
        idle=result.node_s.idle / result.node_s.offered,
        decisions=result.decisions,
        moments=sum(1 for _ in moments(intervals, case.options)),
        journal_sha256=result.journal_sha256,
        cpu_s=cpu_s,
        wall_s=wall_s,
        load_cpu_s=load_cpu_s,
        peak_bytes=_peak_bytes(),
    )


@lru_cache
def _trace() -> Trace:
    return load(_TRACE, TraceOptions())


@lru_cache
def _node_names() -> list[str]:
    """Return all nodes' names, `a2` before `a10`."""

    def natural(name: str) -> list[tuple[int, str]]:
        parts = re.split(r"(\d+)", name)
        return [(int(part), "") if part.isdigit() else (0, part) for part in parts]

    return sorted({interval.node for interval in _trace().intervals}, key=natural)


@lru_cache
def _workload(workload: str | GeneratorSettings, seed: int) -> Workload:
    if isinstance(workload, str):
        return workload_file.read(DATA / "workloads" / f"{workload}.json")
    return generate(workload, seed)


def _peak_bytes() -> int:
    # Not `getrusage`: what it tells of a process includes the one that started it.
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # type: ignore[index]
