from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from malletrain.devcluster import Preempt, Settings
from malletrain.devcluster.rendering import (
    Site,
    node_names,
    slurm_conf,
    slurmdbd_conf,
    topology_conf,
)
from malletrain.errors import UsageError

SITE = Site(
    directory=Path("/d"),
    user="u",
    host="h",
    is_loopback_only=True,
    controller_port=20_000,
    accounting_port=20_001,
    node_port=20_002,
)


def lines(settings: Settings, site: Site = SITE) -> list[str]:
    return slurm_conf(settings, site).splitlines()


def partition(settings: Settings, name: str) -> dict[str, str]:
    (line,) = (line for line in lines(settings) if line.startswith(f"PartitionName={name} "))
    return dict(word.split("=") for word in line.split())


def test_every_node_has_its_own_port_and_the_cpus_asked_for() -> None:
    nodes = [line.split() for line in lines(Settings(nodes=3, cpus=5)) if "NodeName" in line]
    assert [node[0] for node in nodes] == ["NodeName=nd01", "NodeName=nd02", "NodeName=nd03"]
    assert [node[3] for node in nodes] == ["Port=20002", "Port=20003", "Port=20004"]
    assert all("CPUs=5" in node and "NodeAddr=127.0.0.1" in node for node in nodes)


def test_names_sort_as_numbers_do() -> None:
    names = node_names(Settings(nodes=100))
    assert (names[0], names[-1]) == ("nd001", "nd100")
    assert list(names) == sorted(names)


def test_batch_is_the_default_and_takes_from_scavenge() -> None:
    settings = Settings(grace_s=30, preempt=Preempt.REQUEUE)
    batch, scavenge = partition(settings, "batch"), partition(settings, "scavenge")
    assert batch["Default"] == "YES"
    assert batch["PreemptMode"] == "OFF"
    assert int(batch["PriorityTier"]) > int(scavenge["PriorityTier"])
    assert scavenge["PreemptMode"] == "REQUEUE"
    assert scavenge["GraceTime"] == "30"


def test_a_key_that_is_set_takes_the_place_of_ours_however_it_is_spelt() -> None:
    text = lines(Settings(slurm={"slurmdtimeout": "7", "PriorityType": "priority/multifactor"}))
    assert [line for line in text if line.lower().startswith("slurmdtimeout=")] == [
        "SlurmdTimeout=7"
    ]
    assert "PriorityType=priority/multifactor" in text


@pytest.mark.parametrize(("is_only", "count"), [(True, 1), (False, 0)])
def test_slurm_keeps_to_loopback_where_it_can(is_only: bool, count: int) -> None:
    site = replace(SITE, is_loopback_only=is_only)
    for text in (slurm_conf(Settings(), site), slurmdbd_conf(site)):
        assert text.count("NoInAddrAny") == count


def test_ended_jobs_are_recorded_in_a_file_or_in_the_database() -> None:
    assert "JobCompLoc=/d/log/jobcomp.log" in lines(Settings())
    with_accounts = lines(Settings(has_accounting=True))
    assert "AccountingStoragePort=20001" in with_accounts
    assert not [line for line in with_accounts if line.startswith("JobComp")]


def test_nodes_are_spread_evenly_over_switches() -> None:
    assert topology_conf(Settings(nodes=5, switches=2)).splitlines() == [
        "SwitchName=leaf1 Nodes=nd01,nd02",
        "SwitchName=leaf2 Nodes=nd03,nd04,nd05",
        "SwitchName=root Switches=leaf1,leaf2",
    ]
    assert "TopologyPlugin=topology/tree" in lines(Settings(switches=2))
    assert not [line for line in lines(Settings()) if line.startswith("Topology")]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (Settings(nodes=0), "nodes is 0: it must be 1 to 256"),
        (Settings(cpus=2000), "cpus is 2000: it must be 1 to 1024"),
        (Settings(grace_s=-1), "grace_s is -1: it must be 0 to 3600"),
        (Settings(nodes=2, switches=3), "switches is 3: it must be at most 2"),
        (Settings(slurm={"A B": "1"}), "'A B' is no key of slurm.conf"),
        (Settings(slurm={"nodeName": "x"}), "nodeName cannot be set"),
        (Settings(slurm={"Epilog": "a\nb"}), "must be text of one line"),
        (Settings(slurm={"Epilog": ""}), "must be text of one line"),
    ],
)
def test_what_cannot_be_is_refused(settings: Settings, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        settings.check()
