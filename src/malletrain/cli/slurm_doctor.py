"""What is wrong with a site's Slurm for pilots, and what to ask its administrator for."""

from __future__ import annotations

from collections.abc import Iterator

from malletrain.batch.slurm.facts import Partition, Qos, SiteConfig, SlurmFacts
from malletrain.cli.doctor import Finding, Verdict

_TRIED_VERSION = (22, 5)
#: Between SIGTERM and SIGKILL; an agent and its workers end within it.
_LEAST_KILL_WAIT_S = 3
#: Until a node is drained for processes that do not die, such as those in a GPU's driver.
_LEAST_UNKILLABLE_S = 30
_CLOCK_WARN_S = 3
_SUSPENDED = {"SUSPEND", "GANG"}


def diagnose_slurm(facts: SlurmFacts) -> tuple[Finding, ...]:
    """Judge every fact; the order is that of the output."""
    return tuple(_findings(facts))


def _findings(facts: SlurmFacts) -> Iterator[Finding]:
    yield _programs(facts.missing_programs)
    if facts.missing_programs:
        return
    yield _controller(facts)
    if facts.config is None:
        return
    yield _clock(facts)
    yield _partition(facts)
    if partition := facts.partition:
        yield _preemption(facts, facts.config, partition)
        yield _exemption(facts.config)
        yield _grace(facts, facts.config, partition)
        yield _walltime(facts, partition)
    yield _submission(facts, facts.config)
    yield _killing(facts.config)
    yield _privacy(facts.config)


def _finding(check: str, verdict: Verdict, found: str, advice: str = "") -> Finding:
    return Finding(check=f"slurm {check}", verdict=verdict, found=found, advice=advice)


def _programs(missing: tuple[str, ...]) -> Finding:
    if missing:
        return _finding(
            "programs",
            Verdict.FAIL,
            f"not on the PATH: {', '.join(missing)}",
            "run this on a login or service node, or ask the administrator for Slurm's client "
            "programs here",
        )
    return _finding("programs", Verdict.OK, "all on the PATH, srun among them")


def _controller(facts: SlurmFacts) -> Finding:
    if facts.config is None:
        return _finding(
            "controller",
            Verdict.FAIL,
            facts.controller_problem,
            "try again later; if it stays, ask the administrator whether slurmctld runs and may be "
            "reached from here",
        )
    version = "{}.{:02}".format(*facts.config.version)
    if facts.config.version < _TRIED_VERSION:
        return _finding(
            "controller", Verdict.WARN, f"Slurm {version}", "22.05 is the oldest that was tried"
        )
    return _finding("controller", Verdict.OK, f"Slurm {version} answers")


def _clock(facts: SlurmFacts) -> Finding:
    found = f"slurmctld's clock is {facts.clock_skew_s:+.0f} s off this machine's"
    margin_s = facts.scavenge.hole_margin_s
    if abs(facts.clock_skew_s) <= _CLOCK_WARN_S:
        return _finding("clock", Verdict.OK, "agrees with slurmctld's")
    is_beyond = abs(facts.clock_skew_s) > margin_s
    return _finding(
        "clock",
        Verdict.FAIL if is_beyond else Verdict.WARN,
        found,
        "ask the administrator to synchronise the clocks (chrony): pilots must end when planned "
        f"jobs start, give or take hole_margin_s = {margin_s:g}",
    )


def _partition(facts: SlurmFacts) -> Finding:
    partition = facts.partition
    if partition is None:
        known = ", ".join(p.name for p in facts.partitions)
        name = facts.slurm.partition
        return _finding(
            "partition",
            Verdict.FAIL,
            f"there is no partition {name}" if name else "the site has no default partition",
            f"set partition in [slurm]; there are {known}: ask the administrator which has jobs "
            "that others may preempt",
        )
    if partition.state != "UP":
        return _finding(
            "partition",
            Verdict.FAIL,
            f"{partition.name} is {partition.state}",
            "ask the administrator when it will be up",
        )
    return _finding(
        "partition", Verdict.OK, f"{partition.name} is up, with {len(partition.nodes):,} nodes"
    )


