from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.batch.commands import CommandKind
from malletrain.batch.harvest import Held as HeldNode
from malletrain.batch.harvest import Situation, plan
from malletrain.batch.queue import Survey
from malletrain.config import ScavengeSettings
from malletrain.core.apply import replay
from malletrain.core.events import AnyEvent, JobSubmitted, NodesJoined, NodesLost
from malletrain.core.metrics import totals
from malletrain.core.model import JobSpec, Node
from malletrain.impact.impact import Spread
from malletrain.impact.stays import held
from tests.impact.site import DAY_S, NAME, Site
from tests.report.story import two_jobs


@pytest.fixture
def two_preempted() -> Site:
    """Job 50 takes two nodes back at 1000 s, job 51 one at 2000 s; one leaves by itself."""
    site = Site()
    site.join(100, nd01="7_0", nd02="7_1", nd03="7_2", nd04="7_3")
    for task, host in enumerate(("nd01", "nd02", "nd03", "nd04")):
        state = "COMPLETED" if task < 3 else "TIMEOUT"
        site.account(f"7_{task}", 90, (1001, 1001, 2001, 3000)[task], host, name=NAME, state=state)
    site.leave(1000.25, "7_0")
    site.leave(1000.5, "7_1")
    site.lose(1000.75, "7_0")
    site.lose(1001.5, "7_1")
    site.account("50", 1002, 1500, "nd[01-02],nd07", ready=990)
    site.leave(2000.0, "7_2")
    site.lose(2000.5, "7_2")
    site.account("51", 2000, 2400, "nd03", ready=1999)
    site.leave(2940, "7_3", reason="its walltime ends")
    site.lose(2950, "7_3")
    # It had waited, and starts where nobody was asked to make room.
    site.account("52", 2955, 2999, "nd04", ready=500)
    return site


def test_main_jobs_that_took_nodes_back_and_how_long_they_waited(two_preempted: Site) -> None:
    queue = two_preempted.impact(0, 3600).queue
    assert queue is not None
    eight, one = queue.takings
    assert (eight.job_id, eight.nodes, one.job_id, one.nodes) == ("50", 2, "51", 1)
    # 1002 - 1000.25, and since it was submitted; a start read as before the ask is no wait.
    assert eight.waited_s == pytest.approx(1.75)
    assert eight.waited_at_most_s == pytest.approx(12)
    assert (one.waited_s, one.waited_at_most_s) == (0, 1)
    assert queue.waited == Spread(count=2, median_s=0.875, longest_s=1.75)
    assert queue.pilot_ends == {"completed": 3, "timeout": 1}
    assert queue.pilot_node_s == 2 * 911 + 1911 + 2910
    assert queue.main_jobs == 3


def test_harvest_and_release_are_the_journals(two_preempted: Site) -> None:
    found = two_preempted.impact(0, 3600, has_accounting=False)
    assert found.queue is None
    assert found.pilots == 4
    assert found.harvested_node_s == pytest.approx(900.75 + 901.5 + 1900.5 + 2850)
    assert found.node_s.idle == found.harvested_node_s
    assert found.leaves == {"asked back": 3, "given back": 1}
    assert found.released == Spread(count=3, median_s=0.5, longest_s=1.0)
    assert found.unfit == ()


def test_a_period_has_only_what_is_in_it(two_preempted: Site) -> None:
    found = two_preempted.impact(1500, 2500)
    assert found.harvested_node_s == pytest.approx(500.5 + 1000)
    assert found.leaves == {"asked back": 1, "held to the end": 1}
    assert found.queue is not None
    assert [taking.job_id for taking in found.queue.takings] == ["51"]
    assert found.queue.pilot_ends == {"completed": 1, "timeout": 1}


@pytest.mark.parametrize("state", ["CANCELLED by 0", "TIMEOUT", "NODE_FAIL"])
def test_a_pilot_that_ended_otherwise_was_not_preempted(state: str) -> None:
    site = Site()
    site.join(0, nd01="7_0")
    site.account("7_0", 0, 100, "nd01", name=NAME, state=state)
    site.leave(100, "7_0")
    site.lose(101, "7_0")
    site.account("50", 102, 200, "nd01", ready=10)
    queue = site.impact(0, 300).queue
    assert queue is not None
    assert queue.takings == ()


def test_a_job_that_was_submitted_after_the_ask_did_not_ask() -> None:
    site = Site()
    site.join(0, nd01="7_0")
    site.leave(100, "7_0")
    site.lose(101, "7_0")
    site.account("50", 110, 200, "nd01", ready=105)
    queue = site.impact(0, 300).queue
    assert queue is not None
    assert queue.takings == ()


