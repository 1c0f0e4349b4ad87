from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.errors import TraceError, UsageError
from malletrain.traces import period
from malletrain.traces.derive import derive
from malletrain.traces.jobs import JobLog, JobRecord
from malletrain.traces.tally import Tally
from malletrain.traces.trace import Trace, TraceOptions
from tests.traces.logs import WHOLE, idle, note

HOUR_S = 3600.0


def job(
    start_s: float, end_s: float, nodes: int | str, *, id_: str = "", **fields: Any
) -> JobRecord:
    ids = tuple(nodes.split()) if isinstance(nodes, str) else ()
    return JobRecord(
        id=id_ or f"{start_s}-{end_s}-{nodes}",
        submitted_at_s=fields.pop("submitted_at_s", None),
        started_at_s=start_s,
        ended_at_s=end_s,
        nodes=len(ids) if isinstance(nodes, str) else nodes,
        node_ids=ids,
        **fields,
    )


def derived(
    *jobs: JobRecord, of_period: bool = False, header: int | None = None, **options: Any
) -> Trace:
    log = JobLog(jobs=jobs, num_machine_nodes=header, is_of_period=of_period)
    return derive(log, "log", TraceOptions(**options), Tally())


def test_nodes_that_are_named_are_the_machine() -> None:
    trace = derived(job(0, 10, "b"), job(5, 20, "a b"), job(12, 15, "b"), **WHOLE)
    assert trace.num_machine_nodes == 2
    assert idle(trace) == [("a", 0, 5)]
    assert note(trace, "a node which had one").endswith(": 2")


def test_times_count_from_the_periods_start_and_the_log_tells_when_that_was() -> None:
    trace = derived(job(1000, 1010, "a"), job(1000, 1050, "b"), **WHOLE)
    assert (trace.origin_epoch_s, trace.length_s) == (1000, 50)
    assert idle(trace) == [("a", 10, 50)]


def test_the_group_is_the_name_without_its_number() -> None:
    trace = derived(job(0, 10, "h50n16"), job(0, 20, "h50n17"), **WHOLE)
    assert trace.intervals[0].group == "h50n"


def test_jobs_go_to_the_lowest_free_nodes() -> None:
    jobs = [job(0, 10, 2), job(0, 20, 1), job(10, 20, 1), job(12, 20, 1)]
    trace = derived(*jobs, nodes=10, **WHOLE)
    assert idle(trace)[:2] == [("n04", 0, 20), ("n05", 0, 20)]
    assert ("n02", 10, 12) in idle(trace)
    assert not any(node in ("n01", "n03") for node, *_ in idle(trace))


def test_a_job_that_exceeds_the_machine_has_what_is_free() -> None:
    trace = derived(job(0, 10, 2), job(5, 3605, 3, id_="x"), job(0, 3610, 1), header=4, **WHOLE)
    assert note(trace, "jobs that exceed the machine").endswith(": 1")
    assert note(trace, "node-hours of jobs beyond the machine").endswith(": 2")
    assert idle(trace) == [("n4", 0, 5), ("n1", 10, 3610), ("n2", 10, 3610), ("n4", 3605, 3610)]


def test_the_size_is_the_users_or_the_headers_or_the_most_in_use() -> None:
    jobs = [job(0, 10, 2), job(10, 20, 3), job(12, 30, 1)]
    assert note(derived(*jobs, header=6, nodes=5, **WHOLE), "as --nodes says").endswith(": 5")
    assert note(derived(*jobs, header=6, **WHOLE), "as the log's header says").endswith(": 6")
    assert note(derived(*jobs, **WHOLE), "the most in use at once").endswith(": 4")


def test_a_size_cannot_be_given_where_nodes_are_named() -> None:
    with pytest.raises(UsageError, match="--nodes cannot apply: the log names its nodes"):
        derived(job(0, 10, "a"), nodes=4, **WHOLE)


def test_the_time_in_which_nothing_was_seen_of_a_node_is_stated() -> None:
    jobs = [job(0, 36000, "a"), job(3600, 7200, "b"), job(7200, 10800, "b")]
    assert note(derived(*jobs, **WHOLE), "before a node's first job or after").endswith(": 8")


