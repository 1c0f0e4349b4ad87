"""Logs of real machines, where they are at hand, and those that come with the product."""

from __future__ import annotations

import gzip

import pytest

from examples.replay import make_inputs
from malletrain.traces.load import load
from malletrain.traces.stats import size_at, summary
from malletrain.traces.trace import Trace, TraceOptions
from tests.traces.logs import ROOT, note, shared


def check(trace: Trace) -> None:
    """Check what every trace promises."""
    keys = [(i.from_s, i.node) for i in trace.intervals]
    assert keys == sorted(keys)
    free_at_s: dict[str, float] = {}
    for interval in trace.intervals:
        assert free_at_s.get(interval.node, -1) < interval.from_s < interval.to_s
        assert interval.to_s <= trace.length_s
        free_at_s[interval.node] = interval.to_s
    if trace.num_machine_nodes is not None:
        assert len(free_at_s) <= trace.num_machine_nodes


def test_summits_first_week_has_the_published_statistics() -> None:
    trace = load(shared("summit/idle-week1.csv.gz"), TraceOptions(nodes=4734))
    check(trace)
    found = summary(trace)
    assert found.intervals == 209_196
    assert found.events == pytest.approx(11_000, rel=0.05)
    assert found.median_event_gap_s == 30
    assert found.idle_share == pytest.approx(0.083, abs=0.015)
    assert size_at(found.join_sizes, 0.5) == 4
    assert size_at(found.join_sizes, 1.0) == 2780
    assert found.share_leaving_by_age[2] == pytest.approx(0.057, abs=0.001)
    assert sum(found.share_of_count[:2]) == pytest.approx(0.56, abs=0.05)


def test_theta_counts_processors_that_are_nodes() -> None:
    trace = load(shared("workload-logs/theta_1000.swf"), TraceOptions())
    check(trace)
    assert trace.num_machine_nodes == 4360
    assert 0.1 < (summary(trace).idle_share or 0) < 0.3


def test_eagle_has_arrays_under_one_id_and_only_the_nodes_asked_for() -> None:
    trace = load(shared("workload-logs/eagle-sample.csv"), TraceOptions(nodes=2100))
    check(trace)
    assert note(trace, "kept as tasks of an array").endswith(": 41")
    assert note(trace, "nodes are those that jobs asked for")


def test_slurms_two_dumps_of_one_machine_agree() -> None:
    options = TraceOptions(warm_up_s=0, drain_s=0)
    table = load(shared("slurm-samples/sacct_P.txt"), options)
    dump = load(shared("slurm-samples/sacct.json"), options)
    check(table)
    assert table.intervals == dump.intervals
    assert table.num_machine_nodes == dump.num_machine_nodes == 5


def test_the_bundled_logs_are_what_their_script_makes() -> None:
    directory = ROOT / "examples" / "replay"
    text = "\n".join(make_inputs.accounting(make_inputs.SMALL)) + "\n"
    assert (directory / "accounting.txt").read_text() == text
    made = gzip.decompress(make_inputs.idle_log(make_inputs.CABINETS))
    assert gzip.decompress((directory / "idle.csv.gz").read_bytes()) == made


@pytest.mark.parametrize(("name", "nodes"), [("accounting.txt", 32), ("idle.csv.gz", 64)])
def test_the_bundled_logs_can_be_replayed(name: str, nodes: int) -> None:
    trace = load(ROOT / "examples" / "replay" / name, TraceOptions())
    check(trace)
    found = summary(trace)
    assert found.nodes == nodes
    assert 0.05 < found.mean_idle_nodes / nodes < 0.25
    # A few long pieces have most of the idle time.
    assert found.mean_interval_s > 1.5 * found.median_interval_s


def test_the_bundled_accounting_has_what_accounting_has() -> None:
    trace = load(ROOT / "examples" / "replay" / "accounting.txt", TraceOptions())
    for rule in ("job steps", "never started", "still running", "maintenance reservation"):
        assert note(trace, rule)
