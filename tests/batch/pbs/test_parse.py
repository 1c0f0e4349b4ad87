from __future__ import annotations

import math
import time

import pytest

from malletrain.batch.pbs import parse
from malletrain.errors import BatchError

HEAD = '{\n    "timestamp":1699630815,\n    "pbs_version":"2022.1.1",\n    "pbs_server":"pbs01",\n'
NODES = (
    HEAD
    + """    "nodes":{
        "nid0001":{
            "Mom":"nid0001.site.example",
            "ntype":"PBS",
            "state":"free",
            "pcpus":64,
            "resv":"R142.pbs01, M143.pbs01",
            "resources_available":{
                "arch":"linux",
                "host":"nid0001",
                "mem":"527672488kb",
                "ncpus":64,
                "tier0":"x3006-g1",
                "tier1":"g1"
            },
            "resources_assigned":{},
            "comment":"swapped DIMM",
            "resv_enable":"True",
            "sharing":"force_exclhost",
            "last_state_change_time":1699600000
        },
        "nid0002[0]":{
            "Mom":"nid0002.site.example",
            "state":"job-exclusive",
            "queue":"debug",
            "jobs":[
                "1234[7].pbs01",
                "1300.pbs01"
            ],
            "resources_available":{
                "host":"nid0002.site.example",
                "tier1":7
            }
        }
    }
}
"""
)
JOBS = (
    HEAD
    + """    "Jobs":{
        "1234[].pbs01":{
            "Job_Name":"malle-1a2b3c4d",
            "Job_Owner":"ada@login1.site.example",
            "job_state":"B",
            "queue":"scavenge",
            "array":"True",
            "array_state_count":"Queued:3 Running:1 Exiting:0 Expired:1 ",
            "array_indices_submitted":"0-7",
            "array_indices_remaining":"2-3,6",
            "Resource_List":{
                "ncpus":1,
                "nodect":1,
                "place":"excl",
                "select":1,
                "walltime":"100:10:30"
            },
            "Variable_List":{
                "PBS_O_HOME":"/home/ada",
                "PBS_O_SHELL":"/bin/sh"
            }
        },
        "1300.pbs01":{
            "Job_Name":42,
            "Job_Owner":"bob@login1.site.example",
            "job_state":"Q",
            "estimated":{
                "exec_vnode":"(nid0001:ncpus=64)+(nid0002[0]:ncpus=2+nid0002[1]:ncpus=1)+(nid0003)",
                "start_time":"Sun Nov 12 09:05:00 2023"
            }
        }
    }
}
"""
)


