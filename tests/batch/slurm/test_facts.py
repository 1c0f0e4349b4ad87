"""What `scontrol` and `sacctmgr` say of a site."""

from __future__ import annotations

import math

import pytest

from malletrain.batch.slurm import facts
from malletrain.errors import BatchError

CONFIG = """\
Configuration data as of 1796070492
KillWait                = 5 sec
MaxArraySize            = 1001
PreemptMode             = GANG,SUSPEND
PreemptType             = preempt/qos
PreemptExemptTime       = 00:10:00
PrivateData             = jobs,usage
SLURM_VERSION           = 22.05.8
UnkillableStepTimeout   = 60 sec

Slurmctld(primary) at vm is UP
"""
PARTITIONS = """\
PartitionName=batch AllowGroups=ALL Default=YES QoS=N/A GraceTime=0 MaxTime=UNLIMITED \
Nodes=n[01-02] PriorityTier=10 PreemptMode=OFF State=UP TotalNodes=2
PartitionName=spare AllowGroups=ALL Default=NO QoS=N/A GraceTime=10 MaxTime=1-00:00:00 \
Nodes=n01 PriorityTier=1 PreemptMode=CANCEL State=DOWN TotalNodes=1
PartitionName=empty Default=NO MaxTime=UNLIMITED Nodes=(null) State=UP
"""


def test_the_configuration() -> None:
    assert facts.parse_config(CONFIG) == facts.SiteConfig(
        version=(22, 5),
        preempt_type="preempt/qos",
        preempt_mode="GANG,SUSPEND",
        preempt_exempt_s=600.0,
        kill_wait_s=5.0,
        unkillable_s=60.0,
        max_array_tasks=1000,
        private=frozenset({"jobs", "usage"}),
        as_of_s=1796070492.0,
    )


@pytest.mark.parametrize("text", ["", "slurm_load_ctl_conf error\n"])
def test_an_answer_without_configuration_is_an_error(text: str) -> None:
    with pytest.raises(BatchError, match="no configuration"):
        facts.parse_config(text)


def test_the_partitions() -> None:
    batch, spare, empty = facts.parse_partitions(PARTITIONS)
    assert batch == facts.Partition(
        name="batch",
        is_default=True,
        state="UP",
        nodes=frozenset({"n01", "n02"}),
        priority_tier=10,
        preempt_mode="OFF",
        grace_s=0.0,
        max_time_s=math.inf,
    )
    assert (spare.state, spare.max_time_s, spare.grace_s) == ("DOWN", 86_400.0, 10.0)
    assert empty.nodes == frozenset()
    with pytest.raises(BatchError, match="no partition"):
        facts.parse_partitions("")


def test_the_qos() -> None:
    low, high = facts.parse_qos("low||cancel|00:00:30\nhigh|low,normal|cluster|00:00:00\n")
    assert low == facts.Qos(name="low", preempts=frozenset(), preempt_mode="cancel", grace_s=30.0)
    assert high.preempts == {"low", "normal"}
