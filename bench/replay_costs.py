"""What cheap rescales are worth: the papers' jobs' own stalls beside those in one process."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness import Result
from bench.replays import DAY_S, IMAGENET, MODES, Case, core, percent, run_all
from malletrain.sim.policies import policy
from malletrain.sim.settings import LedgerKind, ReplayOptions, WorldSettings

_DAYS = 7.0
_HORIZONS_S = (120.0, 10.0)
_POLICIES = ("freetrain-oracle",)
#: The jobs' own, 18 s up and 12 s down; and what `bench rescale` has measured, rounded up.
_OWN = WorldSettings()
_IN_PROCESS = WorldSettings(scale_up_s=1.0, scale_down_s=0.1)
#: (horizon, jobs) -> gain in percent that a prototype's replay of finite jobs had.
_PROTOTYPE = {(120.0, 35): 5.5, (120.0, 100): 4.3, (10.0, 35): 15.0, (10.0, 100): 10.0}


def run() -> Iterator[Result]:
    scenes = [
        (mode, horizon_s, jobs, name)
        for mode in ("finite",)
        for horizon_s, jobs in _PROTOTYPE
        for name in _POLICIES
    ]
    cheap = run_all({scene: _case(*scene, _IN_PROCESS) for scene in scenes})
    dear = run_all({scene: _case(*scene, _OWN) for scene in scenes})
    for scene in scenes:
        mode, horizon_s, jobs, name = scene
        (share,) = percent([cheap[scene]], [dear[scene]])
        has_prototype = mode == "finite" and name == _POLICIES[0]
        yield Result(
            f"{IMAGENET}, {jobs} jobs, {mode}, horizon {horizon_s:g} s, {name}:"
            " 1/0.1 s over 18/12 s",
            share - 100.0,
            "%",
            reference="a prototype, measured before" if has_prototype else None,
            reference_value=_PROTOTYPE[horizon_s, jobs] if has_prototype else None,
        )


def _case(mode: str, horizon_s: float, jobs: int, name: str, world: WorldSettings) -> Case:
    options = ReplayOptions(
        core=core(horizon_s),
        world=world,
        ledger=LedgerKind.PAPERS,
        max_parallel=jobs,
        until_s=_DAYS * DAY_S,
        **MODES[mode],
    )
    return Case(IMAGENET, policy(name), options)