def test_pilots_of_others_are_neither_ours_nor_main_jobs() -> None:
    site = Site()
    site.run(0, CommandKind.ORDER, "/usr/bin/sbatch", "--array=0-1", f"--job-name={NAME}")
    site.join(5, nd01="7_0")
    site.account("7_0", 0, 50, "nd01", name=NAME, state="PREEMPTED")
    # Never called.
    site.account("7_1", 0, 60, "nd02", name=NAME)
    site.account("8_0", 0, 60, "nd03", name="malle-ffff")
    site.leave(50, "7_0")
    site.lose(50.5, "7_0")
    queue = site.impact(0, 100).queue
    assert queue is not None
    assert queue.pilot_ends == {"completed": 1, "preempted": 1}
    assert queue.main_jobs == 0


def test_who_cancelled_a_pilot() -> None:
    site = Site()
    site.run(0, CommandKind.ORDER, "sbatch", f"--job-name={NAME}")
    site.join(5, nd01="7_0", nd02="7_1")
    # As jobcomp has it: tasks of arrays under ids of their own.
    for job_id, host in (("7", "nd01"), ("8", "nd02")):
        site.account(job_id, 0, 50, host, name=NAME, state="CANCELLED")
    site.run(50, CommandKind.ORDER, "scancel", "--quiet", "7_[1,4]")
    # It never called.
    site.account("9", 0, 60, "nd03", name=NAME, state="CANCELLED")
    queue = site.impact(0, 100).queue
    assert queue is not None
    assert queue.pilot_ends == {"cancelled by us": 1, "cancelled by hand": 1, "cancelled": 1}


def test_nodes_of_pilots_that_we_cancelled_were_given_back() -> None:
    site = Site()
    site.join(0, nd01="7_0", nd02="7_1", nd03="7_2")
    site.run(50, CommandKind.ORDER, "scancel", "--quiet", "7_[0,1]")
    site.leave(50.1, "7_0")
    site.lose(50.2, "7_0")
    site.lose(50.3, "7_1")
    site.leave(60, "7_2")
    site.run(61, CommandKind.ORDER, "scancel", "--quiet", "7_[2]")
    found = site.impact(0, 100, has_accounting=False)
    assert found.leaves == {"given back": 2, "asked back": 1}


def test_waiting_pilots_count_until_they_start_or_are_cancelled() -> None:
    site = Site()
    site.account("7_0", 20, 100, "nd01", ready=0, name=NAME)
    site.account("7_1", 30, 100, "nd02", ready=0, name=NAME)
    site.account("7_[2-3,5]", 40, 40, "None assigned", ready=0, name=NAME, state="CANCELLED")
    site.account("8_0", 60, 100, "nd03", ready=35, name=NAME)
    # An event there has to be.
    site.join(0, nd09="9")
    queue = site.impact(0, 200).queue
    assert queue is not None
    # Five from the start; three that never start and the next one from 35 s on.
    assert queue.most_waiting == 5
    later = site.impact(32, 200).queue
    assert later is not None
    assert later.most_waiting == 4


def test_what_was_sent_to_the_scheduler() -> None:
    site = Site()
    for at_s in (0, 100, 130, 159.9, 190, 300):
        site.run(at_s, CommandKind.QUERY, "/usr/bin/squeue", "-a")
    site.run(140, CommandKind.ORDER, "sbatch", status=1)
    site.run(150, CommandKind.PING, "scontrol", "ping")
    site.run(301, CommandKind.QUERY, "squeue")
    load = site.impact(0, 300).load
    assert load is not None
    assert (load.queries, load.orders, load.pings) == (6, 1, 1)
    assert (load.queries_a_minute, load.orders_a_minute) == (1.2, 0.2)
    # 100, 130, 140 and 159.9 s; at 190 s those of 130 s and before are a minute old.
    assert load.most_in_a_minute == 4
    by_name = {p.program: (p.queries, p.orders, p.failed) for p in load.programs}
    assert by_name == {"squeue": (6, 0, 0), "sbatch": (0, 1, 1)}


def test_without_a_log_the_load_of_a_batch_system_is_not_known() -> None:
    site = Site()
    site.join(0, nd01="7_0")
    assert site.impact(0, 10, has_log=False).load is None


