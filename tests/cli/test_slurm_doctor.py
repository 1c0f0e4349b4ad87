"""Each finding on its own: what is found of a site, and what to ask its administrator for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from malletrain.batch.slurm.facts import Partition, Qos, SiteConfig, SlurmFacts
from malletrain.cli.doctor import Finding, Verdict
from malletrain.cli.slurm_doctor import diagnose_slurm
from malletrain.config import ScavengeSettings, SlurmSettings
from malletrain.errors import BatchError

NODES = frozenset({"n1", "n2"})
CONFIG: dict[str, Any] = {
    "version": (23, 11),
    "preempt_type": "preempt/partition_prio",
    "preempt_mode": "CANCEL",
    "preempt_exempt_s": 0.0,
    "kill_wait_s": 30.0,
    "unkillable_s": 60.0,
    "max_array_tasks": 1000,
    "private": frozenset(),
    "as_of_s": 1000.0,
}
SPARE: dict[str, Any] = {
    "name": "spare",
    "is_default": False,
    "state": "UP",
    "nodes": NODES,
    "priority_tier": 1,
    "preempt_mode": "CANCEL",
    "grace_s": 30.0,
    "max_time_s": 86_400.0,
}
MAIN = Partition(**{**SPARE, "name": "main", "is_default": True, "priority_tier": 10})
SCAVENGE = ScavengeSettings(grace_s=30.0, walltime_s=14_400.0, hole_margin_s=30.0)
QOS_SITE = {"preempt_type": "preempt/qos", "preempt_mode": "REQUEUE"}


def refused(why: str, *, is_transient: bool) -> BatchError:
    return BatchError(f"Slurm takes no pilots ({why}", is_transient=is_transient)


def facts(
    *,
    config: dict[str, Any] | None = None,
    spare: dict[str, Any] | None = None,
    others: tuple[Partition, ...] = (MAIN,),
    **changes: Any,
) -> SlurmFacts:
    """Return those of a good site, but for the changes."""
    good: dict[str, Any] = {
        "scavenge": SCAVENGE,
        "slurm": SlurmSettings(partition="spare"),
        "config": SiteConfig(**{**CONFIG, **(config or {})}),
        "partitions": (*others, Partition(**{**SPARE, **(spare or {})})),
    }
    return SlurmFacts(**{**good, **changes})


def finding(check: str, of: SlurmFacts) -> Finding:
    return next(f for f in diagnose_slurm(of) if f.check == f"slurm {check}")


def test_a_good_site_has_nothing_to_ask_for() -> None:
    found = diagnose_slurm(facts())
    assert {f.verdict for f in found} == {Verdict.OK}
    assert not any(f.advice for f in found)


@pytest.mark.parametrize(
    ("check", "verdict", "advice", "changes"),
    [
        ("programs", Verdict.FAIL, "login or service node", {"missing_programs": ("srun",)}),
        (
            "controller",
            Verdict.FAIL,
            "whether slurmctld runs",
            {"config": None, "controller_problem": "scontrol ended with 1: no contact"},
        ),
        ("clock", Verdict.WARN, "chrony", {"clock_skew_s": -8.0}),
        ("clock", Verdict.FAIL, "chrony", {"clock_skew_s": 45.0}),
        ("partition", Verdict.FAIL, "main, spare", {"slurm": SlurmSettings(partition="gone")}),
        (
            "submission",
            Verdict.FAIL,
            "set qos",
            {"refusal": refused("Invalid qos): set qos", is_transient=False)},
        ),
        (
            "submission",
            Verdict.WARN,
            "wait",
            {"refusal": refused("limit): wait", is_transient=True)},
        ),
    ],
)
def test_what_is_wrong_says_what_to_do(
    check: str, verdict: Verdict, advice: str, changes: dict[str, Any]
) -> None:
    good = facts()
    found = finding(check, SlurmFacts(**{**as_dict(good), **changes}))
    assert found.verdict is verdict
    assert advice in found.advice
    assert "\n" not in found.found + found.advice


@pytest.mark.parametrize(
    ("check", "verdict", "advice", "config"),
    [
        ("controller", Verdict.WARN, "22.05", {"version": (21, 8)}),
        ("preemption", Verdict.FAIL, "partition_prio", {"preempt_type": "preempt/none"}),
        ("exemption", Verdict.WARN, "PreemptExemptTime=0", {"preempt_exempt_s": 600.0}),
        ("killing", Verdict.WARN, "KillWait=30", {"kill_wait_s": 1.0}),
        ("killing", Verdict.WARN, "UnkillableStepTimeout=60", {"unkillable_s": 10.0}),
        ("submission", Verdict.FAIL, "max_waiting = 10", {"max_array_tasks": 10}),
        ("visibility", Verdict.WARN, "AdminLevel", {"private": frozenset({"jobs", "usage"})}),
    ],
)
def test_what_is_wrong_with_the_configuration(
    check: str, verdict: Verdict, advice: str, config: dict[str, Any]
) -> None:
    found = finding(check, facts(config=config))
    assert found.verdict is verdict
    assert advice in found.advice


@pytest.mark.parametrize(
    ("check", "verdict", "advice", "spare"),
    [
        ("partition", Verdict.FAIL, "when it will be up", {"state": "DRAIN"}),
        ("preemption", Verdict.FAIL, "PreemptMode=CANCEL", {"preempt_mode": "OFF"}),
        ("preemption", Verdict.FAIL, "PreemptMode=CANCEL", {"preempt_mode": "GANG,SUSPEND"}),
        ("preemption", Verdict.FAIL, "lower PriorityTier", {"priority_tier": 10}),
        ("preemption", Verdict.FAIL, "lower PriorityTier", {"nodes": frozenset({"n9"})}),
        ("preemption", Verdict.WARN, "leave them out", {"nodes": NODES | {"n9"}}),
        ("grace", Verdict.WARN, "GraceTime=30", {"grace_s": 0.0}),
        ("walltime", Verdict.FAIL, "walltime_s = 3600", {"max_time_s": 3600.0}),
    ],
)
def test_what_is_wrong_with_the_partition(
    check: str, verdict: Verdict, advice: str, spare: dict[str, Any]
) -> None:
    found = finding(check, facts(spare=spare))
    assert found.verdict is verdict
    assert advice in found.advice


def test_a_grace_that_the_site_does_not_give_is_told() -> None:
    hoping = msgspec.structs.replace(SCAVENGE, grace_s=120.0)
    found = finding("grace", facts(scavenge=hoping))
    assert found.verdict is Verdict.WARN
    # GraceTime and KillWait: SIGKILL comes after both.
    assert "grace_s = 60" in found.advice


def qos(name: str, *preempts: str, mode: str = "cluster", grace_s: float = 30.0) -> Qos:
    return Qos(name=name, preempts=frozenset(preempts), preempt_mode=mode, grace_s=grace_s)


@pytest.mark.parametrize(
    ("known", "verdict", "advice"),
    [
        ((qos("low"), qos("normal", "low")), Verdict.OK, ""),
        ((qos("low"), qos("normal")), Verdict.FAIL, "name low in Preempt="),
        ((qos("low", mode="OFF"), qos("normal", "low")), Verdict.FAIL, "PreemptMode=CANCEL"),
        ((), Verdict.WARN, "set qos"),
    ],
)
def test_preemption_by_qos(known: tuple[Qos, ...], verdict: Verdict, advice: str) -> None:
    # The partitions' own modes and tiers do not matter then.
    of = facts(
        config=QOS_SITE,
        spare={"preempt_mode": "OFF", "priority_tier": 10},
        slurm=SlurmSettings(partition="spare", qos="low"),
        qos=known,
    )
    found = finding("preemption", of)
    assert found.verdict is verdict
    assert advice in found.advice


def test_grace_by_qos() -> None:
    known = (qos("low", grace_s=0.0), qos("normal", "low"))
    of = facts(config=QOS_SITE, slurm=SlurmSettings(partition="spare", qos="low"), qos=known)
    assert "GraceTime=0" in finding("grace", of).found


def test_the_default_partition_is_judged_where_none_is_named() -> None:
    found = finding("preemption", facts(slurm=SlurmSettings()))
    assert "main" in found.found
    assert found.verdict is Verdict.FAIL


def as_dict(of: SlurmFacts) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__slots__}
