"""What can be known of a site's Slurm by an ordinary user, without submitting anything."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.batch.commands import CommandFailedError, CommandKind, Commands
from malletrain.batch.pilot_script import PilotFiles
from malletrain.batch.slurm import build, parse
from malletrain.batch.slurm.refusals import refusal
from malletrain.clock import Clock
from malletrain.config import ScavengeSettings, SlurmSettings
from malletrain.errors import BatchError

_PROGRAMS = ("sinfo", "squeue", "scontrol", "sbatch", "scancel", "srun")
_AS_OF = re.compile(r"Configuration data as of (\d+)")
_FIELD = re.compile(r"(\w+)=(\S*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    name: str
    is_default: bool
    #: UP, DOWN, DRAIN or INACTIVE.
    state: str
    nodes: frozenset[str]
    priority_tier: int
    preempt_mode: str
    grace_s: float
    #: Infinite where there is no limit.
    max_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    name: str
    #: Names of those whose jobs it may preempt.
    preempts: frozenset[str]
    #: "cluster" is that of the configuration.
    preempt_mode: str
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteConfig:
    """Of `scontrol show config`."""

    version: tuple[int, int]
    preempt_type: str
    preempt_mode: str
    #: Jobs that have run for less are not preempted.
    preempt_exempt_s: float
    kill_wait_s: float
    unkillable_s: float
    max_array_tasks: int
    #: What ordinary users are not shown, such as jobs.
    private: frozenset[str]
    #: slurmctld's time when it answered.
    as_of_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmFacts:
    """What the checks judge. Where nothing is known, None or nothing."""

    scavenge: ScavengeSettings
    slurm: SlurmSettings
    missing_programs: tuple[str, ...] = ()
    #: Why slurmctld does not answer, "" where it does.
    controller_problem: str = ""
    config: SiteConfig | None = None
    #: How much slurmctld's clock is ahead of ours; it is told in whole seconds.
    clock_skew_s: float = 0.0
    partitions: tuple[Partition, ...] = ()
    qos: tuple[Qos, ...] = ()
    #: Why `sbatch` would not take pilots and what to do about it.
    refusal: BatchError | None = None

    @property
    def partition(self) -> Partition | None:
        """The one that pilots are for."""
        name = self.slurm.partition
        chosen = (p for p in self.partitions if p.name == name or (not name and p.is_default))
        return next(chosen, None)


async def gather(
    commands: Commands,
    clock: Clock,
    scavenge: ScavengeSettings,
    slurm: SlurmSettings,
    files: PilotFiles,
    *,
    path: str,
) -> SlurmFacts:
    """Ask Slurm, by five programs at most; `path` is where its programs are looked for."""
    if missing := tuple(name for name in _PROGRAMS if not shutil.which(name, path=path)):
        return SlurmFacts(scavenge=scavenge, slurm=slurm, missing_programs=missing)
    try:
        config = parse_config(await commands.run(CommandKind.QUERY, show_config()))
        skew_s = config.as_of_s - clock.now_s()
        partitions = parse_partitions(await commands.run(CommandKind.QUERY, show_partitions()))
    except BatchError as error:
        return SlurmFacts(scavenge=scavenge, slurm=slurm, controller_problem=str(error))
    return SlurmFacts(
        scavenge=scavenge,
        slurm=slurm,
        config=config,
        clock_skew_s=skew_s,
        partitions=partitions,
        qos=await _qos(commands) if config.preempt_type == "preempt/qos" else (),
        refusal=await _refusal(commands, scavenge, slurm, files),
    )


def show_config() -> tuple[str, ...]:
    return ("scontrol", "show", "config")


def show_partitions() -> tuple[str, ...]:
    return ("scontrol", "-a", "-o", "show", "partition")


def show_qos() -> tuple[str, ...]:
    return ("sacctmgr", "-nP", "show", "qos", "format=Name,Preempt,PreemptMode,GraceTime")


def try_submission(
    scavenge: ScavengeSettings, slurm: SlurmSettings, files: PilotFiles
) -> tuple[str, ...]:
    """Ask whether a pilot would be taken, and submit none."""
    minutes = build.limit_min(scavenge.walltime_s)
    options = build.pilot_options(minutes, files.job_name, files.log_dir, slurm)
    return ("sbatch", "--test-only", *options)


def parse_config(text: str) -> SiteConfig:
    """Read `Name = value` lines.

    Raises:
        BatchError: it is no configuration.
    """
    as_of = _AS_OF.match(text)
    pairs = (line.partition("=") for line in text.splitlines())
    values = {name.strip(): value.strip() for name, _, value in pairs}
    version = re.match(r"(\d+)\.(\d+)", values.get("SLURM_VERSION", ""))
    if not as_of or not version:
        raise BatchError("scontrol shows no configuration of Slurm", is_transient=True)
    private = values.get("PrivateData", "none").lower()
    return SiteConfig(
        version=(int(version[1]), int(version[2])),
        preempt_type=values.get("PreemptType", "preempt/none"),
        preempt_mode=values.get("PreemptMode", "OFF"),
        preempt_exempt_s=_exempt_s(values),
        kill_wait_s=_number(values, "KillWait", 30),
        unkillable_s=_number(values, "UnkillableStepTimeout", 60),
        max_array_tasks=int(_number(values, "MaxArraySize", 1001)) - 1,
        private=frozenset(private.split(",")) - {"none"},
        as_of_s=float(as_of[1]),
    )


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """Read one line a partition.

    Raises:
        BatchError: there is none.
    """
    found = []
    for line in text.splitlines():
        values = dict(_FIELD.findall(line))
        if "PartitionName" in values:
            found.append(_partition(values))
    if not found:
        raise BatchError("scontrol shows no partition", is_transient=True)
    return tuple(found)


def parse_qos(text: str) -> tuple[Qos, ...]:
    """Read one line a QOS."""
    rows = (line.split("|") for line in text.splitlines())
    return tuple(
        Qos(
            name=name,
            preempts=frozenset(filter(None, preempts.split(","))),
            preempt_mode=mode or "cluster",
            grace_s=parse.limit_s(grace or "0"),
        )
        for name, preempts, mode, grace in (row for row in rows if len(row) == 4)
    )


def _partition(values: Mapping[str, str]) -> Partition:
    return Partition(
        name=values["PartitionName"],
        is_default=values.get("Default") == "YES",
        state=values.get("State", "UP"),
        nodes=frozenset(parse.hosts(values.get("Nodes", ""))),
        priority_tier=int(_number(values, "PriorityTier", 1)),
        preempt_mode=values.get("PreemptMode", "OFF"),
        grace_s=_number(values, "GraceTime", 0),
        max_time_s=parse.limit_s(values.get("MaxTime", "UNLIMITED")),
    )


def _exempt_s(values: Mapping[str, str]) -> float:
    text = values.get("PreemptExemptTime", "")
    # A negative one, or none, is the way of saying that there is none.
    return parse.limit_s(text) if re.match(r"\d", text) else 0.0


def _number(values: Mapping[str, str], name: str, default: float) -> float:
    match = re.match(r"\d+", values.get(name, ""))
    return float(match[0]) if match else default


async def _qos(commands: Commands) -> tuple[Qos, ...]:
    try:
        return parse_qos(await commands.run(CommandKind.QUERY, show_qos()))
    except BatchError:
        return ()


async def _refusal(
    commands: Commands, scavenge: ScavengeSettings, slurm: SlurmSettings, files: PilotFiles
) -> BatchError | None:
    command = try_submission(scavenge, slurm, files)
    try:
        await commands.run(CommandKind.QUERY, command, "#!/bin/sh\n")
    except CommandFailedError as error:
        return refusal(error)
    except BatchError as error:
        return error
    return None
