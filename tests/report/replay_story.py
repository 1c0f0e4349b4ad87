"""A made-up replay, as the engine would tell it: it adds up, and says nothing of any machine."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from random import Random

import msgspec

from malletrain.sim.results import (
    CurveComparison,
    JobResult,
    NodeSeconds,
    PolicyResult,
    ReplayResult,
    Series,
)
from malletrain.traces.stats import TraceSummary

DAY_S = 86400.0
BINS = 288
NODES = (1, 2, 4, 8, 16, 32, 64)
#: How much of the node-seconds a policy makes training of, of what is not rescaling or lost.
SKILL = {"malletrain": 0.96, "equal-share": 0.88, "fifo": 0.71}
#: Samples/s on one node, and the exponent by which they grow.
CURVES = {"convnet": (900.0, 0.93), "transformer": (55.0, 0.97), "small-net": (5200.0, 0.6)}


def replay(
    policies: Sequence[str] = ("malletrain", "equal-share", "fifo"),
    seeds: int = 3,
    jobs: int = 200,
    curves: Sequence[str] = tuple(CURVES),
    *,
    is_endless: bool = False,
) -> ReplayResult:
    offered = _offered()
    return ReplayResult(
        trace=_trace(offered),
        workload="a made-up day: three models",
        jobs=jobs,
        settings=("max_parallel = 35", "horizon = 120"),
        assumptions=(
            "The machine has 512 nodes, as an option says.",
            "3 lines whose end is before their start were left out.",
        ),
        policies=tuple(
            _run(policy, seed, offered, _jobs(policy, seed, jobs, curves, is_endless), curves)
            for policy in policies
            for seed in range(seeds)
        ),
        is_complete=True,
    )


def _offered() -> tuple[float, ...]:
    """Return nodes by bin: more at night, and none at all for a while."""
    chance, level, nodes = Random(7), 0.0, []
    for index in range(BINS):
        level = 0.9 * level + chance.gauss(0, 5)
        wave = 45 + 25 * math.cos(2 * math.pi * index / BINS)
        nodes.append(0.0 if 150 <= index < 162 else round(max(wave + level, 0.0), 1))
    return tuple(nodes)


def _trace(offered: Sequence[float]) -> TraceSummary:
    idle_node_s = sum(offered) * DAY_S / BINS
    return TraceSummary(
        source="made-up.csv",
        length_s=DAY_S,
        nodes=512,
        intervals=1900,
        events=1955,
        median_event_gap_s=21.0,
        idle_node_s=idle_node_s,
        mean_idle_nodes=idle_node_s / DAY_S,
        median_idle_nodes=sorted(offered)[BINS // 2],
        idle_share=idle_node_s / DAY_S / 512,
        median_interval_s=340.0,
        mean_interval_s=idle_node_s / 1900,
        p95_interval_s=9100.0,
        duration_bounds_s=(60.0, 300.0, 900.0, 3600.0, 14400.0),
        share_of_count=(0.18, 0.29, 0.21, 0.17, 0.11, 0.04),
        share_of_time=(0.003, 0.024, 0.06, 0.168, 0.445, 0.3),
        ages_s=(0.0, 60.0, 600.0, 3600.0),
        share_leaving_by_age=(0.12, 0.08, 0.04, 0.01),
        join_sizes=((1, 610), (2, 130), (3, 52), (4, 40), (8, 21), (16, 12), (48, 4), (100, 2)),
        leave_sizes=((1, 820), (2, 160), (4, 61), (7, 20), (16, 9), (64, 2)),
    )


def _skill(policy: str, seed: int) -> float:
    return SKILL.get(policy, 0.8) * (1 + 0.02 * Random(f"{policy} {seed}").random())


def _jobs(
    policy: str, seed: int, jobs: int, curves: Sequence[str], is_endless: bool
) -> list[JobResult]:
    chance, skill = Random(f"{seed}"), _skill(policy, seed)
    return [_job(index, curves, skill, chance, is_endless) for index in range(jobs)]


def _run(
    policy: str, seed: int, offered: Sequence[float], told: list[JobResult], curves: Sequence[str]
) -> PolicyResult:
    skill = _skill(policy, seed)
    node_s = _node_s(sum(offered) * DAY_S / BINS, skill)
    told = _sharing(told, node_s)
    done_samples = sum(job.done_samples for job in told)
    ended = [job.finished_at_s for job in told if job.finished_at_s is not None]
    return PolicyResult(
        policy=policy,
        seed=seed,
        length_s=DAY_S,
        done_samples=done_samples,
        done_one_node_s=0.8 * (node_s.training + node_s.profiling),
        makespan_s=max(ended) if len(ended) == len(told) else None,
        events=7421,
        decisions=2310,
        jobs_finished=len(ended),
        jobs_unfinished=len(told) - len(ended),
        node_s=node_s,
        overtime_node_s=1450.0 / skill,
        longest_overtime_s=9.5 / skill,
        redone_samples=done_samples * 0.004,
        scale_ups=sum(job.scale_ups for job in told),
        scale_downs=sum(job.scale_downs for job in told),
        losses=sum(job.losses for job in told),
        series=_series(offered, skill, told, done_samples),
        jobs=tuple(told),
        curves=tuple(_curve(name, policy == "malletrain") for name in curves),
        journal_sha256=hashlib.sha256(f"{policy} {seed}".encode()).hexdigest(),
    )


def _node_s(offered: float, skill: float) -> NodeSeconds:
    parts = {"rescaling": 0.021, "profiling": 0.002, "preempted": 0.004, "training": skill - 0.03}
    node_s = {name: share * offered for name, share in parts.items()}
    return NodeSeconds(offered=offered, idle=offered - sum(node_s.values()), **node_s)


def _job(
    index: int, curves: Sequence[str], skill: float, chance: Random, is_endless: bool
) -> JobResult:
    curve = curves[index % len(curves)]
    submitted_at_s = index * 300.0 % (0.8 * DAY_S)
    ends_at_s = submitted_at_s + chance.lognormvariate(8.6, 1.0) / skill**3
    is_over = ends_at_s < DAY_S and not is_endless
    one_node, _ = CURVES.get(curve, (700.0, 0.9))
    done = one_node * chance.lognormvariate(9.0, 0.8) * skill
    return JobResult(
        id=f"job-{index}",
        job_class=curve,
        curve=curve,
        submitted_at_s=submitted_at_s,
        started_at_s=submitted_at_s + 20.0,
        finished_at_s=ends_at_s if is_over else None,
        done_samples=done,
        work_samples=None if is_endless else done if is_over else 2 * done,
        used_node_s=done / one_node,
        profiling_node_s=30.0,
        scale_ups=chance.randrange(12),
        scale_downs=chance.randrange(9),
        losses=chance.randrange(3),
    )


def _sharing(jobs: Sequence[JobResult], node_s: NodeSeconds) -> list[JobResult]:
    """Let the jobs' node-seconds be those that were used."""
    factor = (node_s.offered - node_s.idle) / sum(job.used_node_s for job in jobs)
    return [msgspec.structs.replace(job, used_node_s=factor * job.used_node_s) for job in jobs]


