from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from malletrain.core.settings import CoreSettings
from malletrain.errors import UsageError
from malletrain.replay.compare import Comparison, Progress, part
from malletrain.replay.request import asked, prepared, workload
from malletrain.sim.engine import Interrupted
from malletrain.sim.policies import policy
from malletrain.traces.load import load
from malletrain.traces.stats import summary
from malletrain.traces.trace import Trace, TraceOptions
from tests.replay.replay_files import write_jobs, write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return load(write_trace(tmp_path / "idle.csv"), TraceOptions())


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    return str(write_jobs(tmp_path / "jobs.toml"))


def compared(
    trace: Trace,
    jobs: str,
    policies: tuple[str, ...] = ("malletrain", "fifo"),
    seeds: tuple[int, ...] = (0, 1),
    **settings: Any,
) -> Comparison:
    return Comparison(
        trace=trace,
        workload=cache(partial(workload, jobs)),
        policies=[policy(name) for name in policies],
        seeds=seeds,
        request=asked(settings, CoreSettings()),
    )


def test_all_policies_are_replayed_with_all_seeds_and_add_up(trace: Trace, jobs: str) -> None:
    result = compared(trace, jobs).run()
    assert [(run.policy, run.seed) for run in result.policies] == [
        ("malletrain", 0),
        ("fifo", 0),
        ("malletrain", 1),
        ("fifo", 1),
    ]
    assert result.is_complete
    assert result.jobs == 5
    for run in result.policies:
        node_s = run.node_s
        parts = (node_s.training, node_s.rescaling, node_s.profiling, node_s.preempted, node_s.idle)
        assert sum(parts) == pytest.approx(node_s.offered)
        assert run.done_samples == pytest.approx(sum(job.done_samples for job in run.jobs))


def test_settings_are_those_that_are_not_the_default(trace: Trace, jobs: str) -> None:
    settings = {"max_parallel": 2, "horizon": 60, "world": {"cost_factor": 5.0}}
    result = compared(trace, jobs, seeds=(3,), **settings).run()
    assert result.settings == (
        "max_parallel = 2",
        "horizon = 60",
        "world.cost_factor = 5",
        "seeds = 3",
    )
    assert any("times 5" in line for line in result.assumptions)
    assert compared(trace, jobs, seeds=(0,)).run().settings == ()


def test_the_papers_replay_starts_at_the_first_submission(trace: Trace, jobs: str) -> None:
    papers = compared(trace, jobs, ("freetrain-oracle",), (0,), ledger="papers").run()
    assert papers.policies[0].series.start_s == 100.0
    assert papers.trace.length_s == trace.length_s - 100.0
    assert any("first submission" in line for line in papers.assumptions)
    told = {"ledger": "papers", "from": 0.0}
    assert compared(trace, jobs, ("fifo",), (0,), **told).run().policies[0].series.start_s == 0.0


def test_samples_do_not_heed_weights_and_weighted_do(tmp_path: Path) -> None:
    jobs = workload(str(write_jobs(tmp_path / "jobs.toml", more="weight = 9.0\n")), 0)
    weights = {
        name: {job.weight for job in prepared(request, jobs, 0)[0].jobs}
        for name in ("samples", "weighted", "speedup")
        for request in [asked({"objective": name}, CoreSettings())]
    }
    assert weights == {"samples": {1.0}, "weighted": {1.0, 9.0}, "speedup": {1.0, 9.0}}


def test_a_generators_jobs_are_drawn_for_each_seed(trace: Trace) -> None:
    drawn = compared(trace, "hpo:count=3,max_nodes=4,gap_s=5", ("fifo",)).run()
    assert "drawn anew for each of 2 seeds" in drawn.workload
    first, second = (run.jobs for run in drawn.policies)
    assert [job.work_samples for job in first] != [job.work_samples for job in second]
    fixed = compared(trace, "hpo:count=3,max_nodes=4,gap_s=5,seed=7", ("fifo",)).run()
    assert "drawn anew" not in fixed.workload


def test_an_interruption_keeps_what_there_is(trace: Trace, jobs: str) -> None:
    told: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        told.append(progress)
        if progress.policy == "fifo":
            raise Interrupted

    result = compared(trace, jobs).run(interrupt)
    assert [run.policy for run in result.policies] == ["malletrain"]
    assert not result.is_complete
    assert "interrupted" in result.assumptions[0]
    assert [progress.share for progress in told][-1] == 0.25


def test_an_interrupted_run_is_kept_as_far_as_it_came(tmp_path: Path, jobs: str) -> None:
    long = load(write_trace(tmp_path / "long.csv", nodes=16, rounds=120), TraceOptions())

    def interrupt(progress: Progress) -> None:
        if progress.share > 0:
            raise Interrupted

    result = compared(long, jobs, ("malletrain",), (0,)).run(interrupt)
    (run,) = result.policies
    whole = compared(long, jobs, ("malletrain",), (0,)).run().policies[0]
    assert 0 < run.node_s.offered < whole.node_s.offered
    assert not result.is_complete
    assert "malletrain with seed 0 goes up to" in result.assumptions[0]


