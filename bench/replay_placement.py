"""Which nodes: by cabinet, beside the order of joining and perfect knowledge of their lives."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness import Result
from bench.replays import DAY_S, IMAGENET, MODES, Case, core, percent, run_all
from malletrain.core.settings import PlacementKind
from malletrain.sim.policies import policy
from malletrain.sim.settings import LedgerKind, ReplayOptions, WorldSettings

_DAYS = 7.0
_HORIZON_S = 120.0
_POLICY = "freetrain-oracle"
#: Of the gain of perfect knowledge, at the jobs' own costs.
_MIN_SHARE = 0.9
_DEAR = 20.0
#: In percent of samples, at costs that many times as high.
_MIN_GAIN_DEAR = 15.0


def run() -> Iterator[Result]:
    scenes = [
        (mode, jobs, factor)
        for mode in ("finite",)
        for jobs in (35, 100)
        for factor in (1.0, _DEAR)
    ]
    found = run_all(
        {
            (*scene, placement): _case(*scene, placement)
            for scene in scenes
            for placement in PlacementKind
        }
    )
    for scene in scenes:
        mode, jobs, factor = scene
        basis = found[*scene, PlacementKind.JOIN_ORDER]
        by_group, by_life = (
            percent([found[*scene, placement]], [basis])[0] - 100.0
            for placement in (PlacementKind.GROUP, PlacementKind.LIFETIME)
        )
        if factor == _DEAR:
            target, holds = f">= {_MIN_GAIN_DEAR:+g}%", by_group >= _MIN_GAIN_DEAR
        else:
            target, holds = f">= {_MIN_SHARE:.0%} of theirs", by_group >= _MIN_SHARE * by_life
        yield Result(
            f"{IMAGENET}, {jobs} jobs, {mode}, costs x{factor:g}: by cabinet over join order",
            by_group,
            "%",
            target,
            holds,
            "by the nodes' true lives",
            by_life,
        )


def _case(mode: str, jobs: int, factor: float, placement: PlacementKind) -> Case:
    options = ReplayOptions(
        core=core(_HORIZON_S, placement=placement),
        world=WorldSettings(
            cost_factor=factor, knows_node_ends=placement is PlacementKind.LIFETIME
        ),
        ledger=LedgerKind.PAPERS,
        max_parallel=jobs,
        until_s=_DAYS * DAY_S,
        **MODES[mode],
    )
    return Case(IMAGENET, policy(_POLICY), options)
