from __future__ import annotations

import pytest

from malletrain.core.apply import replay
from malletrain.report.data import Comparison, MarkKind, RunReport, gather
from malletrain.report.efficiency import WorkDone, against_static_nodes
from tests.report.story import rate, two_jobs


@pytest.fixture(scope="module")
def run() -> RunReport:
    twin = Comparison(final_loss=0.5, twin_final_loss=0.5001, tolerance=1e-3)
    return gather(two_jobs().events, {"wide": twin})


def test_the_run_ends_with_its_last_job(run: RunReport) -> None:
    story = two_jobs()
    assert run.elapsed_s == pytest.approx(story.at_s - 5 - 1000)
    # Four joined, one killed, three left, three joined; the loss after the end is left out.
    assert run.node_events == 11


def test_a_journal_without_its_oldest_events_gives_the_same_sums(run: RunReport) -> None:
    events = two_jobs().events
    cut = len(events) // 2
    later = gather(events[cut:], {}, replay(events[:cut]))
    assert later.elapsed_s == pytest.approx(run.elapsed_s)
    assert later.node_s == run.node_s
    assert later.goodput == pytest.approx(run.goodput)
    assert later.efficiency == pytest.approx(run.efficiency)
    assert [report.ledger for report in later.jobs] == [report.ledger for report in run.jobs]
    # What is drawn begins where the journal does.
    assert later.usage[0].at_s > 0
    assert later.usage[-1] == run.usage[-1]


def test_usage_follows_the_nodes(run: RunReport) -> None:
    first = next(usage for usage in run.usage if usage.training)
    assert (first.offered, first.training) == (4, {"heavy": 3})
    assert run.usage[-1].training == {}
    [(start_s, end_s)] = run.idle_spans
    assert end_s - start_s == pytest.approx(10)


def test_node_seconds_add_up(run: RunReport) -> None:
    spans = [*(usage.at_s for usage in run.usage), run.elapsed_s]
    offered = sum(
        usage.offered * (end_s - usage.at_s)
        for usage, end_s in zip(run.usage, spans[1:], strict=True)
    )
    assert run.node_s.offered == pytest.approx(offered)
    assert run.equivalent_nodes == pytest.approx(offered / run.elapsed_s)


def test_marks_tell_a_notice_from_a_kill(run: RunReport) -> None:
    kinds = [(mark.kind, mark.nodes) for mark in run.marks]
    assert kinds == [
        (MarkKind.JOINED, 4),
        (MarkKind.KILLED, 1),
        (MarkKind.LEAVING, 3),
        (MarkKind.JOINED, 3),
    ]


def test_a_job_has_its_curve_losses_and_twin(run: RunReport) -> None:
    heavy, wide = run.jobs
    assert [o.nodes for o in heavy.curve.measured] == [1, 2, 3]
    assert heavy.curve.rates[2] == pytest.approx(rate("heavy", 2), rel=0.1)
    assert len(heavy.curve.rates) == 5
    assert heavy.losses[0][1] > heavy.losses[-1][1]
    assert heavy.comparison is None
    assert wide.comparison is not None
    assert wide.comparison.difference == pytest.approx(1e-4)


def test_every_decision_is_kept_with_its_reason(run: RunReport) -> None:
    assert len(run.decisions) == 8
    assert run.decisions[0].reason == "nodes changed -> heavy to 3 nodes"


def _job(done_samples: float, to_s: float, *, max_nodes: int = 4) -> WorkDone:
    rates = [0.0, 10.0, 20.0, 30.0, 40.0][: max_nodes + 1]
    return WorkDone(1, max_nodes, rates, done_samples, wanted_from_s=0.0, wanted_to_s=to_s)


def test_the_efficiency_is_one_where_static_nodes_did_the_work() -> None:
    assert against_static_nodes([_job(10.0 * 20 * 3, to_s=20.0)], nodes=3) == pytest.approx(1.0)


def test_the_efficiency_takes_fractions_of_nodes() -> None:
    assert against_static_nodes([_job(500.0, to_s=20.0)], nodes=2.5) == pytest.approx(1.0)


def test_the_efficiency_divides_nodes_among_the_jobs_that_want_them() -> None:
    # Ten seconds for two jobs of one node each, then ten for the second alone.
    jobs = [_job(100.0, 10.0, max_nodes=1), _job(200.0, 20.0, max_nodes=1)]
    assert against_static_nodes(jobs, nodes=2) == pytest.approx(1.0)


def test_there_is_no_efficiency_without_work_to_do() -> None:
    assert against_static_nodes([], nodes=3) is None
