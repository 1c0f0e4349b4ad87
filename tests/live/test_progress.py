"""Pooled reports of progress say what the single ones said, and come when they are needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.core.actions import Rescale
from malletrain.core.apply import replay
from malletrain.core.events import (
    AnyEvent,
    CheckpointSaved,
    DecisionTaken,
    JobFinished,
    JobSubmitted,
    NodesJoined,
    NodesLost,
    ProgressReported,
    RescaleDone,
    WokeUp,
)
from malletrain.core.model import Cluster, JobSpec, Node, Pin, Scalability
from malletrain.core.scalability import MEMORY_STEPS, observe
from malletrain.live.inbox import Entry
from malletrain.live.progress import ProgressPool, pooled, with_progress_pooled

EVERY_S = 5.0
PINNED_EVERY_S = 1.0


def progress(job: str = "x", samples: float = 0.0, **changes: Any) -> ProgressReported:
    fields = {
        "at_s": 1.0,
        "job_id": job,
        "generation": 1,
        "nodes": 1,
        "samples": samples,
        "steps": 1,
        "samples_per_s": 1.0,
        "variance": 0.0,
    }
    return ProgressReported(**(fields | changes))


def training(*jobs: str, pins: dict[str, Pin] | None = None) -> Cluster:
    """Each of these jobs trains in generation 1 on a node of its own name."""
    specs = [JobSpec(id=j, name=j, min_nodes=1, max_nodes=4, model_key=j) for j in jobs]
    events: list[AnyEvent] = [
        NodesJoined(at_s=1.0, nodes=tuple(Node(id=j, opened_at_s=1.0) for j in jobs)),
        *(JobSubmitted(at_s=1.0, spec=spec) for spec in specs),
        DecisionTaken(
            at_s=1.0,
            actions=tuple(Rescale(j, 1, (j,)) for j in jobs),
            pins=pins or {},
            reason="",
        ),
        *(
            RescaleDone(at_s=1.0, job_id=j, generation=1, node_ids=(j,), stall_s=0.0, samples=0.0)
            for j in jobs
        ),
    ]
    return replay(events)


class Desk:
    """A pool, and the time."""

    def __init__(self, cluster: Cluster) -> None:
        self.pool = ProgressPool(EVERY_S, PINNED_EVERY_S)
        self.cluster = cluster
        self.now_s = 100.0

    def sift(self, *events: AnyEvent, after_s: float = 0.0) -> list[AnyEvent]:
        self.now_s += after_s
        entries = self.pool.sift([Entry(event) for event in events], self.cluster, self.now_s)
        return [entry.event for entry in entries]

    @property
    def due_in_s(self) -> float | None:
        due_at_s = self.pool.due_at_s(self.cluster)
        return None if due_at_s is None else due_at_s - self.now_s


# -- pooling ---------------------------------------------------------------------------------------

windows = st.builds(
    progress,
    samples=st.floats(0, 1e9),
    steps=st.integers(0, 60),
    samples_per_s=st.floats(0.1, 1e5),
    variance=st.floats(0, 1e8),
    loss=st.none() | st.floats(-10, 10),
)


def observed(reports: Sequence[ProgressReported]) -> Scalability:
    known = Scalability()
    for report in reports:
        known = observe(known, 1, report.samples_per_s, report.variance, report.steps)
    return known


@given(st.lists(windows, min_size=1, max_size=12))
def test_the_curve_is_the_same_as_from_the_single_reports(reports: list[ProgressReported]) -> None:
    pool = reports[0]
    for report in reports[1:]:
        pool = pooled(pool, report)
    assert pool.steps == sum(report.steps for report in reports) <= MEMORY_STEPS
    assert pool.samples == max(report.samples for report in reports)
    losses = [report.loss for report in reports if report.loss is not None]
    assert pool.loss == (losses[-1] if losses else None)
    for one, other in zip(
        observed([pool]).observations, observed(reports).observations, strict=True
    ):
        assert one.count == other.count
        assert one.samples_per_s == pytest.approx(other.samples_per_s)
        scale = max(report.samples_per_s for report in reports) ** 2
        assert one.variance == pytest.approx(other.variance, rel=1e-6, abs=1e-9 * scale)


def test_pooled_windows_have_the_mean_and_variance_of_all_their_steps() -> None:
    pool = pooled(
        progress(steps=2, samples_per_s=3.0, variance=1.0),  # steps of 2 and 4
        progress(steps=4, samples_per_s=8.0, variance=1.0),  # steps of 7, 7, 9 and 9
    )
    rates = [2, 4, 7, 7, 9, 9]
    mean = sum(rates) / 6
    assert pool.samples_per_s == pytest.approx(mean)
    assert pool.variance == pytest.approx(sum((rate - mean) ** 2 for rate in rates) / 6)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_measurement_does_not_spoil_the_others(rate: float) -> None:
    good = progress(samples=5.0, steps=3, samples_per_s=7.0, variance=2.0)
    bad = progress(samples=6.0, steps=3, samples_per_s=rate, variance=math.nan)
    for pool in (pooled(good, bad), pooled(bad, good)):
        assert (pool.steps, pool.samples_per_s, pool.variance) == (3, 7.0, 2.0)
        assert pool.samples == 6.0


def test_while_nothing_can_be_written_reports_of_a_job_are_one() -> None:
    checkpoint = CheckpointSaved(at_s=1.0, job_id="x", samples=1.0)
    events = [progress("x", 1), checkpoint, progress("y", 1), progress("x", 2)]
    kept = with_progress_pooled(Entry(event) for event in events)
    assert [entry.event for entry in kept] == [
        progress("x", 2, steps=2),
        checkpoint,
        progress("y", 1),
    ]


# -- when it is journalled -------------------------------------------------------------------------


def test_the_first_report_of_a_generation_goes_at_once_the_next_wait() -> None:
    desk = Desk(training("x"))
    assert desk.sift(progress("x", 1)) == [progress("x", 1)]
    assert desk.sift(progress("x", 2), after_s=1.0) == []
    assert desk.sift(progress("x", 3), after_s=1.0) == []
    assert desk.due_in_s == 3.0
    assert desk.sift(after_s=3.0) == [progress("x", 3, steps=2)]
    assert desk.due_in_s is None


def test_the_first_measurement_of_a_generation_goes_at_once() -> None:
    desk = Desk(training("x"))
    warming = progress("x", 1, steps=0, samples_per_s=0.0)
    assert desk.sift(warming) == [warming]
    assert desk.sift(progress("x", 2, steps=0), after_s=0.5) == []
    (measured,) = desk.sift(progress("x", 3), after_s=0.5)
    assert measured == progress("x", 3)
    assert desk.sift(progress("x", 4), after_s=0.5) == []


def test_the_next_generation_is_not_pooled_with_the_last() -> None:
    desk = Desk(training("x"))
    desk.sift(progress("x", 1))
    desk.sift(progress("x", 2))
    old, new = desk.sift(progress("x", 3, generation=2))
    assert old == progress("x", 2)
    assert new == progress("x", 3, generation=2)


@pytest.mark.parametrize(
    "event",
    [
        CheckpointSaved(at_s=1.0, job_id="x", samples=1.0),
        JobFinished(at_s=1.0, job_id="x", samples=1.0),
        NodesLost(at_s=1.0, node_ids=("x",)),
    ],
)
def test_what_happens_to_the_job_finds_its_progress_journalled(event: AnyEvent) -> None:
    desk = Desk(training("x", "y"))
    desk.sift(progress("x", 1), progress("y", 1))
    desk.sift(progress("x", 2), progress("y", 2))
    assert desk.sift(event) == [progress("x", 2), event]


def test_what_happens_elsewhere_does_not() -> None:
    desk = Desk(training("x", "y"))
    desk.sift(progress("x", 1))
    desk.sift(progress("x", 2))
    for event in (NodesLost(at_s=1.0, node_ids=("y",)), WokeUp(at_s=1.0)):
        assert desk.sift(event) == [event]


def test_a_job_that_is_being_measured_does_not_wait_long() -> None:
    desk = Desk(training("x", pins={"x": Pin(nodes=1, since_s=1.0, reason="")}))
    desk.sift(progress("x", 1))
    desk.sift(progress("x", 2), after_s=0.5)
    assert desk.due_in_s == 0.5
    assert desk.sift(after_s=0.5) == [progress("x", 2)]


def test_a_forgotten_job_leaves_nothing() -> None:
    desk = Desk(training("x"))
    desk.sift(progress("x", 1))
    desk.sift(progress("x", 2))
    desk.pool.forget("x")
    assert desk.due_in_s is None
    assert desk.sift(after_s=100.0) == []


@given(
    st.lists(
        st.one_of(
            st.builds(
                progress,
                st.sampled_from(["x", "y"]),
                st.integers(0, 99).map(float),
                generation=st.sampled_from([1, 2]),
                samples_per_s=st.floats(1, 10),
                loss=st.none() | st.floats(0, 1),
            ),
            st.builds(
                lambda j, n: CheckpointSaved(at_s=1.0, job_id=j, samples=float(n)),
                st.sampled_from(["x", "y"]),
                st.integers(0, 99),
            ),
            st.builds(lambda j: NodesLost(at_s=1.0, node_ids=(j,)), st.sampled_from(["x", "y"])),
        ),
        max_size=15,
    )
)
def test_in_the_end_the_state_is_that_of_the_single_reports(events: list[AnyEvent]) -> None:
    start = training("x", "y")
    desk = Desk(start)
    for event in events:
        desk.cluster = replay(desk.sift(event), desk.cluster)
    pooled_state = replay(desk.sift(after_s=EVERY_S), desk.cluster)
    single_state = replay(events, start)
    for job_id, job in single_state.jobs.items():
        other = pooled_state.jobs[job_id]
        assert (job.done_samples, job.saved_samples) == (other.done_samples, other.saved_samples)
        assert job.node_ids == other.node_ids
        assert job.loss == other.loss
    assert pooled_state.ledger == single_state.ledger
    assert pooled_state.curves.keys() == single_state.curves.keys()
    for key, curve in single_state.curves.items():
        for one, two in zip(curve.observations, pooled_state.curves[key].observations, strict=True):
            assert one.count == two.count
            assert one.samples_per_s == pytest.approx(two.samples_per_s)
