"""What an objective that starves no job gains over the papers', which the oracle follows."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness import Result
from bench.replays import DAY_S, IMAGENET, MODES, Case, core, percent, run_all, spread
from malletrain.core.settings import ObjectiveKind
from malletrain.sim.policies import policy
from malletrain.sim.settings import LedgerKind, ReplayOptions

_DAYS = 7.0
_SEEDS = range(1)
_HORIZON_S = 120.0
_JOBS = (35, 100)
_OBJECTIVE = ObjectiveKind.BACKLOG
_ORACLE = "freetrain-oracle"
_POLICIES = ("malletrain", _ORACLE)
#: In percent of the samples of the oracle that maximises samples.
_MIN_GAIN = {
    ("finite", 35): 3.0,
    ("finite", 100): 6.0,
    ("endless", 35): -1.0,
    ("endless", 100): -1.0,
}


def run() -> Iterator[Result]:
    asked = [*((name, _OBJECTIVE) for name in _POLICIES), (_ORACLE, ObjectiveKind.SAMPLES)]
    found = run_all(
        {
            (mode, jobs, name, objective, seed): _case(mode, jobs, name, objective, seed)
            for mode, jobs in _MIN_GAIN
            for name, objective in asked
            for seed in _SEEDS
        }
    )
    for (mode, jobs), min_gain in _MIN_GAIN.items():
        samples = [found[mode, jobs, _ORACLE, ObjectiveKind.SAMPLES, seed] for seed in _SEEDS]
        for name in _POLICIES:
            figures = [found[mode, jobs, name, _OBJECTIVE, seed] for seed in _SEEDS]
            gains = [share - 100.0 for share in percent(figures, samples)]
            yield Result(
                f"{IMAGENET}, {jobs} jobs, {mode}, {name}, objective {_OBJECTIVE.value}"
                f" ({spread(gains)}), least gain",
                min(gains),
                "%",
                f">= {min_gain:+g}%",
                min(gains) >= min_gain,
            )


def _case(mode: str, jobs: int, name: str, objective: ObjectiveKind, seed: int) -> Case:
    options = ReplayOptions(
        core=core(_HORIZON_S, objective),
        ledger=LedgerKind.PAPERS,
        max_parallel=jobs,
        until_s=_DAYS * DAY_S,
        seed=seed,
        **MODES[mode],
    )
    return Case(IMAGENET, policy(name), options)
