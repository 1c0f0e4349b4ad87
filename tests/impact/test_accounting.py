from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from malletrain.errors import TraceError
from malletrain.impact.accounting import BatchJob, read
from malletrain.traces.files import open_lines
from tests.impact.site import HEADER, accounting
from tests.traces.logs import shared

FILETXT = (
    "JobId=12 UserId=ann(1000) GroupId=ann(1000) Name=two words JobState=PREEMPTED "
    "Partition=scavenge TimeLimit=10 StartTime=2026-11-30T05:19:14 EndTime=2026-11-30T05:19:21 "
    "NodeList=nd[01-02] NodeCnt=2 ProcCnt=16 WorkDir=/srv/a b ReservationName= Tres=cpu=1,node=2 "
    "Account= QOS= WcKey= Cluster=unknown SubmitTime=2026-11-30T05:19:10 "
    "EligibleTime=2026-11-30T05:19:13 DerivedExitCode=0:0 ExitCode=0:0 \n"
)


@pytest.fixture(autouse=True)
def _machine_in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CET, and CEST in summer, written without the need for a database of zones."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


#: 2026-11-30T05:19:14 in Berlin.
START_S = 1_796_012_354.0


def test_both_kinds_give_the_same_job() -> None:
    sacct = (
        f"{HEADER}\n"
        "12|two words|PREEMPTED|2026-11-30T05:19:10|2026-11-30T05:19:13|2026-11-30T05:19:14|"
        "2026-11-30T05:19:21|nd[01-02]\n"
        "12.batch|batch|CANCELLED|2026-11-30T05:19:10|2026-11-30T05:19:13|2026-11-30T05:19:14|"
        "2026-11-30T05:19:21|nd01\n"
    )
    (job,) = accounting(FILETXT)
    assert accounting(sacct) == (job,)
    assert job == BatchJob(
        id="12",
        name="two words",
        state="PREEMPTED",
        submitted_at_s=START_S - 4,
        eligible_at_s=START_S - 1,
        started_at_s=START_S,
        ended_at_s=START_S + 7,
        hosts=("nd01", "nd02"),
    )
    assert job.ready_at_s == START_S - 1


def test_jobs_that_wait_and_jobs_that_run() -> None:
    text = (
        f"{HEADER}\n"
        f"1|a|PENDING|{START_S:.0f}|Unknown|Unknown|Unknown|None assigned\n"
        f"2|b|c|RUNNING|{START_S:.0f}|{START_S:.0f}|{START_S:.0f}|Unknown|nd01\n"
    )
    waiting, running = accounting(text)
    assert (waiting.started_at_s, waiting.hosts, waiting.ready_at_s) == (None, (), START_S)
    # The delimiter stands in its name.
    assert (running.name, running.ended_at_s, running.hosts) == ("b|c", None, ("nd01",))


def test_a_last_line_that_is_being_written_is_left_out() -> None:
    assert len(accounting(FILETXT + FILETXT[:200])) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: it is empty"),
        ("hello\n", "line 1: it is no accounting known here"),
        ("JobID|JobName|State|Start|End|NodeList\n", "a column is missing: Submit; sacct -o JobID"),
        (f"{HEADER}\n1|a|COMPLETED|x|x|x|x|nd01\n", "line 2: Start is 'x': it must be a time"),
        (f"{HEADER}\n1|a\n", "line 2: it has 2 columns, and 8 were expected"),
        ("JobId=1 UserId=ann\n\n", "line 1: it has no Name="),
        (FILETXT.replace("nd[01-02]", "nd[") + "\n", "line 1: 'nd\\[' is no host list"),
    ],
)
def test_what_is_no_accounting_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said) as caught:
        accounting(text)
    assert "\n" not in str(caught.value)


def test_a_real_log_of_jobcomp() -> None:
    with open_lines(shared("slurm-samples/jobcomp_filetxt.log")) as lines:
        jobs = read(lines)
    preempted = [job for job in jobs if job.state == "PREEMPTED"]
    assert preempted
    for job in preempted:
        assert job.started_at_s is not None
        assert job.ended_at_s is not None
        assert job.started_at_s <= job.ended_at_s
        assert job.hosts


def test_a_real_answer_without_submission_times_says_what_to_ask_for() -> None:
    with (
        open_lines(shared("slurm-samples/sacct_P.txt")) as lines,
        pytest.raises(TraceError, match=r"a column is missing: Submit; sacct -o JobID,"),
    ):
        read(lines)
