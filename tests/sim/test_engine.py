from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from malletrain.core.apply import apply, check
from malletrain.core.events import AnyEvent, DecisionTaken, JobSubmitted, NodesLost
from malletrain.core.model import Cluster
from malletrain.core.settings import CoreSettings, HorizonSettings, ObjectiveKind
from malletrain.errors import InvariantError
from malletrain.sim import engine
from malletrain.sim.engine import Interrupted
from malletrain.sim.policies import POLICIES
from malletrain.sim.results import PolicyResult
from malletrain.sim.settings import LedgerKind, ModelIdentity, ReplayOptions, WorldSettings
from malletrain.traces.load import load
from malletrain.traces.trace import TraceOptions
from malletrain.workloads import file as workload_file
from tests.sim import scenes
from tests.sim.scenes import idle, job, workload

#: The papers' trace and workloads, not ours to bundle.
DATA = Path(os.environ.get("MALLETRAIN_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
WEEK = DATA / "summit" / "idle-week1.csv.gz"
HPO = DATA / "workloads" / "hpo-shufflenet-1000.json"

ROUGH = WorldSettings(
    grace_s=5.0,
    crashes_per_node_day=40.0,
    lost_message_share=0.2,
    slow_node_share=0.2,
    report_every_s=60.0,
)
INTERVALS = scenes.drawn_intervals(2)
WORK = scenes.drawn_workload(2)

worlds = st.builds(
    WorldSettings,
    grace_s=st.sampled_from([0.0, 1.0, 30.0, 300.0]),
    pilot_start_s=st.sampled_from([0.0, 15.0]),
    worker_start_s=st.sampled_from([0.0, 10.0, 60.0]),
    loss_notice_s=st.sampled_from([0.0, 1.0]),
    decision_delay_s=st.sampled_from([0.0, 0.02, 3.0]),
    cost_factor=st.sampled_from([0.0, 1.0, 10.0]),
    checkpoint_every_s=st.sampled_from([20.0, 600.0]),
    measure_after_s=st.sampled_from([5.0, 20.0]),
    report_every_s=st.sampled_from([10.0, 120.0]),
    crashes_per_node_day=st.sampled_from([0.0, 40.0, 400.0]),
    lost_message_share=st.sampled_from([0.0, 0.3]),
    slow_node_share=st.sampled_from([0.0, 0.3]),
    knows_node_ends=st.booleans(),
)
backlogs = st.sampled_from(
    [{}, {"endless": True}, {"max_parallel": 2}, {"max_parallel": 3, "repeat": True}]
)


def in_all(backlog: dict[str, object], objective: ObjectiveKind, **more: object) -> ReplayOptions:
    return ReplayOptions(core=CoreSettings(objective=objective), **backlog, **more)


all_options = st.builds(
    in_all,
    backlog=backlogs,
    objective=st.sampled_from(ObjectiveKind),
    world=worlds,
    ledger=st.sampled_from(LedgerKind),
    identity=st.sampled_from(ModelIdentity),
    from_s=st.sampled_from([0.0, 300.0]),
    until_s=st.sampled_from([None, 900.0]),
    seed=st.integers(0, 2**20),
)


def checked(cluster: Cluster, event: AnyEvent) -> Cluster:
    cluster = apply(cluster, event)
    check(cluster)
    return cluster


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    options=all_options,
    shape=st.tuples(st.sampled_from([2, 8, 16]), st.sampled_from([60.0, 400.0])),
    work=st.tuples(st.integers(1, 7), st.sampled_from([50.0, 1500.0])),
    name=st.sampled_from(list(POLICIES)),
)
def test_whatever_happens_every_node_second_and_every_sample_is_accounted_for(
    options: ReplayOptions, shape: tuple[int, float], work: tuple[int, float], name: str
) -> None:
    seed = options.seed
    trace = scenes.drawn_intervals(seed, num_nodes=shape[0], length_s=1200.0, mean_s=shape[1])
    jobs = scenes.drawn_workload(seed, num_jobs=work[0], work_s=work[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "apply", checked)
        result = scenes.result(trace, jobs, options, name=name)  # raises if it does not add up
    assert_consistent(result)


def assert_consistent(result: PolicyResult) -> None:
    node_s = result.node_s
    parts = (node_s.training, node_s.rescaling, node_s.profiling, node_s.preempted, node_s.idle)
    assert min(parts) >= 0.0
    assert sum(parts) == pytest.approx(node_s.offered)
    used = sum(job.used_node_s for job in result.jobs)
    assert used == pytest.approx(node_s.offered - node_s.idle, abs=1e-6)
    assert sum(job.done_samples for job in result.jobs) == pytest.approx(result.done_samples)
    assert all(
        job.finished_at_s is None or job.done_samples == job.work_samples for job in result.jobs
    )
    assert_series_integrate(result)


def assert_series_integrate(result: PolicyResult) -> None:
    series = result.series
    offered = sum(series.offered_nodes) * series.bin_s
    assert offered == pytest.approx(result.node_s.offered, rel=1e-4, abs=1e-3)
    goodput = sum(series.goodput_samples_per_s) * series.bin_s
    # Each bin is rounded off, to six digits of what may have been far more.
    gross = sum(map(abs, series.goodput_samples_per_s)) * series.bin_s
    assert goodput == pytest.approx(result.done_samples, abs=1e-4 * gross + 1e-3)
    redone = sum(series.samples_per_s) * series.bin_s - goodput
    assert redone == pytest.approx(result.redone_samples, abs=1e-4 * gross + 1e-3)


def test_a_ledger_that_does_not_add_up_is_an_error() -> None:
    replay = scenes.replay(INTERVALS, WORK)
    replay.world.recorder.offered(0.0, 1.0)
    with pytest.raises(InvariantError, match="node-seconds offered"):
        replay.run()
    replay = scenes.replay(INTERVALS, WORK)
    replay.world.recorder.charged(5.0, 1.0)
    with pytest.raises(InvariantError, match="samples"):
        replay.run()


# -- one seed, one answer --------------------------------------------------------------------------


def run_with_journal(options: ReplayOptions) -> tuple[PolicyResult, bytes]:
    journal = BytesIO()
    return scenes.result(INTERVALS, WORK, options, journal=journal), journal.getvalue()


def test_one_seed_gives_one_journal_and_another_seed_another() -> None:
    options = ReplayOptions(world=ROUGH, seed=7)
    result, journal = run_with_journal(options)
    assert (result, journal) == run_with_journal(options)
    lines = journal.splitlines()
    assert len(lines) == result.decisions > 50
    assert all(msgspec.json.decode(line, type=DecisionTaken) for line in lines)
    other, other_journal = run_with_journal(replace(options, seed=8))
    assert other_journal != journal
    assert other.journal_sha256 != result.journal_sha256


def test_no_process_decides_otherwise_for_its_order_of_sets() -> None:
    program = (
        "from tests.sim import test_engine as t;"
        "from malletrain.sim.settings import ReplayOptions;"
        "print(t.run_with_journal(ReplayOptions(world=t.ROUGH))[0].journal_sha256)"
    )
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        output = subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[2],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(output.stdout)
    assert len(digests) == 1


def told(name: str, kind: type[AnyEvent], options: ReplayOptions) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    replay = scenes.replay(INTERVALS, WORK, options, name=name)
    tell = replay._apply
    replay._apply = lambda event: (events.append(event), tell(event))  # type: ignore[method-assign]
    replay.run()
    return [event for event in events if isinstance(event, kind)]


def test_nodes_crash_at_the_same_times_whoever_decides() -> None:
    options = ReplayOptions(world=replace(ROUGH, crashes_per_node_day=100.0, grace_s=0.0))
    crashes = [
        [(event.at_s, event.node_ids) for event in told(name, NodesLost, options)]
        for name in ("malletrain", "fifo", "freetrain-shuffled")
    ]
    assert len(crashes[0]) > 50
    assert crashes[0] == crashes[1] == crashes[2]


def test_jobs_come_in_at_the_same_times_whoever_decides() -> None:
    options = ReplayOptions(world=ROUGH)
    arrivals = [
        [(event.at_s, event.spec.id) for event in told(name, JobSubmitted, options)]
        for name in ("malletrain", "equal-share")
    ]
    assert arrivals[0] == arrivals[1]


# -- totals ----------------------------------------------------------------------------------------


def test_the_makespan_is_from_the_first_submission_to_the_last_end() -> None:
    trace = [idle("n0", 0, 1000)]
    start_s = 10.02
    one = job("a", submitted_at_s=50.0, max_nodes=1, work_samples=1000.0)
    two = replace(one, id="b", submitted_at_s=300.0)
    result = scenes.result(trace, workload(one, two), name="freetrain-oracle")
    assert result.makespan_s == pytest.approx(300 + start_s + 100 - 50)
    part = scenes.result(
        trace, workload(one, two), ReplayOptions(from_s=100.0), name="freetrain-oracle"
    )
    assert part.makespan_s == pytest.approx(300 + start_s + 100 - 100)
    endless = replace(two, work_samples=None)
    unfinished = scenes.result(trace, workload(one, endless), name="freetrain-oracle")
    assert unfinished.makespan_s is None
    assert (unfinished.jobs_finished, unfinished.jobs_unfinished) == (1, 1)


def test_a_replay_of_a_part_ends_there() -> None:
    result = scenes.result(INTERVALS, WORK, ReplayOptions(from_s=600.0, until_s=1800.0))
    inside = (min(i.to_s, 1800.0) - max(i.from_s, 600.0) for i in INTERVALS)
    idle_s = sum(max(each, 0.0) for each in inside)
    assert (result.series.start_s, result.series.bin_s) == (600.0, pytest.approx(1200 / 336))
    # Beside what we held beyond the time at which it was wanted back.
    assert 0.0 <= result.node_s.offered - idle_s <= result.overtime_node_s + 1e-6


def test_an_interrupted_replay_counts_what_there_is() -> None:
    seen: list[float] = []

    def stop(at_s: float, _end_s: float) -> None:
        seen.append(at_s)
        raise Interrupted

    result = scenes.replay(INTERVALS, WORK).run(stop)
    (at_s,) = seen
    assert 0 < at_s < scenes.length_of(INTERVALS)
    assert result.series.bin_s == pytest.approx(at_s / 336)
    assert_consistent(result)


# -- the papers' figures ---------------------------------------------------------------------------


@pytest.mark.skipif(not WEEK.exists(), reason=f"no {WEEK}: set MALLETRAIN_TEST_DATA")
def test_the_papers_ledger_reaches_the_papers_figure() -> None:
    """Their replayer takes 48.4 hours for 1,000 trials, 35 at a time, looking 10 s ahead."""
    trace = load(WEEK, TraceOptions())
    work = workload_file.read(HPO)
    options = ReplayOptions(
        core=CoreSettings(objective=ObjectiveKind.SAMPLES, horizon=HorizonSettings(fixed_s=10.0)),
        ledger=LedgerKind.PAPERS,
        max_parallel=35,
        from_s=work.jobs[0].submitted_at_s,
        # Beyond, nothing is left to do.
        until_s=work.jobs[0].submitted_at_s + 49.5 * 3600,
    )
    result = scenes.result(trace.intervals, work, options, name="freetrain-oracle")
    assert result.makespan_s is not None
    assert result.makespan_s / 3600 == pytest.approx(48.4, rel=0.02)