def test_nodes_without_pilots_came_from_no_scheduler() -> None:
    site = Site([NodesJoined(at_s=DAY_S, nodes=(Node("local-1", opened_at_s=DAY_S),))])
    load = site.impact(0, 10, has_accounting=False, has_log=False).load
    assert load is not None
    assert load.queries == 0


def test_nodes_taken_out_of_service_while_ours() -> None:
    """The reason is the one that the scavenger gives."""
    survey = Survey(at_s=DAY_S + 100, unfit={"nd01": "drained*"})
    situation = Situation(
        now_s=DAY_S + 101,
        demand=4,
        held={"7_0": HeldNode("nd01", "7_0", called_at_s=DAY_S, is_used=True)},
        survey=survey,
    )
    given_back = plan(situation, ScavengeSettings()).give_back
    site = Site()
    site.join(0, nd01="7_0", nd02="7_1")
    site.leave(101, "7_0", reason=given_back["7_0"])
    site.lose(102, "7_0")
    site.lose(150, "7_1", reason="its agent fell silent")
    site.account("7_1", 0, 149, "nd02", name=NAME, state="NODE_FAIL")
    found = site.impact(0, 200)
    assert found.leaves == {"drained or down": 1, "lost without notice": 1}
    assert [(unfit.host, unfit.at_s - DAY_S) for unfit in found.unfit] == [
        ("nd01", 101),
        ("nd02", 149),
    ]
    assert "drained*" in found.unfit[0].reason
    assert "NODE_FAIL" in found.unfit[1].reason


def test_a_node_given_back_is_not_one_asked_back() -> None:
    site = Site()
    site.join(0, nd01="7_0", nd02="7_1", nd03="7_2")
    site.leave(10, "7_0", reason="no job could use it for 60 s")
    site.lose(11, "7_0")
    site.events.append(NodesLost(at_s=DAY_S + 20, node_ids=("7_1",), were_released=True))
    # At the controller's shutdown.
    site.lose(21, "7_2", reason="it left")
    site.account("50", 12, 20, "nd01", ready=5)
    found = site.impact(0, 30)
    assert found.leaves == {"given back": 3}
    assert found.queue is not None
    assert found.queue.takings == ()


def test_a_whole_journal_is_the_ledger() -> None:
    events = two_jobs().events
    found = held(None, events, events[0].at_s, events[-1].at_s)
    assert found.node_s == totals(replay(events))
    assert found.node_s.training > 0


_MOVES = st.lists(
    st.tuples(
        st.floats(0, 100), st.sampled_from(["join", "leave", "lose", "submit"]), st.integers(0, 4)
    ),
    min_size=1,
    max_size=40,
)


def _events(moves: list[tuple[float, str, int]]) -> list[AnyEvent]:
    site = Site()
    at_s = 0.0
    for after_s, what, number in moves:
        at_s += after_s
        node_id = f"7_{number}"
        match what:
            case "join":
                site.join(at_s, **{f"nd{number}": node_id})
            case "leave":
                site.leave(at_s, node_id)
            case "lose":
                site.lose(at_s, node_id)
            case _:
                spec = JobSpec(f"job-{number}", "job", 1, 4, model_key="m")
                site.events.append(JobSubmitted(at_s=DAY_S + at_s, spec=spec))
    return site.events


@given(_MOVES, st.floats(0, 1), st.floats(0, 1), st.integers(0, 40))
def test_node_seconds_add_up(
    moves: list[tuple[float, str, int]], first: float, second: float, cut: int
) -> None:
    events = _events(moves)
    begin_s, end_s = events[0].at_s, events[-1].at_s
    from_s, to_s = sorted(begin_s + share * (end_s - begin_s) for share in (first, second))
    whole = held(None, events, begin_s, end_s)
    assert whole.node_s.offered == pytest.approx(totals(replay(events)).offered)
    parts = [
        held(None, events, *ends).node_s.offered
        for ends in ((begin_s, from_s), (from_s, to_s), (to_s, end_s))
    ]
    assert sum(parts) == pytest.approx(whole.node_s.offered, abs=1e-3)
    for part in (whole, held(None, events, from_s, to_s)):
        of_stays = sum(stay.node_s(part.from_s, part.to_s) for stay in part.stays)
        assert of_stays == pytest.approx(part.node_s.offered, abs=1e-3)
    # Where the oldest events were forgotten, the rest is what it was.
    kept = events[cut:]
    if kept and kept[0].at_s <= from_s:
        later = held(replay(events[:cut]), kept, from_s, to_s)
        assert later.node_s.offered == pytest.approx(parts[1], abs=1e-3)