def _preemption(facts: SlurmFacts, config: SiteConfig, partition: Partition) -> Finding:
    if config.preempt_type == "preempt/partition_prio":
        return _partition_preemption(facts, partition)
    if config.preempt_type == "preempt/qos":
        return _qos_preemption(facts, config)
    return _finding(
        "preemption",
        Verdict.FAIL,
        f"no job gives way to another here (PreemptType={config.preempt_type})",
        "ask the administrator for PreemptType=preempt/partition_prio and a partition with a low "
        "PriorityTier and PreemptMode=CANCEL",
    )


def _partition_preemption(facts: SlurmFacts, partition: Partition) -> Finding:
    if bad := _bad_mode(partition.name, partition.preempt_mode):
        return bad
    above = [
        other.name
        for other in facts.partitions
        if other.priority_tier > partition.priority_tier and other.nodes & partition.nodes
    ]
    if not above:
        return _finding(
            "preemption",
            Verdict.FAIL,
            f"nobody preempts jobs of {partition.name}: no partition on its nodes has a "
            f"PriorityTier above its {partition.priority_tier}",
            "ask the administrator for a partition with a lower PriorityTier than all others'",
        )
    shared = frozenset().union(*(p.nodes for p in facts.partitions if p.name in above))
    if alone := partition.nodes - shared:
        return _finding(
            "preemption",
            Verdict.WARN,
            f"{len(alone):,} nodes of {partition.name} are in no partition above it: jobs there "
            "wait for pilots to end",
            "ask the administrator to leave them out of the partition, or keep walltime_s short",
        )
    return _finding(
        "preemption",
        Verdict.OK,
        f"jobs of {', '.join(above)} preempt those of {partition.name} ({partition.preempt_mode})",
    )


def _qos_preemption(facts: SlurmFacts, config: SiteConfig) -> Finding:
    own = _own_qos(facts)
    if own is None:
        return _finding(
            "preemption",
            Verdict.WARN,
            "preemption goes by QOS (PreemptType=preempt/qos), and which one pilots have is not "
            "known",
            "set qos in [slurm]: ask the administrator for one that all others preempt",
        )
    mode = config.preempt_mode if own.preempt_mode == "cluster" else own.preempt_mode
    if bad := _bad_mode(f"QOS {own.name}", mode):
        return bad
    above = [other.name for other in facts.qos if own.name in other.preempts]
    if not above:
        return _finding(
            "preemption",
            Verdict.FAIL,
            f"nobody preempts jobs of QOS {own.name}",
            f"ask the administrator to name {own.name} in Preempt= of the other QOS",
        )
    return _finding(
        "preemption", Verdict.OK, f"jobs of QOS {', '.join(above)} preempt those of {own.name}"
    )


def _own_qos(facts: SlurmFacts) -> Qos | None:
    # A job's own counts; a partition's sets limits only. `normal` is Slurm's name for the default.
    name = facts.slurm.qos or "normal"
    return next((qos for qos in facts.qos if qos.name == name), None)


def _bad_mode(whose: str, mode: str) -> Finding | None:
    modes = set(mode.upper().split(","))
    if modes <= {"OFF"}:
        return _finding(
            "preemption",
            Verdict.FAIL,
            f"jobs of {whose} do not give way (PreemptMode={mode})",
            "choose a partition and QOS whose jobs do, or ask the administrator for "
            "PreemptMode=CANCEL on it",
        )
    if modes & _SUSPENDED:
        return _finding(
            "preemption",
            Verdict.FAIL,
            f"jobs of {whose} are suspended in place (PreemptMode={mode}): they would keep "
            "memory and GPUs",
            "ask the administrator for PreemptMode=CANCEL on it",
        )
    return None


def _exemption(config: SiteConfig) -> Finding:
    if config.preempt_exempt_s:
        return _finding(
            "exemption",
            Verdict.WARN,
            f"jobs are not preempted in their first {config.preempt_exempt_s:g} s "
            "(PreemptExemptTime): main jobs wait for young pilots",
            "ask the administrator for PreemptExemptTime=0 on the QOS of pilots",
        )
    return _finding("exemption", Verdict.OK, "pilots can be preempted at any time")


