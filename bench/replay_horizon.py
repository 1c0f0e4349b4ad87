"""The adaptive horizon beside fixed ones, at rescale costs up to twenty times the papers'."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench.harness import Result
from bench.replays import DAY_S, HPO, IMAGENET, MODES, Case, Figures, core, percent, run_all
from malletrain.sim.policies import policy
from malletrain.sim.settings import LedgerKind, ReplayOptions, WorldSettings

#: Most of what a week shows: the jobs come after the first twenty hours.
_DAYS = 3.0
_POLICIES = ("freetrain-oracle",)
_FACTORS = (1.0, 5.0, 20.0)
_PAPERS_S = 10.0
_FIXED_S = (_PAPERS_S, 30.0, 60.0, 120.0, 300.0, 600.0)
#: None: adaptive.
_ALL_S = (None, *_FIXED_S)
#: Percent of samples below the best fixed horizon.
_MOST_BELOW = 0.5
#: Percent above the papers' horizon, on the images at normal costs and 35 jobs.
_MIN_OVER_PAPERS = 10.0


class _Scene(NamedTuple):
    policy: str
    workload: str
    mode: str
    jobs: int
    cost_factor: float

    def __str__(self) -> str:
        costs = f"costs x{self.cost_factor:g}"
        return f"{self.workload}, {self.jobs} jobs, {self.mode}, {costs}, {self.policy}"


def run() -> Iterator[Result]:
    scenes = [
        _Scene(name, workload, mode, jobs, factor)
        for name in _POLICIES
        for workload in (IMAGENET, HPO)
        for mode in ("endless",)
        for jobs in (35, 100)
        for factor in _FACTORS
    ]
    found = run_all(
        {(scene, horizon_s): _case(scene, horizon_s) for scene in scenes for horizon_s in _ALL_S}
    )
    for scene in scenes:
        yield from _results(scene, {horizon_s: found[scene, horizon_s] for horizon_s in _ALL_S})


def _results(scene: _Scene, by_horizon: dict[float | None, Figures]) -> Iterator[Result]:
    adaptive = by_horizon[None]
    best_s = max(_FIXED_S, key=lambda fixed_s: by_horizon[fixed_s].samples)
    over_best = percent([adaptive], [by_horizon[best_s]])[0] - 100.0
    must_beat = scene.workload == IMAGENET and scene.cost_factor == _FACTORS[-1]
    yield Result(
        f"{scene}: adaptive over the best fixed, {best_s:g} s",
        over_best,
        "%",
        "> 0" if must_beat else f">= -{_MOST_BELOW:g}%",
        over_best > 0 if must_beat else over_best >= -_MOST_BELOW,
    )
    if scene.workload == IMAGENET and scene.jobs == 35 and scene.cost_factor == 1.0:
        over_papers = percent([adaptive], [by_horizon[_PAPERS_S]])[0] - 100.0
        yield Result(
            f"{scene}: adaptive over the papers' {_PAPERS_S:g} s",
            over_papers,
            "%",
            f">= {_MIN_OVER_PAPERS:+g}%",
            over_papers >= _MIN_OVER_PAPERS,
        )


def _case(scene: _Scene, horizon_s: float | None) -> Case:
    options = ReplayOptions(
        core=core(horizon_s),
        world=WorldSettings(cost_factor=scene.cost_factor),
        ledger=LedgerKind.PAPERS,
        max_parallel=scene.jobs,
        until_s=_DAYS * DAY_S,
        **MODES[scene.mode],
    )
    return Case(scene.workload, policy(scene.policy), options)
