from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.errors import TraceError
from tests.traces.logs import WHOLE, idle, load_text, note


def line(
    id_: int = 1,
    *,
    submit: float = 0,
    wait: float = 0,
    run: float = 10,
    had: float = 1,
    asked: float = -1,
    status: int = 1,
) -> str:
    fields = (id_, submit, wait, run, had, -1, -1, asked, -1, -1, status, *[-1] * 7)
    return " ".join(map(str, fields)) + "\n"


def test_the_header_tells_of_nodes_processors_and_dates(tmp_path: Path) -> None:
    log = "; Computer: x\n; MaxNodes: 3\n; MaxProcs: 12 (4 each)\n;UnixStartTime: 1000\n"
    log += line(1, submit=5, wait=2, run=10, had=5) + line(2, submit=6, wait=1, run=20, had=1)
    trace = load_text(tmp_path, log, **WHOLE)
    assert (trace.origin_epoch_s, trace.length_s, trace.num_machine_nodes) == (1007, 20, 3)
    assert idle(trace) == [("n1", 10, 20), ("n2", 10, 20)]


def test_without_a_header_a_processor_is_a_node_and_there_is_no_date(tmp_path: Path) -> None:
    trace = load_text(tmp_path, line(1, had=2) + line(2, run=20), **WHOLE)
    assert trace.origin_epoch_s is None
    assert trace.num_machine_nodes == 3
    assert note(trace, "a node was taken to have 1 processor")
    assert note(trace, "the most in use at once").endswith(": 3")


def test_processors_of_a_node_can_be_given(tmp_path: Path) -> None:
    log = "; MaxProcs: 10\n" + line(1, had=5) + line(2, run=20, had=1)
    trace = load_text(tmp_path, log, processors_per_node=4, **WHOLE)
    assert trace.num_machine_nodes == 3
    assert idle(trace) == [("n1", 10, 20), ("n2", 10, 20)]


def test_processors_that_do_not_divide_are_rounded_up(tmp_path: Path) -> None:
    log = "; MaxNodes: 3\n; MaxProcs: 10\n" + line(1, had=5) + line(2, run=20)
    trace = load_text(tmp_path, log, **WHOLE)
    assert note(trace, "processors of a node, 10 on 3 nodes, were rounded up")
    assert ("n1", 10, 20) in idle(trace)


@pytest.mark.parametrize(
    ("job", "rule"),
    [
        (line(status=3), "parts of checkpointed jobs"),
        (line(wait=-1, run=-1, status=5), "jobs that never started"),
        (line(run=-1), "jobs of unknown or negative run time"),
        (line(run=0), "jobs that ended as they started"),
        (line(had=0, asked=0), "jobs without processors"),
        (line(submit=-1), "jobs of unknown or negative submission time"),
    ],
)
def test_jobs_that_had_no_node_are_left_out_and_counted(
    tmp_path: Path, job: str, rule: str
) -> None:
    rest = line(2, submit=100, run=50) + line(3, submit=100, run=70)
    trace = load_text(tmp_path, job + rest, **WHOLE)
    assert note(trace, rule).endswith("left out: 1") or "has a line: 1" in note(trace, rule)
    assert idle(trace) == [("n1", 50, 70)]


@pytest.mark.parametrize(
    ("job", "rule"),
    [
        (line(had=-1, asked=1), "jobs of which only the processors asked for are known"),
        (line(wait=-1), "jobs of unknown waiting time"),
        (line(submit=1) + line(4, run=1), "jobs submitted before the one above them"),
    ],
)
def test_what_is_assumed_of_a_job_is_counted(tmp_path: Path, job: str, rule: str) -> None:
    trace = load_text(tmp_path, job + line(2, submit=5, run=50), **WHOLE)
    assert note(trace, rule).endswith(": 1")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (line() + "1 2 3\n" + line(), "line 2: a job of the Standard Workload Format has 18 num"),
        (line() + line().replace("10", "ten") + line(), "line 2: a job of the Standard Workload"),
        (line() + line(submit=float("nan")) + line(), "line 2: 'nan' must be a number"),
        (line() + line(run=1e308) + line(), "line 2: '1e+308' must be a number"),
        (line() + line(had=1e10) + line(), "line 2: a job of 10000000000 nodes: it must be"),
        (f"; UnixStartTime: {10**400}\n" + line(), "line 1: UnixStartTime is '1000"),
        ("; MaxNodes: many\n" + line(), "line 1: MaxNodes is 'many': it must be a whole number"),
        ("; nothing but comments\n", "no job of it ever had nodes"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(TraceError, match=r"^log\.txt") as caught:
        load_text(tmp_path, text)
    assert error in str(caught.value)


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    trace = load_text(tmp_path, line(1) + line(2, run=20) + "3 11", **WHOLE)
    assert note(trace, "cut off").endswith(": 1")


def test_a_header_that_does_not_know_the_machine_counts_as_none(tmp_path: Path) -> None:
    log = "; MaxNodes: -1\n; MaxProcs: -1\n" + line(1, had=2) + line(2, run=20)
    assert load_text(tmp_path, log, **WHOLE).num_machine_nodes == 3
