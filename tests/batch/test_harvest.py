"""What the scavenger plans: stories, and properties of every plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from malletrain.batch.harvest import Held, Plan, Situation, Waiting, plan
from malletrain.batch.queue import Survey
from malletrain.config import ScavengeSettings

NOW_S = 1.7e9
INF = float("inf")
LONG_S = 4 * 3600.0
SETTINGS = ScavengeSettings(
    max_nodes=8,
    max_waiting=4,
    walltime_s=LONG_S,
    min_hole_s=300.0,
    hole_margin_s=30.0,
    query_every_s=120.0,
    submit_every_s=10.0,
    surplus_limit_s=60.0,
)


def situation(
    demand: int,
    held: Mapping[str, Held] | None = None,
    waiting: Mapping[str, Waiting] | None = None,
    survey: Survey | None = None,
    **more: object,
) -> Situation:
    return Situation(NOW_S, demand, held or {}, waiting or {}, survey, **more)  # type: ignore[arg-type]


def holding(*hosts: str, unused: tuple[str, ...] = ()) -> dict[str, Held]:
    return {
        f"{host}-node": Held(host, f"p-{host}", NOW_S - 3600.0, is_used=host not in unused)
        for host in hosts
    }


def running(held: Mapping[str, Held], *but: str) -> dict[str, str]:
    return {node.host: node.pilot_id for node in held.values() if node.host not in but}


def pilots(walltime_s: float, *ids: str, age_s: float = 600.0) -> dict[str, Waiting]:
    return {i: Waiting(walltime_s, NOW_S - age_s) for i in ids}


def holes(*lengths_s: float, age_s: float = 5.0) -> Survey:
    """Return a survey of idle hosts that others want so long from now."""
    idle = {f"h{i}": NOW_S + length_s for i, length_s in enumerate(lengths_s)}
    return Survey(NOW_S - age_s, idle=idle)


def done(before: Situation, planned: Plan) -> Situation:
    """Return what is when all that was planned has been done, at the same time."""
    waiting = {i: p for i, p in before.waiting.items() if i not in planned.cancel}
    for count, walltime_s in planned.submit:
        first = len(before.waiting) + len(waiting)
        new = {f"new{first + i}": Waiting(walltime_s, before.now_s) for i in range(count)}
        waiting |= new
    held = {
        node_id: replace(node, is_leaving=node.is_leaving or node_id in planned.give_back)
        for node_id, node in before.held.items()
    }
    since_s = before.now_s if before.surplus_since_s is None else before.surplus_since_s
    return replace(
        before,
        held=held,
        waiting=waiting,
        submitted_at_s=before.now_s if planned.submit else before.submitted_at_s,
        surplus_since_s=since_s if planned.has_surplus else None,
    )


# -- how many wait ---------------------------------------------------------------------------------


def test_what_the_jobs_lack_is_submitted_as_one_array() -> None:
    planned = plan(situation(5, holding("a", "b")), SETTINGS)
    assert planned == Plan(submit=((3, LONG_S),))


def test_no_more_wait_than_may() -> None:
    assert plan(situation(100), SETTINGS).submit == ((4, LONG_S),)
    assert plan(situation(100, waiting=pilots(LONG_S, "p1", "p2", "p3")), SETTINGS).submit == (
        (1, LONG_S),
    )


def test_held_and_waiting_together_are_no_more_than_the_limit() -> None:
    assert plan(situation(100, holding(*"abcdefg")), SETTINGS).submit == ((1, LONG_S),)


def test_a_leaving_node_is_replaced_but_counts_until_it_is_gone() -> None:
    held = holding(*"abcdefgh")
    held["a-node"] = replace(held["a-node"], is_leaving=True)
    assert plan(situation(8, held), SETTINGS) == Plan()
    del held["b-node"]
    assert plan(situation(8, held), SETTINGS).submit == ((1, LONG_S),)


def test_nothing_waits_where_there_is_no_demand() -> None:
    planned = plan(situation(0, waiting=pilots(LONG_S, "p1", "p2")), SETTINGS)
    assert set(planned.cancel) == {"p1", "p2"}
    assert not planned.submit


def test_the_shortest_and_then_the_newest_are_cancelled_first() -> None:
    waiting = {
        **pilots(LONG_S, "old", age_s=900.0),
        **pilots(LONG_S, "new", age_s=300.0),
        **pilots(600.0, "short", age_s=1200.0),
    }
    assert plan(situation(2, waiting=waiting), SETTINGS).cancel == ("short",)
    assert plan(situation(1, waiting=waiting), SETTINGS).cancel == ("short", "new")


def test_a_pilot_that_has_started_is_cancelled_last() -> None:
    survey = Survey(NOW_S - 5.0, running={"h1": "short"})
    waiting = {**pilots(600.0, "short"), **pilots(LONG_S, "long")}
    assert plan(situation(1, waiting=waiting, survey=survey), SETTINGS).cancel == ("long",)


def test_walltimes_are_whole_minutes() -> None:
    settings = msgspec.structs.replace(SETTINGS, walltime_s=1000.0)
    assert plan(situation(1), settings).submit == ((1, 960.0),)


# -- how often -------------------------------------------------------------------------------------


def test_submissions_keep_their_distance() -> None:
    early = situation(2, submitted_at_s=NOW_S - 4.0)
    assert plan(early, SETTINGS) == Plan(again_at_s=NOW_S + 6.0)
    assert plan(replace(early, now_s=NOW_S + 6.0), SETTINGS).submit == ((2, LONG_S),)


def test_each_failure_doubles_the_distance_up_to_a_limit() -> None:
    failed = situation(2, submitted_at_s=NOW_S, failures=3)
    assert plan(failed, SETTINGS).again_at_s == NOW_S + 80.0
    failed = situation(2, submitted_at_s=NOW_S, failures=1000)
    assert plan(failed, SETTINGS).again_at_s == NOW_S + 2560.0


def test_cancelling_does_not_wait() -> None:
    waiting = pilots(LONG_S, "p1", "p2")
    assert plan(situation(1, waiting=waiting, submitted_at_s=NOW_S), SETTINGS).cancel == ("p1",)


# -- holes -----------------------------------------------------------------------------------------


def test_pilots_fit_the_holes_there_are_the_longest_first() -> None:
    survey = holes(700.0, 1000.0, 200.0, 1e6)
    assert plan(situation(4, survey=survey), SETTINGS).submit == (
        (1, 660.0),
        (1, 960.0),
        (2, LONG_S),
    )
    assert plan(situation(2, survey=survey), SETTINGS).submit == ((1, 960.0), (1, LONG_S))


def test_the_margin_is_left_of_a_hole() -> None:
    assert plan(situation(1, survey=holes(629.0)), SETTINGS).submit == ((1, 540.0),)
    assert plan(situation(1, survey=holes(630.0)), SETTINGS).submit == ((1, 600.0),)


def test_idle_hosts_that_nobody_wants_are_the_longest_holes() -> None:
    survey = holes(700.0, INF)
    assert plan(situation(1, survey=survey), SETTINGS).submit == ((1, LONG_S),)


def test_an_old_survey_says_nothing_of_holes() -> None:
    old, young = holes(900.0, age_s=301.0), holes(900.0, age_s=300.0)
    assert plan(situation(1, survey=old), SETTINGS).submit == ((1, LONG_S),)
    assert plan(situation(1, survey=young), SETTINGS).submit == ((1, 840.0),)


def test_a_hole_is_not_filled_twice() -> None:
    survey = holes(900.0, 900.0)
    waiting = pilots(840.0, "short", age_s=1.0)
    planned = plan(situation(3, waiting=waiting, survey=survey), SETTINGS)
    assert planned.submit == ((1, 840.0), (1, LONG_S))
    held = {"n": Held("h0", "p", NOW_S - 1.0, is_used=True)}
    assert plan(situation(3, held, survey=survey), SETTINGS).submit == ((1, 840.0), (1, LONG_S))


def test_a_pilot_that_has_started_elsewhere_leaves_the_hole_to_another() -> None:
    survey = replace(holes(900.0), running={"elsewhere": "short"})
    waiting = pilots(840.0, "short")
    assert plan(situation(2, waiting=waiting, survey=survey), SETTINGS).submit == ((1, 840.0),)


# -- exchange --------------------------------------------------------------------------------------

STUCK = pilots(LONG_S, "l1", "l2", "l3", "l4")


def test_long_pilots_that_fit_no_hole_are_exchanged_for_short_ones() -> None:
    before = situation(8, waiting=STUCK, survey=holes(900.0, 600.0))
    planned = plan(before, SETTINGS)
    assert planned.submit == ((1, 540.0), (1, 840.0))
    assert len(planned.cancel) == 2
    assert plan(done(before, planned), SETTINGS) == Plan()


def test_a_pilot_is_exchanged_only_after_the_scheduler_had_its_chance() -> None:
    fresh = pilots(LONG_S, "l1", "l2", "l3", "l4", age_s=19.0)
    assert plan(situation(8, waiting=fresh, survey=holes(900.0)), SETTINGS) == Plan()
    mixed = {**fresh, "l4": Waiting(LONG_S, NOW_S - 20.0)}
    assert plan(situation(8, waiting=mixed, survey=holes(900.0)), SETTINGS).cancel == ("l4",)


def test_exchanges_keep_the_distance_of_submissions() -> None:
    early = situation(8, waiting=STUCK, survey=holes(900.0), submitted_at_s=NOW_S - 1.0)
    assert plan(early, SETTINGS) == Plan(again_at_s=NOW_S + 9.0)


def test_nothing_is_exchanged_where_pilots_fit_or_holes_are_too_short() -> None:
    for survey in (holes(INF), holes(LONG_S + 60.0), holes(320.0), None):
        assert plan(situation(8, waiting=STUCK, survey=survey), SETTINGS) == Plan()


def test_a_short_pilot_whose_hole_has_gone_is_left_to_start_anywhere() -> None:
    waiting = {**pilots(600.0, "s1", "s2"), **pilots(LONG_S, "l1", "l2")}
    assert plan(situation(8, waiting=waiting, survey=holes()), SETTINGS) == Plan()


# -- giving back -----------------------------------------------------------------------------------


def test_a_surplus_is_given_back_after_its_time_and_only_what_is_unused() -> None:
    held = holding("a", "b", "c", "d", unused=("b", "c", "d"))
    before = situation(2, held)
    first = plan(before, SETTINGS)
    assert first == Plan(again_at_s=NOW_S + 60.0, has_surplus=True)
    then = replace(done(before, first), now_s=NOW_S + 60.0)
    planned = plan(then, SETTINGS)
    assert planned.give_back == dict.fromkeys(("b-node", "c-node"), "no job could use it for 60 s")
    assert not planned.has_surplus


def test_nodes_beyond_the_limit_are_a_surplus_whatever_the_demand() -> None:
    held = holding(*"abcdefghi", unused=("a", "b"))
    planned = plan(situation(100, held, surplus_since_s=NOW_S - 60.0), SETTINGS)
    assert set(planned.give_back) == {"a-node"}


def test_used_nodes_stay_whatever_the_demand() -> None:
    held = holding("a", "b", unused=("b",))
    planned = plan(situation(0, held, surplus_since_s=NOW_S - 60.0), SETTINGS)
    assert set(planned.give_back) == {"b-node"}
    assert planned.has_surplus
    assert planned.again_at_s is None


def test_of_unused_nodes_those_that_end_first_go_first() -> None:
    held = holding("a", "b", "c", unused=("a", "b", "c"))
    held["b-node"] = replace(held["b-node"], called_at_s=NOW_S - 7200.0)
    survey = Survey(NOW_S, running=running(held), wanted_at_s={"c": NOW_S + 900.0})
    given = [
        plan(situation(demand, held, survey=survey, surplus_since_s=0.0), SETTINGS).give_back
        for demand in (2, 1, 0)
    ]
    assert [set(g) for g in given] == [
        {"c-node"},
        {"c-node", "b-node"},
        {"a-node", "b-node", "c-node"},
    ]


def test_a_host_that_is_taken_out_of_service_is_left_at_once_and_replaced() -> None:
    held = holding("a", "b")
    survey = Survey(NOW_S, running=running(held), unfit={"a": "draining", "x": "down"})
    planned = plan(situation(2, held, survey=survey), SETTINGS)
    assert planned.give_back == {"a-node": "the batch system says that a is draining"}
    assert planned.submit == ((1, LONG_S),)


def test_a_node_whose_daemon_is_away_is_given_back_when_two_surveys_say_so() -> None:
    held = holding("a", "b", "c")
    for state in ("idle+not_responding", "down+not_responding"):
        survey = Survey(NOW_S, running=running(held), unfit={"a": state})
        first = situation(3, held, survey=survey)
        assert plan(first, SETTINGS).give_back == {}
        earlier = Survey(NOW_S - 120.0, running=running(held), unfit={"a": state})
        assert set(plan(replace(first, previous_survey=earlier), SETTINGS).give_back) == {"a-node"}


def test_most_hosts_are_left_only_where_two_surveys_say_that_they_are_out_of_service() -> None:
    held = holding("a", "b", "c", "d")
    unfit = dict.fromkeys("abc", "allocated+not_responding")
    knows = running(held)
    once = situation(4, held, survey=Survey(NOW_S - 5.0, running=knows, unfit=unfit))
    assert plan(once, SETTINGS) == Plan()
    fit = replace(once, previous_survey=Survey(NOW_S - 125.0, running=knows))
    assert plan(fit, SETTINGS) == Plan()
    twice = replace(once, previous_survey=Survey(NOW_S - 125.0, running=knows, unfit=unfit))
    assert set(plan(twice, SETTINGS).give_back) == {"a-node", "b-node", "c-node"}


def test_what_was_said_of_a_host_before_its_node_called_does_not_count() -> None:
    held = {"n": Held("a", "p", NOW_S - 1.0, is_used=True)}
    survey = Survey(NOW_S - 2.0, unfit={"a": "down"})
    assert plan(situation(1, held, survey=survey), SETTINGS) == Plan()


def forgotten(held: Mapping[str, Held], *hosts: str) -> Situation:
    """Return a situation where two surveys miss the pilots on these hosts."""
    knows = running(held, *hosts)
    return situation(
        len(held),
        held,
        survey=Survey(NOW_S - 5.0, running=knows),
        previous_survey=Survey(NOW_S - 125.0, running=knows),
    )


def test_a_node_whose_pilot_two_surveys_miss_is_given_back() -> None:
    found = forgotten(holding("a", "b", "c"), "b")
    planned = plan(found, SETTINGS)
    assert planned.give_back == {"b-node": "the batch system no longer knows its pilot p-b"}
    assert planned.submit == ((1, LONG_S),)


def test_one_survey_alone_makes_no_node_forgotten() -> None:
    held = holding("a", "b", "c")
    found = forgotten(held, "b")
    knows = Survey(NOW_S - 125.0, running=running(held))
    assert plan(replace(found, previous_survey=knows), SETTINGS) == Plan()
    assert plan(replace(found, previous_survey=None), SETTINGS) == Plan()


def test_surveys_from_before_a_node_called_do_not_miss_it() -> None:
    held = holding("a", "b", "c")
    held["b-node"] = replace(held["b-node"], called_at_s=NOW_S - 130.0)
    assert plan(forgotten(held, "b"), SETTINGS) == Plan()


def test_nodes_are_never_given_back_in_masses_for_what_surveys_miss() -> None:
    assert plan(forgotten(holding("a", "b", "c"), "a", "b"), SETTINGS) == Plan()
    assert plan(forgotten(holding("a", "b"), "a", "b"), SETTINGS) == Plan()
    assert set(plan(forgotten(holding("a"), "a"), SETTINGS).give_back) == {"a-node"}


def test_an_older_pilot_on_a_host_is_forgotten_where_a_newer_one_runs() -> None:
    old = Held("a", "p1", NOW_S - 7200.0, is_used=True)
    new = Held("a", "p2", NOW_S - 3600.0, is_used=True)
    knows = {"a": "p2"}
    found = situation(
        2,
        {"n1": old, "n2": new},
        survey=Survey(NOW_S, running=knows),
        previous_survey=Survey(NOW_S - 120.0, running=knows),
    )
    assert set(plan(found, SETTINGS).give_back) == {"n1"}


# -- every plan ------------------------------------------------------------------------------------

HOSTS = [f"h{i}" for i in range(12)]
AGES_S = st.sampled_from([0.0, 1.0, 14.0, 15.0, 20.0, 59.0, 130.0, 299.0, 400.0, 7200.0])
LENGTHS_S = st.sampled_from([-60.0, 100.0, 330.0, 360.0, 640.0, 3600.0, 20000.0, INF])


@st.composite
def surveys(draw: st.DrawFn, pilot_ids: list[str]) -> Survey | None:
    if draw(st.integers(0, 4)) == 0:
        return None
    at_s = NOW_S - draw(AGES_S)
    idle = {host: NOW_S + draw(LENGTHS_S) for host in draw(st.sets(st.sampled_from(HOSTS)))}
    ids = st.sampled_from([*pilot_ids, "stranger"])
    running = draw(st.dictionaries(st.sampled_from(HOSTS), ids))
    unfit = draw(st.dictionaries(st.sampled_from(HOSTS), st.sampled_from(["down", "drained"])))
    return Survey(at_s, running=running, idle=idle, wanted_at_s=idle, unfit=unfit)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    held = {
        f"n{i}": Held(
            draw(st.sampled_from(HOSTS)),
            f"p{i}",
            NOW_S - draw(AGES_S),
            draw(st.booleans()),
            draw(st.sampled_from([False, False, True])),
        )
        for i in range(draw(st.integers(0, 8)))
    }
    walltimes_s = st.sampled_from([300.0, 600.0, 3600.0, LONG_S])
    waiting = {
        f"w{i}": Waiting(draw(walltimes_s), NOW_S - draw(AGES_S))
        for i in range(draw(st.integers(0, 6)))
    }
    pilot_ids = [node.pilot_id for node in held.values()] + list(waiting)
    return Situation(
        NOW_S,
        draw(st.integers(0, 12)),
        held,
        waiting,
        draw(surveys(pilot_ids)),
        draw(surveys(pilot_ids)),
        NOW_S - draw(AGES_S),
        draw(st.integers(0, 12)),
        draw(st.none() | AGES_S.map(lambda age_s: NOW_S - age_s)),
    )


@given(situations())
def test_limits_hold_once_a_plan_is_carried_out(before: Situation) -> None:
    after = done(before, plan(before, SETTINGS))
    staying = [node for node in after.held.values() if not node.is_leaving]
    lacking = max(min(before.demand, SETTINGS.max_nodes) - len(staying), 0)
    assert len(after.waiting) <= min(SETTINGS.max_waiting, lacking)
    assert not after.waiting or len(after.held) + len(after.waiting) <= SETTINGS.max_nodes


@given(situations())
def test_a_plan_that_is_carried_out_leaves_nothing_to_plan(before: Situation) -> None:
    planned = plan(before, SETTINGS)
    after = done(before, planned)
    again = plan(after, SETTINGS)
    if planned.cancel and not planned.submit:
        # What is left of too many pilots may turn out to fit no hole.
        again = plan(done(after, again), SETTINGS)
    assert (again.submit, again.cancel, again.give_back) == ((), (), {})
    assert again.has_surplus == planned.has_surplus


@given(situations())
def test_orders_make_sense(before: Situation) -> None:
    planned = plan(before, SETTINGS)
    walltimes_s = [walltime_s for _, walltime_s in planned.submit]
    assert len(set(walltimes_s)) == len(walltimes_s), "one array a walltime"
    assert all(count > 0 for count, _ in planned.submit)
    assert all(w % 60.0 == 0 and SETTINGS.min_hole_s <= w <= LONG_S for w in walltimes_s)
    assert len(set(planned.cancel)) == len(planned.cancel)
    assert planned.cancel == tuple(i for i in planned.cancel if i in before.waiting)
    if planned.submit and planned.cancel:
        shortest_s = min(before.waiting[i].walltime_s for i in planned.cancel)
        assert max(walltimes_s) < shortest_s, "an exchange is for shorter ones"
        assert sum(count for count, _ in planned.submit) == len(planned.cancel)
    assert not any(before.held[n].is_leaving for n in planned.give_back)
    assert planned.again_at_s is None or planned.again_at_s > before.now_s


@given(situations())
def test_the_next_look_is_soon_enough(before: Situation) -> None:
    """Until then nothing would be planned, were it planned at any time."""
    planned = plan(before, SETTINGS)
    after = done(before, planned)
    until_s = plan(after, SETTINGS).again_at_s or before.now_s + 1e5
    for share in (0.01, 0.5, 0.99):
        now_s = before.now_s + share * (until_s - before.now_s)
        later = plan(replace(after, now_s=now_s), SETTINGS)
        assert (later.submit, later.cancel, later.give_back) == ((), (), {})


@given(situations(), st.integers(0, 6))
def test_more_demand_never_means_fewer_nodes(before: Situation, more: int) -> None:
    less = done(before, plan(before, SETTINGS))
    richer = replace(before, demand=before.demand + more)
    rich = done(richer, plan(richer, SETTINGS))
    assert len(less.waiting) <= len(rich.waiting)
    given_back = [sum(node.is_leaving for node in s.held.values()) for s in (less, rich)]
    assert given_back[0] >= given_back[1]


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_known_does_not_matter(
    before: Situation, random: object
) -> None:
    def shuffled(mapping: Mapping[str, object]) -> dict[str, object]:
        items = list(mapping.items())
        random.shuffle(items)  # type: ignore[attr-defined]
        return dict(items)

    other = replace(before, held=shuffled(before.held), waiting=shuffled(before.waiting))  # type: ignore[arg-type]
    assert plan(other, SETTINGS) == plan(before, SETTINGS)