def _grace(facts: SlurmFacts, config: SiteConfig, partition: Partition) -> Finding:
    grace_s, kill_wait_s = partition.grace_s, config.kill_wait_s
    own_qos = _own_qos(facts) if config.preempt_type == "preempt/qos" else None
    if own_qos:
        grace_s = own_qos.grace_s
    whole_s = grace_s + kill_wait_s
    found = (
        f"from SIGTERM to SIGKILL a preempted pilot has {whole_s:g} s (GraceTime={grace_s:g}, "
        f"KillWait={kill_wait_s:g})"
    )
    own_s = facts.scavenge.grace_s
    if not grace_s:
        found += ": a step that takes longer is lost and done again"
        advice = (
            "ask the administrator for GraceTime=30: main jobs do not wait for it, as pilots end "
            f"with the step under way; until then set grace_s = {whole_s:g} in [scavenge]"
        )
        return _finding("grace", Verdict.WARN, found, advice)
    if own_s > whole_s:
        return _finding(
            "grace",
            Verdict.WARN,
            f"{found}, less than grace_s = {own_s:g} in [scavenge]",
            f"set grace_s = {whole_s:g}, or ask the administrator for GraceTime={own_s:g}",
        )
    return _finding("grace", Verdict.OK, found)


def _walltime(facts: SlurmFacts, partition: Partition) -> Finding:
    walltime_s, max_s = facts.scavenge.walltime_s, partition.max_time_s
    if walltime_s > max_s:
        return _finding(
            "walltime",
            Verdict.FAIL,
            f"walltime_s = {walltime_s:g}, but {partition.name} allows {max_s:g} s (MaxTime): "
            "pilots would wait for ever",
            f"set walltime_s = {max_s:g} in [scavenge], or ask the administrator for a longer "
            "MaxTime",
        )
    return _finding("walltime", Verdict.OK, f"{walltime_s:g} s is within the partition's limit")


def _submission(facts: SlurmFacts, config: SiteConfig) -> Finding:
    if facts.refusal:
        verdict = Verdict.WARN if facts.refusal.is_transient else Verdict.FAIL
        # "reason (details): advice"
        reason, closing, advice = str(facts.refusal).partition("): ")
        return _finding("submission", verdict, reason + closing[:1], advice)
    if facts.scavenge.max_waiting > config.max_array_tasks:
        return _finding(
            "submission",
            Verdict.FAIL,
            f"max_waiting = {facts.scavenge.max_waiting} is more than an array may have "
            f"(MaxArraySize={config.max_array_tasks + 1})",
            f"set max_waiting = {config.max_array_tasks} in [scavenge]",
        )
    return _finding("submission", Verdict.OK, "sbatch would take a pilot (--test-only)")


def _killing(config: SiteConfig) -> Finding:
    found = f"KillWait={config.kill_wait_s:g}, UnkillableStepTimeout={config.unkillable_s:g}"
    if config.kill_wait_s < _LEAST_KILL_WAIT_S:
        return _finding(
            "killing",
            Verdict.WARN,
            f"{found}: cancelled pilots have too little time to clear up",
            "ask the administrator for KillWait=30, Slurm's default",
        )
    if config.unkillable_s < _LEAST_UNKILLABLE_S:
        return _finding(
            "killing",
            Verdict.WARN,
            f"{found}: a node is drained when processes in a driver do not die at once",
            "ask the administrator for UnkillableStepTimeout=60 or more",
        )
    return _finding("killing", Verdict.OK, found)


def _privacy(config: SiteConfig) -> Finding:
    hidden = sorted(config.private & {"jobs", "reservations", "nodes", "partitions"})
    if hidden:
        return _finding(
            "visibility",
            Verdict.WARN,
            f"other users' {', '.join(hidden)} are not shown (PrivateData): when nodes are wanted "
            "back is not foreseen, and pilots are preempted instead",
            "ask the administrator to let you see them (AdminLevel=Operator), or keep walltime_s "
            "short",
        )
    return _finding("visibility", Verdict.OK, "everybody's planned jobs and reservations are shown")
