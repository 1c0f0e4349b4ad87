from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from malletrain.errors import TraceError, UsageError
from malletrain.traces.load import load
from malletrain.traces.trace import TraceFormat, TraceOptions
from tests.traces.logs import WHOLE, idle, load_text, note

HEADER = "node,idle_from_s,idle_to_s\n"


def test_intervals_that_touch_are_joined_and_the_rest_sorted(tmp_path: Path) -> None:
    log = HEADER + "b,0,10\na,0,20\nb,10,15\nb,15,30\nb,31,40\n"
    trace = load_text(tmp_path, log)
    assert idle(trace) == [("a", 0, 20), ("b", 0, 30), ("b", 31, 40)]
    assert trace.length_s == 40
    assert trace.origin_epoch_s is None
    assert trace.num_machine_nodes is None
    assert note(trace, "joined").endswith(": 2")


def test_the_last_of_joined_intervals_says_how_they_end(tmp_path: Path) -> None:
    log = "node,idle_from_s,idle_to_s,end\nn,0,1,planned\nn,1,2,kill\n"
    (interval,) = load_text(tmp_path, log).intervals
    assert interval.end.value == "kill"


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    trace = load_text(tmp_path, HEADER + "n,0,1\nn,2")
    assert idle(trace) == [("n", 0, 1)]
    assert note(trace, "cut off").endswith(": 1")


@pytest.mark.parametrize(
    "log", [HEADER + "n,2\nm,0,1", HEADER + "m,0,1\nn,2\n", "node,idle_from_s"]
)
def test_any_other_line_that_cannot_be_read_is_an_error(tmp_path: Path, log: str) -> None:
    with pytest.raises(TraceError, match=r"^log\.txt, line \d: "):
        load_text(tmp_path, log)


def test_a_last_line_without_end_that_can_be_read_counts(tmp_path: Path) -> None:
    assert idle(load_text(tmp_path, HEADER + "n,0,1")) == [("n", 0, 1)]


def test_a_trace_without_idle_time_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"log\.txt: no node is ever idle in it"):
        load_text(tmp_path, HEADER)
    with pytest.raises(TraceError, match="no node is ever idle in it"):
        load_text(tmp_path, "JobID|Start|End|NodeList\n1|2026-01-01|2026-01-02|n1\n", **WHOLE)


LOGS = {
    "idle": HEADER + "n,0,1\n",
    "swf": "; MaxNodes: 2\n1 0 0 9 1 -1 -1 1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1\n",
    "sacct": "JobID|Start|End|NNodes\n1|2026-01-01|2026-01-02|1\n",
    "sacct-json": '{"jobs": [{"job_id": 1, "time": {"start": 1, "end": 9}, "nodes": "a"}]}',
    "csv": "job_id,start_time,end_time,nodes_req\n1,2026-01-01,2026-01-02,1\n",
}
OPTIONS: dict[str, Any] = {
    "nodes": 4,
    "columns": ("JobID",),
    "processors_per_node": 2,
    "time_zone": "Europe/Berlin",
    "warm_up_s": 1.0,
    "drain_s": 1.0,
    "outage_s": 60.0,
}
#: Which of them apply to what.
APPLIES = {
    "idle": {"nodes"},
    "swf": {"nodes", "processors_per_node", "warm_up_s", "drain_s", "outage_s"},
    "sacct": {"nodes", "columns", "time_zone", "warm_up_s", "drain_s", "outage_s"},
    "sacct-json": {"nodes", "warm_up_s", "drain_s", "outage_s"},
    "csv": {"nodes", "columns", "time_zone", "warm_up_s", "drain_s", "outage_s"},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", LOGS)
def test_an_option_that_cannot_apply_is_an_error(tmp_path: Path, name: str, option: str) -> None:
    if option in APPLIES[name]:
        return
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} cannot apply to .* {name}"):
        load_text(tmp_path, LOGS[name], **{option: OPTIONS[option]})


@pytest.mark.parametrize("name", LOGS)
def test_the_first_line_tells_the_format(tmp_path: Path, name: str) -> None:
    """The option that is refused says which format was found."""
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(LOGS[name].encode()))
    refused = {**OPTIONS, "nodes": None}
    with pytest.raises(UsageError, match=f"cannot apply to a log of the format {name}$"):
        load(path, TraceOptions(**refused))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "line 1: it is empty"),
        ("\n\n", "line 1: it is empty"),
        ("PARTITION AVAIL TIMELIMIT\n", "line 1: it is none of the logs known: idle intervals"),
        ("1|2026-01-01|2026-01-02|n1\n", "without it name the --columns"),
        ("<html>\n", "--format says which it is meant to be"),
    ],
)
def test_what_is_no_log_says_what_was_expected(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(TraceError, match=r"^log\.txt, line 1: ") as caught:
        load_text(tmp_path, text)
    assert error in str(caught.value)


def test_what_is_wrong_with_the_whole_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"^log\.txt: nothing is left of the log"):
        load_text(tmp_path, LOGS["csv"], warm_up_s=1e9)


def test_a_format_that_is_named_is_believed(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 1: a job of the Standard Workload Format has 18"):
        load_text(tmp_path, HEADER, format=TraceFormat.SWF)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"nodes": 0}, "--nodes is 0: it must be from 1 to 1000000"),
        ({"nodes": 10**400}, "--nodes is 10000000000000000000: it must be from 1 to 1000000"),
        ({"nodes": 1}, "--nodes is 1, and the log has 2 nodes"),
    ],
)
def test_a_size_that_cannot_be_is_refused(
    tmp_path: Path, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(UsageError, match=error):
        load_text(tmp_path, HEADER + "a,0,1\nb,0,1\n", **options)