def test_a_machine_larger_than_any_is_refused() -> None:
    with pytest.raises(TraceError, match="a machine of 2,000,000 nodes: no more than 1,000,000"):
        derived(job(0, 10, 1), nodes=2_000_000, **WHOLE)


def test_jobs_whose_nodes_alone_are_not_named_are_left_out() -> None:
    trace = derived(job(0, 10, "a"), job(5, 10, 1), job(0, 20, "b"), **WHOLE)
    assert idle(trace) == [("a", 10, 20)]
    assert note(trace, "are not named while others' are").endswith(": 1")


def test_a_long_time_without_any_job_is_an_outage() -> None:
    jobs = [job(0, 100, "a"), job(0, 50, "b"), job(100 + 7 * HOUR_S, 200 + 7 * HOUR_S, "a b")]
    trace = derived(*jobs, **WHOLE)
    assert idle(trace) == [("b", 50, 100)]
    assert note(trace, "outages, 21,600 s or longer").endswith(": 1")
    assert note(trace, "node-hours of outages").endswith(": 14")
    assert len(idle(derived(*jobs, **WHOLE, outage_s=8 * HOUR_S))) == 2


def test_maintenance_is_neither_idle_nor_a_job() -> None:
    whole = derived(
        job(0, 10, "a"),
        job(0, 20, "b"),
        job(20, 20 + 9 * HOUR_S, "b", is_maintenance=True),
        job(20 + 9 * HOUR_S, 30 + 9 * HOUR_S, "a"),
        **WHOLE,
    )
    assert idle(whole) == [("a", 10, 20), ("b", 20 + 9 * HOUR_S, 30 + 9 * HOUR_S)]
    one = derived(job(0, 100, "a"), job(0, 50, "b"), job(50, 90, "b", is_maintenance=True), **WHOLE)
    assert idle(one) == [("b", 90, 100)]


def test_an_outage_takes_its_part_of_what_reaches_over_it() -> None:
    jobs = [job(0, 10, "a"), job(20, 30, "a"), job(0, 2, "b"), job(40, 50, "b")]
    trace = derived(*jobs, **WHOLE, outage_s=10)
    assert idle(trace) == [("b", 2, 10), ("b", 20, 30), ("a", 40, 50)]


def test_the_warm_up_lasts_until_jobs_from_before_are_over() -> None:
    # Even jobs of one length: of those before the log 5% of the node time is left near its end.
    jobs = [job(10 * i, 10 * i + 100, "a" if i % 2 else "b") for i in range(200)]
    trace = derived(*jobs)
    assert trace.origin_epoch_s == 100
    assert note(trace, "cut off at the start").endswith(": 100")


def test_long_jobs_count_by_their_node_time() -> None:
    # The one long job has 80% of all node time, so it decides; a hundred short ones do not.
    jobs = [job(i, i + 10, 1) for i in range(100)] + [job(0, 400, 10), job(3990, 4000, 1)]
    assert derived(*jobs).origin_epoch_s == 400


def test_the_warm_up_lasts_as_long_as_jobs_from_before_may_have_waited() -> None:
    jobs = [job(500 + i, 510 + i, 1, submitted_at_s=i) for i in range(5000)]
    assert derived(*jobs).origin_epoch_s == 510


def test_the_warm_up_takes_no_more_than_a_quarter() -> None:
    trace = derived(job(0, 1000, "a"), job(100, 1100, "b"), job(400, 1300, "c"))
    assert trace.origin_epoch_s == 100
    assert note(trace, "the log is short beside its jobs")


def test_a_dump_of_a_period_begins_with_the_first_end() -> None:
    jobs = [job(-90_000, 7, "a"), job(-10, 50, "b"), job(20, 80, "a"), job(3000, 3001, "b")]
    assert derived(*jobs, of_period=True).origin_epoch_s == 7


def test_the_drain_begins_with_the_last_submission() -> None:
    jobs = [job(0, 10, "a"), job(50, 60, "a"), job(70, 100, "b")]
    trace = derived(*jobs, warm_up_s=0)
    assert trace.length_s == 70
    assert note(trace, "cut off at the end").endswith(": 30")
    told = [job(0, 10, "a", submitted_at_s=0), job(50, 60, "b", submitted_at_s=40)]
    assert derived(*told, warm_up_s=0).length_s == 40


