"""The exact allocator at a thousand jobs on ten thousand nodes, beside the count MILP in HiGHS."""

from __future__ import annotations

import gc
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
_MILP_ROUNDS = 3
_MILP_LIMIT_S = 30.0


def run() -> Iterator[Result]:
    rng = np.random.default_rng(20210210)
    thrash = _cache_thrasher()

    mixed = [_timed(ExactAllocator(), _mixed(rng), thrash) for _ in range(_ROUNDS)]
    times_ms = [took_ms for took_ms, _ in mixed]
    all_proved = all(answer.proved_optimal for _, answer in mixed)
    median_ms = statistics.median(times_ms)
    yield Result(
        "exact, 1,000 mixed jobs, median",
        median_ms,
        "ms",
        "<= 5 ms, all proved",
        median_ms <= 5 and all_proved,
    )
    yield Result("exact, 1,000 mixed jobs, 95th percentile", _percentile(times_ms, 95), "ms")

    alike = [_timed(ExactAllocator(), _identical(rng), thrash) for _ in range(_ROUNDS)]
    times_ms = [took_ms for took_ms, _ in alike]
    all_proved = all(answer.proved_optimal for _, answer in alike)
    median_ms = statistics.median(times_ms)
    yield Result(
        "exact, 1,000 identical jobs, median",
        median_ms,
        "ms",
        "<= 10 ms, all proved",
        median_ms <= 10 and all_proved,
    )
    yield Result("exact, 1,000 identical jobs, 95th percentile", _percentile(times_ms, 95), "ms")

    yield _against_milp(rng, thrash)


def _against_milp(rng: np.random.Generator, thrash: Callable[[], None]) -> Result:
    exact_ms, milp_ms, is_same = [], [], True
    for _ in range(_MILP_ROUNDS):
        problem = _mixed(rng)
        took_ms, exact = _timed(ExactAllocator(), problem, thrash)
        exact_ms.append(took_ms)
        took_ms, milp = _timed(MilpAllocator(_MILP_LIMIT_S), problem, thrash)
        milp_ms.append(took_ms)
        # Where the limit cut it short, the MILP's answer may only be worse.
        error = (exact.value - milp.value) / abs(exact.value)
        is_same = is_same and (abs(error) < 1e-6 or (error > 0 and not milp.proved_optimal))
    value_ms, reference_ms = statistics.median(exact_ms), statistics.median(milp_ms)
    return Result(
        "exact, 1,000 mixed jobs, the MILP's problems",
        value_ms,
        "ms",
        ">= 100x, same worth",
        reference_ms >= 100 * value_ms and is_same,
        f"count MILP in HiGHS, at most {_MILP_LIMIT_S:.0f} s",
        reference_ms,
    )


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
