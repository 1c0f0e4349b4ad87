from __future__ import annotations

import math
from typing import Any

import pytest

from malletrain.batch.pbs.facts import PbsFacts, QueueFacts, SchedulerFacts, ServerFacts
from malletrain.cli.doctor import Finding, Verdict
from malletrain.cli.pbs_doctor import diagnose_pbs
from malletrain.config import PbsSettings, ScavengeSettings

SERVER = ServerFacts(
    name="pbs01", version="22.05", default_queue="workq", max_array_size=10_000, is_open=True
)


def queue(name: str = "scavenge", **changes: Any) -> QueueFacts:
    fields: dict[str, Any] = {"priority": 0, "max_walltime_s": math.inf, "kill_delay_s": 60.0}
    return QueueFacts(name=name, **{**fields, **changes})


WORKQ = queue("workq", priority=150)
GOOD = PbsFacts(
    scavenge=ScavengeSettings(),
    pbs=PbsSettings(queue="scavenge"),
    server=SERVER,
    queues=(WORKQ, queue()),
    scheduler=SchedulerFacts(preempt_order="D"),
)


def facts(**changes: Any) -> PbsFacts:
    fields = {name: getattr(GOOD, name) for name in PbsFacts.__dataclass_fields__}
    return PbsFacts(**{**fields, **changes})


def found(check: str, of: PbsFacts) -> Finding:
    return {finding.check: finding for finding in diagnose_pbs(of)}[f"pbs {check}"]


def test_a_good_site_has_no_fault_but_that_it_is_the_first() -> None:
    doubts = [f for f in diagnose_pbs(GOOD) if f.verdict is not Verdict.OK]
    (untried,) = doubts
    assert untried.check == "pbs server"
    assert "not been tried on a real PBS" in untried.advice


def test_every_fault_has_advice_in_one_line() -> None:
    for of in (GOOD, facts(queues=(queue("other"),)), facts(server=None, server_problem="away")):
        for finding in diagnose_pbs(of):
            assert "\n" not in finding.found + finding.advice
            assert (finding.verdict is Verdict.OK) == (not finding.advice)


def test_without_programs_or_server_nothing_else_is_judged() -> None:
    (programs,) = diagnose_pbs(facts(missing_programs=("qsub", "pbsnodes")))
    assert programs.verdict is Verdict.FAIL
    assert "qsub, pbsnodes" in programs.found
    assert len(diagnose_pbs(facts(server=None, server_problem="errno=15010"))) == 2
    assert found("server", facts(server=None, server_problem="errno=15010")).found == "errno=15010"


@pytest.mark.parametrize(
    ("queues", "what"),
    [
        ((WORKQ,), "there is no queue scavenge"),
        ((WORKQ, queue(is_enabled=False)), "enabled"),
        ((WORKQ, queue(is_started=False)), "started"),
    ],
)
def test_a_queue_that_pilots_cannot_start_from(queues: tuple[QueueFacts, ...], what: str) -> None:
    finding = found("queue", facts(queues=queues))
    assert finding.verdict is Verdict.FAIL
    assert what in finding.found


def test_the_default_queue_is_judged_where_none_is_named() -> None:
    of = facts(pbs=PbsSettings())
    assert found("queue", of).found == "workq is enabled and started"
    # Nobody comes before it.
    assert found("preemption", of).verdict is Verdict.FAIL


def test_a_routing_queue_hides_where_pilots_run() -> None:
    assert found("queue", facts(queues=(WORKQ, queue(is_routing=True)))).verdict is Verdict.WARN


@pytest.mark.parametrize(
    ("others", "verdict", "what"),
    [
        ((), Verdict.FAIL, "nobody preempts"),
        ((queue("workq", priority=149),), Verdict.FAIL, "nobody preempts"),
        ((WORKQ, queue("idle", priority=10)), Verdict.WARN, "jobs of idle do not preempt"),
        ((WORKQ, queue("big", priority=500)), Verdict.OK, "jobs of workq, big preempt"),
        ((WORKQ, queue("old", is_enabled=False)), Verdict.OK, "jobs of workq preempt"),
        ((queue("workq", priority=150, targets=frozenset({"scavenge"})),), Verdict.OK, "workq"),
        ((queue("workq", priority=150, targets=frozenset({"x"})),), Verdict.FAIL, "nobody"),
    ],
)
def test_jobs_of_express_queues_preempt_pilots(
    others: tuple[QueueFacts, ...], verdict: Verdict, what: str
) -> None:
    finding = found("preemption", facts(queues=(*others, queue())))
    assert finding.verdict is verdict
    assert what in finding.found


def test_pilots_must_not_be_in_an_express_queue_themselves() -> None:
    of = facts(queues=(WORKQ, queue(priority=150)))
    assert found("preemption", of).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("scheduler", "verdict", "what"),
    [
        (None, Verdict.WARN, "does not tell"),
        (SchedulerFacts(), Verdict.FAIL, "suspended in place"),
        (SchedulerFacts(preempt_order="R 50 S"), Verdict.FAIL, "suspended in place"),
        (
            SchedulerFacts(preempt_order="R", preempt_prio="normal_jobs, queue_softlimits"),
            Verdict.WARN,
            "queue_softlimits",
        ),
        (SchedulerFacts(preempt_order="R"), Verdict.OK, "preempt_order = R"),
    ],
)
def test_how_jobs_make_way(scheduler: SchedulerFacts | None, verdict: Verdict, what: str) -> None:
    finding = found("preemption", facts(scheduler=scheduler))
    assert finding.verdict is verdict
    assert what in finding.found


def test_limits() -> None:
    short = facts(queues=(WORKQ, queue(max_walltime_s=3600.0)))
    assert found("walltime", short).advice == "set walltime_s = 3600 in [scavenge]"
    hasty = facts(queues=(WORKQ, queue(kill_delay_s=10.0)))
    assert "set grace_s = 10" in found("grace", hasty).advice
    small = facts(queues=(WORKQ, queue(max_array_size=10)))
    assert found("arrays", small).verdict is Verdict.FAIL
    assert found("arrays", small).advice == "set max_waiting = 10 in [scavenge]"


def test_a_clock_is_wrong_beyond_what_holes_allow() -> None:
    assert found("clock", facts(clock_ahead_s=29.0)).verdict is Verdict.OK
    assert found("clock", facts(clock_ahead_s=31.0)).verdict is Verdict.FAIL