def test_options_cut_from_the_first_start_and_the_last_end() -> None:
    trace = derived(job(100, 200, "a"), job(150, 300, "b"), warm_up_s=20, drain_s=30)
    assert (trace.origin_epoch_s, trace.length_s) == (120, 150)
    assert idle(trace) == [("b", 0, 30), ("a", 80, 150)]


def test_nothing_left_says_how_to_keep_all() -> None:
    with pytest.raises(TraceError, match=r"^nothing is left .* --warm-up-s 0 --drain-s 0"):
        derived(job(0, 10, "a"), warm_up_s=8, drain_s=2)


def test_a_log_without_jobs_says_why() -> None:
    with pytest.raises(TraceError, match=r"^no job of it ever had nodes \(it is empty\)"):
        derived()


NODES = ("a", "b", "c")
spans = st.tuples(st.integers(0, 40), st.integers(1, 15))


def seconds(pieces: list[tuple[str, float, float]]) -> set[tuple[str, int]]:
    """Return the seconds of nodes; no piece may lie upon another."""
    all_ = [(node, at_s) for node, from_s, to_s in pieces for at_s in range(int(from_s), int(to_s))]
    assert len(all_) == len(set(all_))
    return set(all_)


@given(
    st.lists(st.tuples(spans, st.sets(st.sampled_from(NODES), min_size=1)), min_size=1),
    st.integers(0, 10),
    st.integers(0, 10),
    st.integers(1, 12),
)
def test_named_nodes_are_busy_idle_or_out(
    drawn: list[tuple[tuple[int, int], set[str]]], warm_up_s: int, drain_s: int, outage_s: int
) -> None:
    jobs = [job(start, start + run, " ".join(sorted(ids))) for (start, run), ids in drawn]
    first, last = min(j.started_at_s for j in jobs), max(j.ended_at_s for j in jobs)
    from_s, to_s = first + warm_up_s, last - drain_s
    if from_s >= to_s:
        return
    trace = derived(*jobs, warm_up_s=warm_up_s, drain_s=drain_s, outage_s=outage_s)
    moments = range(int(from_s), int(to_s))
    busy = {
        (node, at_s - int(from_s))
        for j in jobs
        for node in j.node_ids
        for at_s in moments
        if j.started_at_s <= at_s < j.ended_at_s
    }
    machine = {node for j in jobs for node in j.node_ids}
    ordered = sorted(jobs, key=lambda j: j.started_at_s)
    outages = period.outages(ordered, (from_s, to_s), outage_s)
    out = seconds([(n, a - from_s, b - from_s) for n in machine for a, b in outages])
    free = seconds(idle(trace))
    assert not free & busy
    assert not out & busy
    assert free | busy | out == {(n, at_s) for n in machine for at_s in range(len(moments))}
    assert len(free) + len(busy) + len(out) == len(machine) * trace.length_s
    assert all(0 <= i.from_s < i.to_s <= trace.length_s for i in trace.intervals)


@given(st.lists(st.tuples(spans, st.integers(1, 6)), min_size=1), st.integers(1, 8))
def test_counted_nodes_are_busy_or_idle(
    drawn: list[tuple[tuple[int, int], int]], num_nodes: int
) -> None:
    jobs = [job(start, start + run, n, id_=f"{i:03}") for i, ((start, run), n) in enumerate(drawn)]
    trace = derived(*jobs, nodes=num_nodes, **WHOLE, outage_s=1000)
    held: list[tuple[JobRecord, int]] = []
    for j in sorted(jobs, key=lambda j: (j.started_at_s, j.id)):
        in_use = sum(had for other, had in held if other.ended_at_s > j.started_at_s)
        held.append((j, min(j.nodes, num_nodes - in_use)))
    busy_s = sum(had * (j.ended_at_s - j.started_at_s) for j, had in held)
    free = seconds(idle(trace))
    assert len(free) + busy_s == num_nodes * trace.length_s
    for at_s in range(int(trace.length_s)):
        moment = at_s + min(j.started_at_s for j in jobs)
        in_use = sum(had for j, had in held if j.started_at_s <= moment < j.ended_at_s)
        assert sum(at == at_s for _, at in free) == num_nodes - in_use
