"""MalleTrain beside FreeTrain with what users typically know, on drawn architectures."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness import Result
from bench.replays import DAY_S, Case, core, run_all
from malletrain.report.gains import gain
from malletrain.sim.policies import policy
from malletrain.sim.settings import LedgerKind, ReplayOptions
from malletrain.workloads.generate import Arrival, Nas

_DAYS = 2.0
_SEEDS = range(10)
_JOBS = (35,)
#: Defaults, whose sources `workloads.generate` states. A seed draws the architectures.
_WORKLOAD = Nas(count=500, arrival=Arrival.AT_ONCE)
_MAIN = "malletrain"
_OTHERS = ("freetrain-linear", "freetrain-shuffled", "freetrain-one-curve", "freetrain-oracle")
#: "Up to", over FreeTrain with what users state (MalleTrain, abstract).
_PAPERS_CLAIM = 22.3


def run() -> Iterator[Result]:
    found = run_all(
        {
            (jobs, name, seed): _case(jobs, name, seed)
            for seed in _SEEDS
            for jobs in _JOBS
            for name in (_MAIN, *_OTHERS)
        }
    )
    for jobs in _JOBS:
        main = [found[jobs, _MAIN, seed].samples for seed in _SEEDS]
        for name in _OTHERS:
            over = gain(main, [found[jobs, name, seed].samples for seed in _SEEDS])
            assert over is not None
            interval = f"95% interval {over.low:+.2%} to {over.high:+.2%}, {over.n} seeds"
            is_users = name != "freetrain-oracle"
            yield Result(
                f"nas, {jobs} jobs, {_MAIN} over {name} ({interval})",
                100.0 * over.mean,
                "%",
                reference="the paper's claim, up to" if is_users else None,
                reference_value=_PAPERS_CLAIM if is_users else None,
            )


def _case(jobs: int, name: str, seed: int) -> Case:
    options = ReplayOptions(
        core=core(None),
        ledger=LedgerKind.EXACT,
        max_parallel=jobs,
        repeat=True,
        until_s=_DAYS * DAY_S,
        seed=seed,
    )
    return Case(_WORKLOAD, policy(name), options)
