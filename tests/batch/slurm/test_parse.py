"""What Slurm's programs answer, and the answers that are none."""

from __future__ import annotations

import math

import pytest

from malletrain.batch.slurm import parse
from malletrain.errors import BatchError

NODES = """\
NODELIST|STATECOMPLETE|PARTITION
n1|idle|batch*
n1|idle|spare
n2|idle+drain|spare
"""
JOBS = "JOBID|UID|STATE|START_TIME|TIME_LIMIT|NODELIST|SCHEDNODES|NAME\n"
RESERVATIONS = (
    "ReservationName=later StartTime=1796070956 EndTime=1796074556 Duration=01:00:00 "
    "Nodes=n[08-09] NodeCnt=2 CoreCnt=16 Features=(null) PartitionName=(null) Flags=SPEC_NODES "
    "TRES=cpu=16 Users=root Groups=(null) State=INACTIVE MaxStartDelay=(null)\n"
    "ReservationName=lic StartTime=1796070956 EndTime=1796074556 Duration=01:00:00 "
    "Nodes=(null) NodeCnt=0 CoreCnt=0 Features=(null) Licenses=x:1 State=INACTIVE\n"
)


def test_nodes_of_a_partition() -> None:
    found = parse.nodes(NODES, "batch,spare")
    assert {host: str(state) for host, state in found.items()} == {"n1": "idle", "n2": "idle+drain"}


def test_nodes_of_the_default_partition() -> None:
    assert set(parse.nodes(NODES, "")) == {"n1"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "NODELIST|STATECOMPLETE|PARTITION\n",
        "slurm_load_partitions: error\n",
        "NODELIST|STATECOMPLETE|PARTITION\nn1|idle\n",
    ],
)
def test_an_answer_without_nodes_is_an_error_that_may_pass(text: str) -> None:
    with pytest.raises(BatchError) as caught:
        parse.nodes(text, "spare")
    assert caught.value.is_transient


def test_a_running_job() -> None:
    (job,) = parse.jobs(f"{JOBS}17_4|1000|RUNNING|1796069925|1-00:03:00|n05|(null)|a name\n")
    assert job == parse.Job(
        "17_4", 1000, "RUNNING", "a name", "1-00:03:00", "n05", 1796069925.0, "(null)"
    )


def test_a_planned_job() -> None:
    (job,) = parse.jobs(f"{JOBS}4|7|PENDING|1796071449|5:00||n[01,08]|big|one\n")
    assert job.start_at_s == 1796071449.0
    assert parse.hosts(job.planned) == ("n01", "n08")
    assert job.name == "big|one"


def test_a_job_of_which_nothing_is_planned_or_limited() -> None:
    (job,) = parse.jobs(f"{JOBS}4|7|PENDING|N/A|UNLIMITED||(null)|big\n")
    assert job.start_at_s is None
    assert parse.hosts(job.planned) == ()
    assert parse.limit_s(job.limit) == math.inf


def test_a_name_with_a_line_break_hides_no_other_job() -> None:
    text = f"{JOBS}4|7|PENDING|N/A|5:00||(null)|odd\nname\n5|7|PENDING|N/A|5:00||(null)|plain\n"
    assert [job.id for job in parse.jobs(text)] == ["4", "5"]


@pytest.mark.parametrize(
    ("limit", "seconds"), [("5:00", 300.0), ("1-00:03:00", 86_580.0), ("UNLIMITED", math.inf)]
)
def test_time_limits(limit: str, seconds: float) -> None:
    assert parse.limit_s(limit) == seconds


@pytest.mark.parametrize(
    ("job_id", "ids"),
    [
        ("12", ("12",)),
        ("12_3", ("12_3",)),
        ("12_[0-2,5]", ("12_0", "12_1", "12_2", "12_5")),
        ("12_[7%2]", ("12_7",)),
    ],
)
def test_the_tasks_of_an_array(job_id: str, ids: tuple[str, ...]) -> None:
    assert parse.task_ids(job_id) == ids


def test_no_jobs_is_an_answer_but_nothing_is_none() -> None:
    assert list(parse.jobs(JOBS)) == []
    with pytest.raises(BatchError, match="squeue ended well and said nothing") as caught:
        list(parse.jobs(""))
    assert caught.value.is_transient


def test_times_that_are_no_epoch_seconds_are_refused() -> None:
    text = f"{JOBS}4|7|PENDING|2026-11-30T06:24:09|5:00||n1|big\n"
    with pytest.raises(BatchError, match="SLURM_TIME_FORMAT"):
        list(parse.jobs(text))


def test_reservations() -> None:
    nodes, licence = parse.reservations(RESERVATIONS)
    assert nodes == parse.Reservation(("n08", "n09"), 1796070956.0, 1796074556.0)
    assert licence.hosts == ()
    assert parse.reservations("No reservations in the system\n") == ()


@pytest.mark.parametrize("text", ["", "slurm_load_reservations error\n"])
def test_no_word_of_reservations_is_an_error(text: str) -> None:
    with pytest.raises(BatchError, match="scontrol show reservation"):
        parse.reservations(text)


@pytest.mark.parametrize("text", ["17\n", "17;cluster\n", "a site's greeting\n17\n"])
def test_the_ids_of_submitted_pilots(text: str) -> None:
    assert parse.submitted(text, 2) == ("17_0", "17_1")


def test_sbatch_without_an_id_is_an_error() -> None:
    with pytest.raises(BatchError, match="sbatch ended well"):
        parse.submitted("", 2)


def test_one_controller_of_a_site_is_enough() -> None:
    down, backup = "Slurmctld(primary) at a is DOWN\n", "Slurmctld(backup) at b is UP\n"
    assert parse.is_up(down + backup)
    assert not parse.is_up(down)
