"""What a replay costs: a week of Summit, the papers' cut, the growth with each of its sizes."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator

from bench.harness import Result
from bench.replays import DAY_S, IMAGENET, Case, Figures, core, run_alone
from malletrain.sim.policies import policy
from malletrain.sim.settings import LedgerKind, ReplayOptions, WorldSettings

_DAYS = 7.0
_LIMITS_S = {100: 10.0, 1_000: 30.0}
_MOST_BYTES = 1e9
_TENTHS = 10

_NOTHING_FAILS = WorldSettings()
#: A world in which much is drawn.
_MUCH_FAILS = WorldSettings(crashes_per_node_day=0.1, lost_message_share=0.01, slow_node_share=0.05)

_CUT = slice(100)
_CUT_JOBS = "hpo-shufflenet-10"
_CUT_REPETITIONS = 5
#: Node events a second of the papers' public replayer with its MILP in CBC, 10 jobs on 100 nodes,
#: at its best; 26 at its worst. Measured on a machine with 2 cores, 81 to 86% of it in the solver.
_PAPERS_MOMENTS_PER_S = 37.0
_MIN_RATIO = 200


def run() -> Iterator[Result]:
    week = {}
    for ledger in LedgerKind:
        for jobs, limit_s in _LIMITS_S.items():
            figures = run_alone(_case(jobs, ledger=ledger))
            yield from _week(
                f"week, {jobs:,} endless jobs, {ledger.value} ledger", figures, limit_s
            )
            if ledger is LedgerKind.EXACT:
                week[jobs] = figures
    yield from _papers_cut()
    yield from _growth(week)
    yield _same_twice()


def _case(
    jobs: int,
    *,
    ledger: LedgerKind = LedgerKind.EXACT,
    part: tuple[float, float] = (0.0, 1.0),
    nodes: slice | None = None,
    world: WorldSettings = _NOTHING_FAILS,
) -> Case:
    """Return so many endless jobs, in a part of the week and on nodes, both all unless said."""
    options = ReplayOptions(
        core=core(None),
        world=world,
        ledger=ledger,
        max_parallel=jobs,
        endless=True,
        from_s=part[0] * _DAYS * DAY_S,
        until_s=part[1] * _DAYS * DAY_S,
    )
    return Case(IMAGENET, policy("malletrain"), options, nodes, is_at_once=True)


def _week(name: str, figures: Figures, limit_s: float) -> Iterator[Result]:
    """Tell the processor's time: others that use this machine's cores do not count."""
    cpu_s = figures.load_cpu_s + figures.cpu_s
    yield Result(
        f"{name}, with {figures.load_cpu_s:.1f} s to read the trace",
        cpu_s,
        "s",
        f"<= {limit_s:g} s on one core",
        cpu_s <= limit_s,
        "by the clock",
        cpu_s - figures.cpu_s + figures.wall_s,
    )
    yield Result(
        f"{name}, peak memory",
        figures.peak_bytes / 1e6,
        "MB",
        f"<= {_MOST_BYTES / 1e6:g} MB",
        figures.peak_bytes <= _MOST_BYTES,
    )


def _papers_cut() -> Iterator[Result]:
    told = policy("freetrain-oracle")
    options = ReplayOptions(
        core=core(10.0), ledger=LedgerKind.PAPERS, endless=True, until_s=_DAYS * DAY_S
    )
    case = Case(_CUT_JOBS, told, options, _CUT, is_at_once=True)
    ours = statistics.median(_moments_per_s(case) for _ in range(_CUT_REPETITIONS))
    milp = dataclasses.replace(told, name="papers-milp", allocator="papers-milp-half-range-bug")
    yield Result(
        f"papers' cut, {ours / 26:,.0f} times their slowest",
        ours,
        "moments/s",
        f">= {_MIN_RATIO}x their fastest",
        ours >= _MIN_RATIO * _PAPERS_MOMENTS_PER_S,
        "the papers' public loop, measured before",
        _PAPERS_MOMENTS_PER_S,
    )
    yield Result(
        "papers' cut, their programme by counts in HiGHS, in this engine",
        _moments_per_s(dataclasses.replace(case, policy=milp)),
        "moments/s",
    )


def _moments_per_s(case: Case) -> float:
    figures = run_alone(case)
    return figures.moments / figures.cpu_s


def _growth(week: dict[int, Figures]) -> Iterator[Result]:
    """Tell how the time grows where one size does; `week` are 100 and 1,000 jobs on all nodes."""
    hundred, thousand = week[100], week[1_000]
    # Each tenth of the week by itself: a part of the trace that is busier than others is in both.
    tenths = [
        run_alone(_case(100, part=(tenth / _TENTHS, (tenth + 1) / _TENTHS)))
        for tenth in range(_TENTHS)
    ]
    tenth_s = statistics.fmean(tenth.cpu_s for tenth in tenths)
    tenth_moments = statistics.fmean(tenth.moments for tenth in tenths)
    events = hundred.moments / tenth_moments
    n_log_n = 1 + math.log(math.log(hundred.moments) / math.log(tenth_moments), events)
    exponent = math.log(hundred.cpu_s / tenth_s, events)
    yield Result(
        f"events x{events:.1f}: {tenth_s:.2f} to {hundred.cpu_s:.2f} s, exponent",
        exponent,
        "",
        f"<= {n_log_n:.2f}, n log n",
        exponent <= n_log_n,
    )
    few_nodes = run_alone(_case(100, nodes=slice(None, None, 10)))
    moments = f"{few_nodes.moments:,} to {hundred.moments:,} moments"
    yield Result(
        f"nodes x10, {moments}: {few_nodes.cpu_s:.2f} to {hundred.cpu_s:.2f} s, exponent",
        math.log10(hundred.cpu_s / few_nodes.cpu_s),
        "",
    )
    ten = run_alone(_case(10))
    for name, few, many in (("10 to 100", ten, hundred), ("100 to 1,000", hundred, thousand)):
        exponent = math.log10(many.cpu_s / few.cpu_s)
        yield Result(
            f"jobs {name}: {few.cpu_s:.2f} to {many.cpu_s:.2f} s, exponent",
            exponent,
            "",
            "<= 1, linear",
            exponent <= 1.0,
        )


def _same_twice() -> Result:
    """Replay twice, in processes whose hashes of text differ."""
    first, second = (run_alone(_case(100, world=_MUCH_FAILS)) for _ in range(2))
    return Result(
        "same seed twice, with crashes, lost messages and slow nodes",
        first.decisions,
        "decisions",
        "identical journals, byte for byte",
        first.journal_sha256 == second.journal_sha256 and first.decisions == second.decisions,
    )
