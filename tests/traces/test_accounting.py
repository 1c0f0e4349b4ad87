from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from malletrain.errors import TraceError, UsageError
from malletrain.traces import hosts
from malletrain.traces.trace import Trace
from tests.traces.logs import WHOLE, idle, load_text, note

HEADER = "JobID|Start|End|Elapsed|State|NodeList\n"
#: Two nodes, one of which is free for the second half of an hour.
REST = (
    "90|2026-01-05T00:00:00|2026-01-05T01:00:00|01:00:00|COMPLETED|n1\n"
    "91|2026-01-05T00:00:00|2026-01-05T00:30:00|00:30:00|COMPLETED|n2\n"
)
IDLE = [("n2", 1800, 3600)]


def load_sacct(directory: Path, *lines: str, **options: Any) -> Trace:
    text = HEADER + REST + "".join(f"{line}\n" for line in lines)
    return load_text(directory, text, **{**WHOLE, **options})


def test_columns_may_stand_in_any_order_beside_others(tmp_path: Path) -> None:
    log = (
        "NodeList|Elapsed|JobName|Start|JobID|ExitCode|\n"
        "n[1-2]|30:00|a|2026-01-05T00:00:00|1|0:0|\n"
        "n1|3600|b|2026-01-05T00:00:00|2|0:0|\n"
    )
    trace = load_text(tmp_path, log, **WHOLE)
    assert idle(trace) == IDLE
    assert trace.origin_epoch_s == 1767571200
    assert note(trace, "jobs that came onto a node which had one").endswith(": 1")


def test_a_dump_without_a_header_needs_its_columns(tmp_path: Path) -> None:
    columns = tuple(HEADER.strip().split("|"))
    assert idle(load_text(tmp_path, REST, columns=columns, **WHOLE)) == IDLE
    with pytest.raises(UsageError, match="--columns cannot apply: the log's first line names"):
        load_text(tmp_path, HEADER + REST, columns=columns)


def test_a_csv_export_counts_nodes(tmp_path: Path) -> None:
    log = (
        "job_id,name,nodes_req,start_time,end_time,run_time,state\n"
        '1,"a, b",2,2026-01-05 00:00:00,2026-01-05 00:30:00,1800.0,COMPLETED\n'
        "2,c,1,2026-01-05 00:00:00,2026-01-05 01:00:00,3600.0,TIMEOUT\n"
    )
    trace = load_text(tmp_path, log, nodes=3, **WHOLE)
    assert idle(trace) == [("n1", 1800, 3600), ("n2", 1800, 3600)]
    assert note(trace, "nodes are those that jobs asked for")


def test_tasks_of_an_array_under_one_id_all_count(tmp_path: Path) -> None:
    log = "job_id,nnodes,start,end\n" + "7,1,2026-01-05,2026-01-06\n" * 2
    log += "8,1,2026-01-05,2026-01-07\n"
    trace = load_text(tmp_path, log, **WHOLE)
    assert trace.num_machine_nodes == 3
    assert note(trace, "kept as tasks of an array").endswith(": 1")


SPAN = "2026-01-05T00:10:00|2026-01-05T00:20:00|00:10:00"


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (f"1.batch|{SPAN}|COMPLETED|n2", "job steps"),
        (f"1.0|{SPAN}|COMPLETED|n2", "job steps"),
        ("1_[4-10]|Unknown|Unknown|00:00:00|PENDING|None assigned", "never started"),
        ("1|None|2026-01-05T00:10:00|00:00:00|CANCELLED by 7|None assigned", "never started"),
        (
            "1|2026-01-05T00:10:00|2026-01-05T00:10:00|00:00:00|CANCELLED|None assigned",
            "never started",
        ),
        ("1|2026-01-05T00:10:00|2026-01-05T00:10:00|00:00:00|FAILED|n2", "ended as they started"),
        ("1|2026-01-05T09:10:00|2026-01-05T00:10:00||FAILED|n2", "ended before they started"),
        (f"1|{SPAN}|COMPLETED|None assigned", "jobs without nodes"),
        ("1|2026-01-05T00:10:00|Unknown||FAILED|n2", "ended at an unknown time"),
        (REST.splitlines()[0], "lines that repeat another"),
    ],
)
def test_what_had_no_nodes_of_its_own_is_left_out_and_counted(
    tmp_path: Path, line: str, rule: str
) -> None:
    trace = load_sacct(tmp_path, line)
    assert idle(trace) == IDLE
    assert ": 1" in note(trace, rule)


