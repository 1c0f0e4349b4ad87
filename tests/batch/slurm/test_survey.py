"""What Slurm's answers mean: whose is what, and until when."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from malletrain.batch.queue import Survey
from malletrain.batch.slurm.parse import Job, Reservation
from malletrain.batch.slurm.states import NodeState
from malletrain.batch.slurm.survey import survey_of

NOW_S = 1000.0
OWN = "malle-1"


def survey(
    nodes: Mapping[str, str],
    jobs: Sequence[Job] = (),
    reservations: Sequence[Reservation] = (),
) -> Survey:
    states = {host: NodeState.parse(text) for host, text in nodes.items()}
    return survey_of(NOW_S, states, jobs, reservations, name=OWN, uid=7)


def pending(name: str, start_at_s: float | None, *hosts: str, uid: int = 8) -> Job:
    return Job("3", uid, "PENDING", name, "10:00", start_at_s=start_at_s, planned=",".join(hosts))


def test_a_hole_ends_when_the_first_of_others_is_planned() -> None:
    jobs = [pending("later", 3000.0, "a", "b"), pending("sooner", 2000.0, "b", "c")]
    found = survey({"a": "idle", "b": "idle", "c": "allocated"}, jobs)
    assert found.idle == {"a": 3000.0, "b": 2000.0}
    assert found.wanted_at_s == {"a": 3000.0, "b": 2000.0, "c": 2000.0}


def test_a_hole_that_nobody_waits_for_has_no_end() -> None:
    assert survey({"a": "idle"}, [pending("unplanned", None)]).idle == {"a": math.inf}


def test_reservations_end_holes_until_they_are_over() -> None:
    kept = [Reservation(("a",), 1500.0, 1800.0), Reservation(("b",), 500.0, 1000.0)]
    assert survey({"a": "idle", "b": "idle"}, (), kept).idle == {"a": 1500.0, "b": math.inf}


def test_what_is_reserved_by_now_is_not_idle_whatever_sinfo_still_says() -> None:
    found = survey({"a": "idle"}, (), [Reservation(("a",), 990.0, 1800.0)])
    assert found.idle == {}
    assert found.wanted_at_s == {"a": 990.0}


def test_own_pilots_want_nothing() -> None:
    found = survey({"a": "idle"}, [pending(OWN, 1500.0, "a", uid=7)])
    assert found.idle == {"a": math.inf}
    assert found.waiting == {"3": 600.0}


def test_another_users_job_of_our_name_is_not_ours() -> None:
    found = survey({"a": "idle"}, [pending(OWN, 1500.0, "a", uid=8)])
    assert (found.waiting, found.idle) == ({}, {"a": 1500.0})


def test_own_pilots_that_wait_and_that_run() -> None:
    jobs = [
        Job("5_[1-2]", 7, "PENDING", OWN, "4:00"),
        Job("5_0", 7, "RUNNING", OWN, "4:00", "a", 900.0),
        Job("5_3", 7, "CONFIGURING", OWN, "4:00", "b", 999.0),
    ]
    # It started between the two queries.
    found = survey({"a": "allocated", "b": "idle"}, jobs)
    assert found.waiting == {"5_1": 240.0, "5_2": 240.0}
    assert found.running == {"a": "5_0", "b": "5_3"}
    assert found.idle == {}


def test_unfit_hosts_are_told_with_their_state() -> None:
    found = survey({"a": "allocated+drain", "b": "idle+planned", "c": "down+not_responding"})
    assert found.unfit == {"a": "allocated+drain", "c": "down+not_responding"}
    assert found.idle == {}


def test_a_planned_host_is_a_hole_where_its_end_is_known() -> None:
    found = survey({"a": "idle+planned", "b": "idle+planned"}, [pending("big", 3000.0, "a")])
    assert found.idle == {"a": 3000.0}
