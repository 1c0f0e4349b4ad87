"""The papers' accounting: hours to train their job lists, beside what their replayer says."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bench.harness import Result
from bench.replays import HPO, IMAGENET, Case, core, run_all
from malletrain.sim.policies import policy
from malletrain.sim.settings import LedgerKind, ReplayOptions

#: The papers' horizon.
_HORIZON_S = 10.0
_TOLERANCE = 0.02
_OPTIMUM = "freetrain-oracle"
_EQUAL_SHARE = "equal-share"
_ALL = None
#: Jobs in parallel -> hours from the first submission to the last completion, of the papers' public
#: replayer with a count optimum in the place of its solver; and of their equal-share heuristic.
_REFERENCE_H = {
    (HPO, _OPTIMUM): {10: 67.2, 35: 48.4, 100: 48.0, _ALL: 46.4},
    (HPO, _EQUAL_SHARE): {10: 75.4, _ALL: 48.5},
    (IMAGENET, _OPTIMUM): {10: 87.3, 35: 56.0, 100: 52.1, _ALL: 49.5},
    (IMAGENET, _EQUAL_SHARE): {10: 89.2, _ALL: 52.4},
}


def run() -> Iterator[Result]:
    cases = {
        (workload, name, jobs): Case(workload, policy(name), _options(jobs))
        for workload, name in _REFERENCE_H
        for jobs in (10, 35, 100, _ALL)
    }
    for key, figures in run_all(cases).items():
        workload, name, jobs = key
        hours = math.nan if figures.makespan_s is None else figures.makespan_s / 3600.0
        reference_h = _REFERENCE_H[workload, name].get(jobs)
        is_held = name == _OPTIMUM and reference_h is not None
        error = abs(hours / reference_h - 1.0) if reference_h else math.nan
        yield Result(
            f"{workload}, {jobs or 'all'} jobs, {name}",
            hours,
            "h",
            f"within {_TOLERANCE:.0%} of the reference" if is_held else "",
            not is_held or error <= _TOLERANCE,
            None if reference_h is None else "the papers' replayer, measured before",
            reference_h,
        )


def _options(jobs: int | None) -> ReplayOptions:
    return ReplayOptions(core=core(_HORIZON_S), ledger=LedgerKind.PAPERS, max_parallel=jobs)