@pytest.mark.parametrize("id_", ["12_3", "12+1", "12", "90"])
def test_tasks_components_and_each_run_of_a_requeued_job_count(tmp_path: Path, id_: str) -> None:
    line = f"{id_}|2026-01-05T00:30:00|2026-01-05T00:45:00|00:15:00|COMPLETED|n2"
    assert idle(load_sacct(tmp_path, line)) == [("n2", 2700, 3600)]


def test_a_job_that_still_runs_does_so_until_the_last_moment_known(tmp_path: Path) -> None:
    suspended = "1|2026-01-05T00:45:00|Unknown|00:10:00|SUSPENDED|n2"
    assert idle(load_sacct(tmp_path, suspended)) == [("n2", 1800, 2700)]
    running = "2|2026-01-05T00:50:00|Unknown|00:20:00|RUNNING|n3"
    trace = load_sacct(tmp_path, suspended, running)
    assert idle(trace) == [("n3", 0, 3000), ("n2", 1800, 2700), ("n1", 3600, 4200)]
    assert note(trace, "still running").endswith(": 2")


def test_an_unknown_end_follows_from_elapsed(tmp_path: Path) -> None:
    trace = load_sacct(tmp_path, "1|2026-01-05T00:30:00|Unknown|00:15:00|NODE_FAIL|n2")
    assert idle(trace) == [("n2", 2700, 3600)]
    assert note(trace, "jobs of unknown end").endswith(": 1")


def test_the_delimiter_may_stand_in_the_one_column_that_users_fill(tmp_path: Path) -> None:
    log = HEADER.replace("JobID", "JobID|JobName") + REST.replace("|2026", "|a|b|2026", 1).replace(
        "91|", "91|c|"
    )
    assert idle(load_text(tmp_path, log, **WHOLE)) == IDLE
    with pytest.raises(TraceError, match=r"line 4: it has 7 columns, and 6 were expected"):
        load_sacct(tmp_path, "1|a" + REST[2:].splitlines()[0])


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (f"|{SPAN}|COMPLETED|n2", "it names no job"),
        ("1|yesterday|2026-01-05|1|COMPLETED|n2", "Start is 'yesterday': it must be a time such"),
        ("1|2026-01-05|2026-01-05|long|COMPLETED|n2", "Elapsed is 'long': it must be seconds, or"),
        (f"1|{SPAN}|COMPLETED|n[1-", "'n[1-' is no host list such as nd[01-04,07]"),
        (f"1|{SPAN}|COMPLETED|n[1-9999999]", "has more than 1,000,000 hosts"),
        (f"1|{SPAN}|COMPLETED|n[1-{'9' * 5000}]", "has more than 1,000,000 hosts"),
        (f"1|{SPAN}|COMPLETED|a[0-600000],b[0-600000]", "has more than 1,000,000 hosts"),
        (f"1|{SPAN}|COMPLETED|a[0-9999]b[0-9999]", "has more than 1,000,000 hosts"),
        (f"1|{SPAN}|COMPLETED|n\x1b[1-2]", "is no host list such as nd[01-04,07]"),
        ("1|2026-01-05", "it has 2 columns, and 6 were expected"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, error: str) -> None:
    with pytest.raises(TraceError, match=r"^log\.txt, line 4: ") as caught:
        load_sacct(tmp_path, line)
    assert error in str(caught.value)


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    trace = load_text(tmp_path, HEADER + REST + "92|2026-01-05T00:30", **WHOLE)
    assert idle(trace) == IDLE
    assert note(trace, "cut off").endswith(": 1")


