"""What PBS's answers mean: stories of one host each."""

from __future__ import annotations

import math
from typing import Any

from malletrain.batch.pbs.parse import Job, Reservation, Vnode
from malletrain.batch.pbs.survey import groups_of, survey_of
from malletrain.batch.queue import Survey

NOW_S = 1000.0
NAME = "malle-1a2b3c4d"


def vnode(host: str = "a", state: str = "free", **changes: Any) -> Vnode:
    fields = {"jobs": (), "reservations": (), "queue": "", "group": "", **changes}
    return Vnode(host=host, state=state, **fields)


def job(job_id: str, state: str = "Q", name: str = "theirs", **changes: Any) -> Job:
    fields = {"waiting": (), "planned_at_s": None, "planned": (), **changes}
    return Job(id=job_id, name=name, user="ada", state=state, walltime_s=600.0, **fields)


def survey(
    vnodes: dict[str, Vnode], *jobs: Job, reservations: tuple[Reservation, ...] = ()
) -> Survey:
    return survey_of(NOW_S, vnodes, jobs, reservations, name=NAME, user="ada", queue="scavenge")


def test_a_free_host_that_nobody_wants_is_idle_for_ever() -> None:
    assert survey({"a": vnode()}).idle == {"a": math.inf}


def test_a_host_that_is_shared_is_free_and_not_idle() -> None:
    # PBS calls free what has a core left.
    assert not survey({"a": vnode(jobs=("1.pbs01",))}).idle


def test_a_host_is_idle_as_all_its_vnodes_are() -> None:
    vnodes = {"a": vnode(), "a[0]": vnode(), "a[1]": vnode(state="job-busy")}
    assert not survey(vnodes).idle
    assert survey({**vnodes, "a[1]": vnode()}).idle == {"a": math.inf}


def test_a_host_kept_for_another_queue_is_not_ours() -> None:
    vnodes = {"a": vnode(queue="debug"), "b": vnode("b", queue="scavenge")}
    assert set(survey(vnodes).idle) == {"b"}


def test_a_free_host_may_have_a_reservation() -> None:
    vnodes = {"a": vnode(reservations=("R1.pbs01", "R2.pbs01"))}
    soon = Reservation("R1.pbs01", NOW_S + 500, ("a",))
    later = Reservation("R2.pbs01", NOW_S + 900, ("a",))
    found = survey(vnodes, reservations=(later, soon))
    assert found.idle == found.wanted_at_s == {"a": NOW_S + 500}


def test_a_reservation_of_which_nothing_is_known_may_start_now() -> None:
    found = survey({"a": vnode(reservations=("R9.pbs01",))})
    assert not found.idle
    assert found.wanted_at_s == {"a": NOW_S}


def test_a_planned_start_ends_the_hole_and_one_gone_by_leaves_none() -> None:
    vnodes = {"a": vnode(), "b[0]": vnode("b")}
    planned = job("1.pbs01", planned=("a", "b[0]", "elsewhere"), planned_at_s=NOW_S + 300)
    assert survey(vnodes, planned).idle == {"a": NOW_S + 300, "b": NOW_S + 300}
    overdue = job("2.pbs01", planned=("a",), planned_at_s=NOW_S - 300)
    assert survey(vnodes, planned, overdue).idle == {"b": NOW_S + 300}
    # What runs has what it was planned for.
    running = job("2.pbs01", "R", planned=("a",), planned_at_s=NOW_S - 300)
    assert survey(vnodes, planned, running).idle == {"a": NOW_S + 300, "b": NOW_S + 300}


def test_where_own_pilots_are_planned_nobody_else_wants_to_be() -> None:
    own = job("1.pbs01", name=NAME, planned=("a",), planned_at_s=NOW_S + 300)
    assert survey({"a": vnode()}, own).idle == {"a": math.inf}


def test_own_pilots_wait_by_their_arrays_and_run_by_their_hosts() -> None:
    vnodes = {
        "a": vnode(state="job-exclusive", jobs=("12[0].pbs01",)),
        "b": vnode("b", state="job-exclusive", jobs=("13.pbs01",)),
        "c": vnode("c", state="job-exclusive", jobs=("7.pbs01", "8[0].pbs01")),
    }
    found = survey(
        vnodes,
        job("12[].pbs01", "B", NAME, waiting=(2, 5)),
        job("13.pbs01", "R", NAME),
        job("14.pbs01", "H", NAME),
        job("7.pbs01", "R"),
        job("8[].pbs01", "B", waiting=(1,)),
    )
    assert found.running == {"a": "12[0].pbs01", "b": "13.pbs01"}
    assert found.waiting == dict.fromkeys(("12[2].pbs01", "12[5].pbs01", "14.pbs01"), 600.0)


def test_a_pilot_that_starts_between_two_queries_runs() -> None:
    vnodes = {"a": vnode(jobs=("12[2].pbs01",))}
    found = survey(vnodes, job("12[].pbs01", "B", NAME, waiting=(2, 5)))
    assert found.running == {"a": "12[2].pbs01"}
    assert set(found.waiting) == {"12[5].pbs01"}


def test_pilots_of_somebody_else_by_our_name_are_not_ours() -> None:
    theirs = Job("9.pbs01", NAME, "bob", "Q", 600.0, (), None, ())
    assert not survey({"a": vnode()}, theirs).waiting


def test_what_is_out_of_service_is_told_with_pbss_words() -> None:
    vnodes = {"a": vnode(state="offline,job-exclusive", jobs=("1.pbs01",)), "b": vnode("b")}
    found = survey(vnodes)
    assert found.unfit == {"a": "offline,job-exclusive"}
    assert set(found.idle) == {"b"}


def test_groups_are_those_of_hosts_that_have_one() -> None:
    assert groups_of([vnode(group="g1"), vnode("b")]) == {"a": "g1"}