def test_ctrl_c_inside_a_run_keeps_the_runs_before_it(trace: Trace, jobs: str) -> None:
    def press(progress: Progress) -> None:
        if progress.seed == 1:
            raise KeyboardInterrupt

    result = compared(trace, jobs).run(press)
    assert [(run.policy, run.seed) for run in result.policies] == [("malletrain", 0), ("fifo", 0)]
    assert not result.is_complete


def test_a_part_of_a_trace_is_a_trace(trace: Trace) -> None:
    cut = part(trace, 1000.0, 3000.0)
    assert cut.length_s == 2000.0
    assert min(piece.from_s for piece in cut.intervals) == 0.0
    assert max(piece.to_s for piece in cut.intervals) <= 2000.0
    within = sum(
        min(piece.to_s, 3000.0) - max(piece.from_s, 1000.0)
        for piece in trace.intervals
        if piece.from_s < 3000.0 and piece.to_s > 1000.0
    )
    assert summary(cut).idle_node_s == pytest.approx(within)
    assert part(trace, 0.0, trace.length_s) is trace


DEADLINE = "deadline_s = 900.0\n"
WEIGHT = "weight = 2.0\n"
#: Settings, what the last job has, policies, and what is said.
REFUSALS: dict[str, tuple[dict[str, Any], str, tuple[str, ...], str]] = {
    "repeat": ({"repeat": True}, "", ("fifo",), r"--repeat needs .* --max-parallel"),
    "repeat-endless": (
        {"repeat": True, "endless": True, "max_parallel": 2},
        "",
        ("fifo",),
        "--endless cannot apply with --repeat",
    ),
    "weighted": ({"objective": "weighted"}, "", ("malletrain",), "all jobs .* the same weight"),
    "deadline": ({"objective": "deadline"}, WEIGHT, ("malletrain",), "has a deadline"),
    "deadline-endless": (
        {"objective": "deadline", "endless": True},
        DEADLINE,
        ("malletrain",),
        "ever ends",
    ),
    "objective-heedless": ({"objective": "fair"}, "", ("fifo", "equal-share"), "--objective"),
    "horizon-heedless": ({"horizon": 60}, "", ("fifo",), "--horizon cannot apply: fifo"),
    "models-told": ({"models": "known"}, "", ("freetrain-oracle",), "--models known cannot"),
    "until-late": ({"until": 1e6}, "", ("fifo",), "--until 1000000 cannot apply: idle.csv ends at"),
    "from-late": ({"from": 1e6}, "", ("fifo",), "--from 1000000 cannot apply: idle.csv ends at"),
    "until-early": ({"from": 900, "until": 900}, "", ("fifo",), "must be after --from 900"),
    "no-job-yet": ({"until": 100}, "", ("fifo",), "no job of jobs is submitted before"),
    "papers-grace": (
        {"ledger": "papers", "world": {"grace_s": 5.0}},
        "",
        ("fifo",),
        "world grace_s cannot apply with --ledger papers",
    ),
    "retry": (
        {"world": {"message_retry_s": 9.0}},
        "",
        ("fifo",),
        "message_retry_s means nothing where lost_message_share is 0",
    ),
    "slow": ({"world": {"slow_node_speed": 0.5}}, "", ("fifo",), "slow_node_share is 0"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_apply_is_refused(name: str, trace: Trace, tmp_path: Path) -> None:
    settings, more, policies, said = REFUSALS[name]
    jobs = str(write_jobs(tmp_path / "jobs.toml", more=more))
    with pytest.raises(UsageError, match=said):
        compared(trace, jobs, policies, (0,), **settings).check()


def test_what_one_of_several_policies_heeds_can_apply(trace: Trace, jobs: str) -> None:
    compared(trace, jobs, horizon=60, models="known").check()


def test_a_part_without_idle_nodes_is_refused(tmp_path: Path, jobs: str) -> None:
    log = tmp_path / "gap.csv"
    log.write_text("node,idle_from_s,idle_to_s\nn1,0,200\nn1,4000,5000\n")
    gap = load(log, TraceOptions())
    with pytest.raises(UsageError, match=r"no node of gap\.csv is idle from 300 to 2000 s"):
        compared(gap, jobs, **{"from": 300, "until": 2000}).check()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"objective": "sampels"}, "did you mean samples"),
        ({"horizon": "adaptiv"}, "it must be adaptive, or seconds"),
        ({"horizon": 0}, "it must be adaptive, or seconds"),
        ({"horizon": float("nan")}, "horizon = nan: it must be"),
        ({"max_parallel": 0}, "max_parallel = 0: it must be from 1"),
        ({"max_paralel": 3}, "did you mean max_parallel"),
        ({"repeat": 1}, "repeat = 1: it must be true or false"),
        ({"world": {"gracs_s": 3}}, "world: unknown key 'gracs_s': did you mean grace_s"),
        ({"world": {"slow_node_speed": 0.0}}, "slow_node_speed = 0.0: it must be from 0.001 to 1"),
        ({"world": {"knows_node_ends": "yes"}}, "it must be true or false"),
        ({"world": 3}, "world = 3: it must be a table"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(settings, CoreSettings())