def local_s(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M"))


def test_vnodes() -> None:
    at_s, vnodes = parse.nodes(NODES)
    assert at_s == 1699630815
    assert vnodes["nid0001"] == parse.Vnode(
        host="nid0001",
        state="free",
        jobs=(),
        reservations=("R142.pbs01", "M143.pbs01"),
        queue="",
        group="x3006-g1",
    )
    assert vnodes["nid0002[0]"] == parse.Vnode(
        host="nid0002",
        state="job-exclusive",
        jobs=("1234[7].pbs01", "1300.pbs01"),
        reservations=(),
        queue="debug",
        group="7",
    )


def test_jobs() -> None:
    array, job = parse.jobs(JOBS)
    assert array == parse.Job(
        id="1234[].pbs01",
        name="malle-1a2b3c4d",
        user="ada",
        state="B",
        walltime_s=360_630,
        waiting=(2, 3, 6),
        planned_at_s=None,
        planned=(),
    )
    assert array.is_array
    assert array.member(3) == "1234[3].pbs01"
    assert parse.array_of("1234[3].pbs01") == array.id
    assert (job.name, job.user, job.is_array) == ("42", "bob", False)
    assert job.planned == ("nid0001", "nid0002[0]", "nid0002[1]", "nid0003")
    assert job.planned_at_s == local_s("2023-11-12 09:05")
    assert job.walltime_s == math.inf


@pytest.mark.parametrize(
    ("remaining", "indices"),
    [('"-"', ()), ("5", (5,)), ('"0-3"', (0, 1, 2, 3)), ('"0-6:3, 9"', (0, 3, 6, 9))],
)
def test_members_that_wait(remaining: str, indices: tuple[int, ...]) -> None:
    (job,) = parse.jobs(f'{HEAD}"Jobs":{{"1[].pbs01":{{"array_indices_remaining":{remaining}}}}}}}')
    assert job.waiting == indices


@pytest.mark.parametrize("start", ['"UNKNOWN"', "0", '""'])
def test_a_start_that_is_not_known_is_none(start: str) -> None:
    (job,) = parse.jobs(f'{HEAD}"Jobs":{{"1.pbs01":{{"estimated":{{"start_time":{start}}}}}}}}}')
    assert job.planned_at_s is None


def test_a_server_without_jobs_says_so() -> None:
    assert not list(parse.jobs(f'{HEAD}"timestamp":1}}'))


@pytest.mark.parametrize("value", ["007", ".5", "-00", '"a "quoted" word"', '"it\\\'s"', '"a\\,b"'])
def test_somebodys_odd_environment_spoils_nothing(value: str) -> None:
    good = '"PBS_O_HOME":"/home/ada",'
    spoilt = JOBS.replace(good, f'"ODD":{value},\n                {good}')
    assert spoilt != JOBS
    assert list(parse.jobs(spoilt)) == list(parse.jobs(JOBS))


@pytest.mark.parametrize("text", ["", " \n", "{}", "[]", "no servers", f"{HEAD}", '{"Jobs":{}}'])
def test_what_makes_no_sense_is_an_error_and_not_no_jobs(text: str) -> None:
    with pytest.raises(BatchError, match="qstat"):
        list(parse.jobs(text))


@pytest.mark.parametrize("text", ["", "{}", f'{HEAD}"nodes":{{}}}}', NODES[:-10]])
def test_no_node_is_an_error(text: str) -> None:
    with pytest.raises(BatchError, match="pbsnodes"):
        parse.nodes(text)


def test_reservations() -> None:
    text = (
        "Resv ID: R142.pbs01\n"
        "Reserve_Name = maintenance\n"
        "reserve_state = RESV_CONFIRMED\n"
        "reserve_start = Wed Nov 12 12:00:00 2025\n"
        "reserve_end = Wed Dec 31 23:59:00 2025\n"
        "resv_nodes = (nid0001:ncpus=64)+(nid0002[0]:ncpus=2)\n"
        "Authorized_Users = +ada\n"
        "\n"
        "Resv ID: R150.pbs01\n"
        "reserve_state = RESV_UNCONFIRMED\n"
        "\n"
    )
    start_at_s = local_s("2025-11-12 12:00")
    assert parse.reservations(text) == (
        parse.Reservation("R142.pbs01", start_at_s, ("nid0001", "nid0002[0]")),
        parse.Reservation("R150.pbs01", None, ()),
    )
    assert parse.reservations("\n") == ()
    with pytest.raises(BatchError, match="pbs_rstat"):
        parse.reservations("Usage: pbs_rstat")


def test_submitted_ids() -> None:
    assert parse.submitted("1234[].pbs01\n", 2) == ("1234[0].pbs01", "1234[1].pbs01")
    assert parse.submitted("qsub: a word of the site's\n77.pbs01.site.example\n", 1) == (
        "77.pbs01.site.example",
    )


@pytest.mark.parametrize(
    ("text", "count"), [("", 1), ("1234", 1), ("1234.pbs01", 2), ("1234[].pbs01", 1), ("ok", 2)]
)
def test_an_answer_of_another_form_is_no_submission(text: str, count: int) -> None:
    with pytest.raises(BatchError, match="qsub"):
        parse.submitted(text, count)


def test_the_gone_are_told_from_other_failures() -> None:
    gone = "qdel: Unknown Job Id 9.pbs01\nqdel: Job has finished 12[0].pbs01\n"
    assert parse.is_only_of_the_gone(gone)
    assert not parse.is_only_of_the_gone(f"{gone}qdel: Unauthorized Request 3.pbs01")
    assert not parse.is_only_of_the_gone("")


def test_only_a_server_in_the_list_is_up() -> None:
    head = "Server   Max   Tot Status\n------ ----- ----- ------\n"
    assert parse.is_up(f"{head}pbs01      0    14 Active\n")
    assert not parse.is_up(head)
    assert not parse.is_up("")