def _series(
    offered: Sequence[float], skill: float, jobs: Sequence[JobResult], done_samples: float
) -> Series:
    bin_s = DAY_S / BINS
    used = sum(job.used_node_s for job in jobs)
    held: dict[str, tuple[float, ...]] = {}
    for name in dict.fromkeys(job.job_class for job in jobs):
        share = sum(job.used_node_s for job in jobs if job.job_class == name) / used
        held[name] = tuple(skill * share * nodes for nodes in offered)
    goodput = [done_samples / bin_s * nodes / sum(offered) for nodes in offered]
    return Series(
        start_s=0.0,
        bin_s=bin_s,
        offered_nodes=tuple(offered),
        nodes_by_class=held,
        samples_per_s=tuple(rate * (1.02 if i % 9 == 0 else 1.0) for i, rate in enumerate(goodput)),
        goodput_samples_per_s=tuple(goodput),
    )


def _curve(name: str, is_learning: bool) -> CurveComparison:
    one_node, exponent = CURVES.get(name, (700.0, 0.9))
    true = [one_node * nodes**exponent for nodes in NODES]
    off = [0.03 * (-1) ** index * index / 3 if is_learning else 0.2 for index in range(len(NODES))]
    learned = [rate * (1 + error) for rate, error in zip(true, off, strict=True)]
    width = [0.02 + 0.03 * index for index in range(len(NODES))]
    return CurveComparison(
        model=name,
        nodes=NODES,
        true_samples_per_s=tuple(true),
        learned_samples_per_s=tuple(learned),
        low_samples_per_s=tuple(r * (1 - w) for r, w in zip(learned, width, strict=True)),
        high_samples_per_s=tuple(r * (1 + w) for r, w in zip(learned, width, strict=True)),
        measured_nodes=(1, 4, 16) if is_learning else (),
    )