@pytest.mark.parametrize(
    ("header", "error"),
    [
        ("JobID|End|NodeList", "a column is missing: Start or start_time; there are JobID, End"),
        ("JobID|Start|NodeList", "a column is missing: End or end_time or Elapsed"),
        ("JobID|Start|End", "a column is missing: NodeList or NNodes or nodes_req"),
        ("JobID|Start|Start|End|NodeList", "the column Start is there twice"),
    ],
)
def test_a_column_that_is_missing_is_named(tmp_path: Path, header: str, error: str) -> None:
    with pytest.raises(TraceError, match=r"^log\.txt, line 1: ") as caught:
        load_text(tmp_path, header + "\n")
    assert error in str(caught.value)


def test_host_lists_are_expanded() -> None:
    assert hosts.expand("nd[01-03,07],login1") == ("login1", "nd01", "nd02", "nd03", "nd07")
    assert hosts.expand("r[1-2]n[1-2]") == ("r1n1", "r1n2", "r2n1", "r2n2")
    assert hosts.expand("None assigned") == ()


def json_job(**fields: Any) -> dict[str, Any]:
    job = {
        "job_id": 1,
        "time": {"start": 1000, "end": 1060, "submission": 990, "elapsed": 60},
        "state": {"current": "COMPLETED", "reason": "None"},
        "nodes": "n[1-2]",
    }
    return {**job, **fields}


LONGER = json_job(job_id=2, time={"start": 1000, "end": 1100}, nodes="n1")
OF_SLURM_23 = json_job(
    state={"current": ["COMPLETED"], "reason": "None"},
    time={"start": {"set": True, "infinite": False, "number": 1000}, "end": 1060},
    nodes={"count": 2, "range": "n[1-2]", "list": ["n1", "n2"]},
    array={"job_id": 7, "task_id": {"set": True, "infinite": False, "number": 3}},
    het={"job_id": 0, "job_offset": {"set": False, "infinite": False, "number": 0}},
)


def load_json(directory: Path, *jobs: Any) -> Trace:
    return load_text(directory, msgspec.json.encode({"jobs": jobs}).decode(), **WHOLE)


@pytest.mark.parametrize("job", [json_job(), OF_SLURM_23, json_job(state=["COMPLETED"])])
def test_json_of_older_and_newer_plug_ins_is_read(tmp_path: Path, job: Any) -> None:
    trace = load_json(tmp_path, job, LONGER)
    assert idle(trace) == [("n2", 60, 100)]
    assert trace.origin_epoch_s == 1000


@pytest.mark.parametrize(
    ("job", "rule"),
    [
        (json_job(state=["RUNNING"], time={"start": 1050, "end": 0}, nodes="n1"), "still running"),
        (json_job(state={"current": "PENDING"}, time={"start": 0}, nodes=""), "never started"),
        (json_job(reservation={"name": "Maintenance"}), "jobs of a maintenance reservation"),
    ],
)
def test_the_rules_are_those_of_other_dumps(tmp_path: Path, job: Any, rule: str) -> None:
    assert ": 1" in note(load_json(tmp_path, json_job(job_id=3), LONGER, job), rule)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"jobs": [\n{"job_id": 1,\n}]}', "log.txt, line 3: JSON is malformed"),
        ('{"jobs": [\n{"job_id": 1,', "log.txt, line 2: Input data was truncated"),
        ('{"tasks": []}', "log.txt: it is no `sacct --json` dump: Object missing required"),
        ('{"jobs": [{"job_id": 1, "time": 5}]}', "`$.jobs[0].time`"),
        ('{"jobs": [{"job_id": 1, "time": {}, "nodes": "n["}]}', "log.txt, job 1 of the list: "),
        (
            '{"jobs": [{"job_id": 1, "time": {"end": 1e300}}]}',
            "job 1 of the list: a time of 1e+300",
        ),
        (
            '{"jobs": [{"job_id": 1, "time": {}, "allocation_nodes": 1.5}]}',
            "job 1 of the list: a job of 1.5 nodes: it must be a whole number, 1,000,000 at most",
        ),
    ],
)
def test_json_that_is_no_dump_says_where(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(TraceError) as caught:
        load_text(tmp_path, text)
    assert error in str(caught.value)
