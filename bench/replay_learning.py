"""What it costs to know nothing of the jobs: learning beside the same allocator with the truth."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from bench.harness import Result
from bench.replays import DAY_S, HPO, IMAGENET, MODES, Case, Figures, core, percent, run_all, spread
from malletrain.sim.policies import policy
from malletrain.sim.settings import LedgerKind, ModelIdentity, ReplayOptions
from malletrain.workloads.generate import Arrival, GeneratorSettings, Powers

_DAYS = 7.0
_SEEDS = range(3)
_HORIZON_S = 120.0
_JOBS = (35, 100)
_ORACLE = "freetrain-oracle"
_LEARNER = "malletrain"
#: With the product's policy, in percent of the oracle's samples.
_MIN_PERCENT = {"finite": 99.0, "endless": 99.5}
_MIN_PERCENT_KNOWN = 99.5
_MIN_PERCENT_POWERS = 98.5
_MAX_PROFILING_PERCENT = 0.3


class _Scene(NamedTuple):
    name: str
    workload: str | GeneratorSettings
    jobs: int
    mode: str

    def __str__(self) -> str:
        return f"{self.name}, {self.jobs} jobs, {self.mode}"


class _Player(NamedTuple):
    policy: str
    identity: ModelIdentity = ModelIdentity.UNKNOWN

    def __str__(self) -> str:
        is_known = self.identity is ModelIdentity.KNOWN
        return f"{self.policy}, models known" if is_known else self.policy


_FILES = [
    _Scene(workload, workload, jobs, mode)
    for workload in (IMAGENET, HPO)
    for mode in MODES
    for jobs in _JOBS
]
#: Speed-up n**a, a uniform in 0.3 ... 1, drawn anew for each seed.
_POWERS = [
    _Scene("powers", Powers(count=jobs, arrival=Arrival.AT_ONCE), jobs, "endless") for jobs in _JOBS
]
_PLAYERS = [
    _Player(_LEARNER),
    _Player("static-prior"),
    _Player("malletrain-inverse-order"),
]
_KNOWN = _Player(_LEARNER, ModelIdentity.KNOWN)


def run() -> Iterator[Result]:
    cases = {
        (scene, player, seed): _case(scene, player, seed)
        for scene in [*_FILES, *_POWERS]
        for player in [_Player(_ORACLE), *_players(scene)]
        for seed in _seeds(scene, player)
    }
    found = run_all(cases)
    for scene in [*_FILES, *_POWERS]:
        for player in _players(scene):
            seeds = _seeds(scene, player)
            figures = [found[scene, player, seed] for seed in seeds]
            oracle = [found[scene, _Player(_ORACLE), _same(scene, seed)] for seed in seeds]
            yield from _results(scene, player, figures, oracle)


def _seeds(scene: _Scene, player: _Player) -> range:
    """A seed draws measurements, and jobs that no file has: others are what one run shows."""
    return _SEEDS if scene in _POWERS or player == _Player(_LEARNER) else _SEEDS[:1]


def _same(scene: _Scene, seed: int) -> int:
    return seed if scene in _POWERS else _SEEDS[0]


def _players(scene: _Scene) -> list[_Player]:
    """Where every job is a model of its own, there is none to be known."""
    return _PLAYERS if scene in _POWERS else [*_PLAYERS, _KNOWN]


def _case(scene: _Scene, player: _Player, seed: int) -> Case:
    options = ReplayOptions(
        core=core(_HORIZON_S),
        ledger=LedgerKind.PAPERS,
        identity=player.identity,
        max_parallel=scene.jobs,
        until_s=_DAYS * DAY_S,
        seed=seed,
        **MODES[scene.mode],
    )
    return Case(scene.workload, policy(player.policy), options)


def _results(
    scene: _Scene, player: _Player, figures: list[Figures], oracle: list[Figures]
) -> Iterator[Result]:
    shares = percent(figures, oracle)
    profiling = [100.0 * one.profiling for one in figures]
    least = _least(scene, player)
    yield Result(
        f"{scene}, {player} ({spread(shares)}), least of the oracle's samples",
        min(shares),
        "%",
        "" if least is None else f">= {least:g}%",
        least is None or min(shares) >= least,
    )
    is_held = player.policy == _LEARNER
    yield Result(
        f"{scene}, {player}, profiling (mean {statistics.fmean(profiling):.3f}), most",
        max(profiling),
        "% of node-seconds",
        f"<= {_MAX_PROFILING_PERCENT:g}%" if is_held else "",
        not is_held or max(profiling) <= _MAX_PROFILING_PERCENT,
    )


def _least(scene: _Scene, player: _Player) -> float | None:
    """Return what must be reached, None where nothing must."""
    if player.policy != _LEARNER:
        return None
    if scene in _POWERS:
        return _MIN_PERCENT_POWERS
    return _MIN_PERCENT_KNOWN if player == _KNOWN else _MIN_PERCENT[scene.mode]
