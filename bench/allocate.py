"""The exact allocator at a thousand jobs on ten thousand nodes, beside the count MILP in HiGHS."""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from bench.harness import Result
from malletrain.allocate.exact import ExactAllocator
from malletrain.allocate.milp import MilpAllocator
from malletrain.core.problem import Allocation, Allocator, Claim, Problem

_JOBS = 1_000
_NODES = 10_000
_HORIZON_S = 120.0
_ROUNDS = 41
_MILP_ROUNDS = 2
_MILP_LIMIT_S = 30.0
_MILP_PATIENCE_S = 45.0
_MIN_RATIO = 100


def run() -> Iterator[Result]:
    rng = np.random.default_rng(20210210)
    yield from _beside_milp("mixed", 5.0, lambda: _mixed(rng), _MILP_ROUNDS, _MIN_RATIO)
    # Identical jobs can be easy for the MILP: no ratio is asked for.
    yield from _beside_milp("identical", 10.0, lambda: _identical(rng), 1, 0)


def _beside_milp(
    kind: str, limit_ms: float, draw: Callable[[], Problem], milp_rounds: int, min_ratio: int
) -> Iterator[Result]:
    thrash = _cache_thrasher()
    problems = [draw() for _ in range(_ROUNDS)]
    timed = [_timed(ExactAllocator(), problem, thrash) for problem in problems]
    times_ms = [took_ms for took_ms, _ in timed]
    answers = [answer for _, answer in timed]
    milp_ms, is_same = [], True
    for problem, exact in zip(problems[:milp_rounds], answers, strict=False):
        took_ms, milp = _milp(problem)
        milp_ms.append(took_ms)
        if milp is not None:
            # Where the limit cut it short, the MILP's answer may only be worse.
            error = (exact.value - milp.value) / abs(exact.value)
            is_same = is_same and (abs(error) < 1e-6 or (error > 0 and not milp.proved_optimal))
    value_ms = statistics.median(times_ms)
    reference_ms = statistics.median(milp_ms)
    all_proved = all(answer.proved_optimal for answer in answers)
    yield Result(
        f"exact, 1,000 {kind} jobs, median",
        value_ms,
        "ms",
        f"<= {limit_ms:g} ms, all proved, same worth" + (f", {min_ratio}x" if min_ratio else ""),
        value_ms <= limit_ms and all_proved and is_same and reference_ms >= min_ratio * value_ms,
        f"count MILP in HiGHS, given up at {_MILP_PATIENCE_S:.0f} s",
        reference_ms,
    )
    yield Result(f"exact, 1,000 {kind} jobs, 95th percentile", _percentile(times_ms, 95), "ms")


def _milp(problem: Problem) -> tuple[float, Allocation | None]:
    """Time the MILP in a process of its own: HiGHS may overrun its limit by minutes.

    Given up at `_MILP_PATIENCE_S`, which then stands for its time.
    """
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        answer = pool.apply_async(_solve, (problem,))
        try:
            solved = answer.get(_MILP_PATIENCE_S)
        except multiprocessing.TimeoutError:
            return 1e3 * (time.perf_counter() - began), None
    return solved


def _solve(problem: Problem) -> tuple[float, Allocation]:
    return _timed(MilpAllocator(_MILP_LIMIT_S), problem, lambda: None)


def _timed(
    allocator: Allocator, problem: Problem, thrash: Callable[[], None]
) -> tuple[float, Allocation]:
    """Time one call that finds nothing of its problem in the processor's caches."""
    gc.collect()
    thrash()
    began = time.perf_counter()
    answer = allocator.allocate(problem)
    return 1e3 * (time.perf_counter() - began), answer


def _cache_thrasher() -> Callable[[], None]:
    larger_than_caches = np.zeros(16 * 2**20)

    def thrash() -> None:
        np.add(larger_than_caches, 1.0, out=larger_than_caches)

    return thrash


def _percentile(values: list[float], percent: float) -> float:
    return float(np.percentile(values, percent))


def _mixed(rng: np.random.Generator) -> Problem:
    return Problem(tuple(_claim(rng, f"job{i}") for i in range(_JOBS)), _NODES, _HORIZON_S)


def _identical(rng: np.random.Generator) -> Problem:
    """A thousand of one job; each call draws another."""
    one = _claim(rng, "")
    claims = (
        Claim(f"job{i}", one.min_nodes, one.max_nodes, one.current_nodes, one.values.copy())
        for i in range(_JOBS)
    )
    return Problem(tuple(claims), _NODES, _HORIZON_S)


def _claim(rng: np.random.Generator, job_id: str) -> Claim:
    """Draw a job: its curve, its bounds, its present nodes (two thirds of all jobs run)."""
    max_nodes = int(rng.choice([8, 16, 32, 64, 128, 256, 512]))
    min_nodes = int(rng.choice([1, 1, 1, 2, 4]))
    nodes = np.arange(max_nodes + 1, dtype=np.float64)
    rates = rng.lognormal(5.0, 1.5) * _speedup(rng, nodes)
    current = 0
    if rng.random() < 2 / 3:
        current = int(rng.integers(min_nodes, min(max_nodes, 24) + 1))
    up_s, down_s = rng.uniform(0.5, 60.0), rng.uniform(0.1, 20.0)
    values = _HORIZON_S * rates
    values[nodes > current] -= up_s * rates[current]
    values[nodes < current] -= down_s * rates[current]
    return Claim(job_id, min_nodes, max_nodes, current, values)


def _speedup(rng: np.random.Generator, nodes: NDArray[np.float64]) -> NDArray[np.float64]:
    kind = rng.integers(4)
    if kind == 0:  # power law
        return nodes ** rng.uniform(0.5, 0.95)
    if kind == 1:  # Amdahl
        return nodes / (1 + rng.uniform(0.001, 0.05) * np.maximum(nodes - 1, 0))
    if kind == 2:  # a peak: communication grows with the nodes
        pairs = nodes * np.maximum(nodes - 1, 0)
        return nodes / (1 + rng.uniform(0, 0.001) * pairs)
    return nodes.copy()  # linear
