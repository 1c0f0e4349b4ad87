"""The configuration file: TOML, one table a part, every key optional.

```toml
[core]                 # decisions: objective, advisor, prior, horizon, restart, quotas
objective = "samples"

[core.advisor]
kind = "informed"

[live]                 # the controller: deadlines and limits
agent_away_limit_s = 5.0

[worker]               # what every worker is told
checkpoint_every_s = 60.0

[local]                # the local batch system
max_nodes = 8

[scavenge]             # pilots in the queue of a batch system, whichever it is
max_nodes = 64

[slurm]                # how Slurm is asked for them; [pbs] for OpenPBS and PBS Pro
partition = "preemptible"
```

Keys, defaults and units are those of the structs: `core.settings`, and below.
"""

from __future__ import annotations

import difflib
import enum
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from malletrain.core.settings import CoreSettings
from malletrain.errors import ConfigError


class AllocatorName(enum.Enum):
    """Those of `malletrain.allocate.ALLOCATORS`, whose packages need not be loaded to name them."""

    EXACT = "exact"
    MILP = "milp"
    FIFO = "fifo"
    EQUAL_SHARE = "equal-share"
    GREEDY = "greedy"
    PAPERS_MILP_HALF_RANGE_BUG = "papers-milp-half-range-bug"


class BatchName(enum.Enum):
    """Where nodes come from."""

    LOCAL = "local"
    SLURM = "slurm"
    PBS = "pbs"


class LiveSettings(Struct, frozen=True, kw_only=True):
    """Who decides for the controller, what it waits for, and for how long."""

    allocator: AllocatorName = AllocatorName.EXACT
    #: After this long an allocator that does integer programming stops searching.
    allocator_time_limit_s: float = 10.0
    #: What follows an event within this time is decided together with it.
    settle_s: float = 0.02
    #: Reports of progress alone lead to a decision at most this often.
    progress_decide_s: float = 1.0
    #: A job's reports of progress are journalled as one at most this often, but for the first ones
    #: of a generation, and those of a job that is held at a scale to be measured.
    progress_journal_s: float = 5.0
    #: A node is lost this long after its agent fell silent (its connection's ping unanswered).
    agent_away_limit_s: float = 5.0
    #: A node is lost this long after its agent's side closed the connection, as its kernel does
    #: when the agent dies. Until then its jobs' other workers stand still.
    agent_closed_limit_s: float = 1.0
    #: Agents are pinged this often, and given as long to answer.
    ping_every_s: float = 10.0
    #: After a restart, agents have this long to come back with their workers.
    reattach_s: float = 20.0
    #: Messages that may wait for one agent; beyond, its connection is dropped.
    outbox_messages: int = 10_000
    #: The state itself is journalled after so many events.
    snapshot_every_events: int = 5_000
    #: Older events are forgotten once a later state is journalled from which all goes on.
    journal_kept_days: float = 30.0
    #: A journal that cannot be written (disk full) is tried again this often.
    journal_retry_s: float = 1.0
    #: From start to warm; interpreters, imports and data take their time.
    attach_deadline_s: float = 120.0
    connect_deadline_s: float = 30.0
    #: A step, and the switch or the checkpoint after it, must fit in.
    switch_deadline_s: float = 120.0
    #: Between SIGTERM and SIGKILL for the workers of a cancelled job.
    stop_grace_s: float = 5.0
    #: What a script does after its last sample (an evaluation, an export) must end within.
    linger_s: float = 3600.0
    #: At shutdown, jobs have this long to save their state.
    shutdown_limit_s: float = 30.0


class WorkerDefaults(Struct, frozen=True, kw_only=True):
    """What every worker is told: see `wire.WorkerSettings`."""

    checkpoint_every_s: float = 60.0
    checkpoints_kept: int = 2
    report_every_s: float = 0.5
    warmup_steps: int = 3
    solo_steps: int = 2
    collective_timeout_s: float = 60.0
    #: Network interface for collectives; "" leaves it to the library.
    interface: str = ""


class LocalSettings(Struct, frozen=True, kw_only=True):
    """The local batch system: process groups of this machine as nodes."""

    max_nodes: int = 8
    #: Nodes opened at the start where no trace drives them.
    nodes: int = 0
    #: A trace file that drives the nodes; "" leaves them to `malletrain node add/remove`.
    trace: str = ""
    #: Trace seconds that pass in one second.
    speed: float = 1.0
    #: Between SIGTERM and SIGKILL of a node that is taken back.
    grace_s: float = 5.0
    #: A worker that makes no step for this long, waiting for others left out, is killed as hung.
    hang_limit_s: float = 120.0
    #: A worker whose library gives no sign of life for this long (it does every second) as well.
    heartbeat_limit_s: float = 10.0
    #: Nodes end themselves, and the training on them, once no controller was there for this long.
    controller_away_limit_s: float = 600.0


class ScavengeSettings(Struct, frozen=True, kw_only=True):
    """How nodes are taken from a batch system's queue, whichever it is."""

    #: The most pilots that run or wait at once.
    max_nodes: int = 64
    #: The most of them that wait.
    max_waiting: int = 16
    #: What a pilot asks for where no hole is shorter. Long ones rescale less, short ones start
    #: sooner in a queue that is planned ahead.
    walltime_s: float = 4 * 3600.0
    #: Shorter holes are left alone: starting costs some of them.
    min_hole_s: float = 300.0
    #: What a pilot in a hole leaves at its end.
    hole_margin_s: float = 30.0
    #: Between two sets of queries to the scheduler, a tenth of it more or less.
    query_every_s: float = 120.0
    #: While the scheduler does not answer, this grows up to so much.
    query_backoff_max_s: float = 900.0
    #: Between two submissions; doubled for each pilot that ends before it called.
    submit_every_s: float = 10.0
    #: After a node was taken from us, no pilot waits for so long: whoever takes it may wait for
    #: more nodes, and be kept waiting by pilots that get them first.
    calm_s: float = 5.0
    #: A pilot that started, as far as is known, has so long to call.
    call_limit_s: float = 120.0
    #: Nodes that no job could use are given back after this time.
    surplus_limit_s: float = 60.0
    #: Jobs leave a node so long before its walltime ends.
    leave_ahead_s: float = 60.0
    #: Of the partition or queue: from the first signal to SIGKILL.
    grace_s: float = 30.0
    #: After the signal, workers have so long to leave by a planned rescale. Then they are killed,
    #: which costs the others of their job a step: somebody waits for the node.
    shrink_within_s: float = 0.3
    #: The same of jobs that lose all their nodes and save their state first.
    save_within_s: float = 1.5
    #: Signals by which a node is asked back.
    leave_signals: tuple[str, ...] = ("SIGTERM",)
    #: The Python that has malletrain and PyTorch, on every node; "" is the controller's own.
    interpreter: str = ""
    #: Shell lines that come before it: modules, an environment's activation.
    prologue: str = ""
    #: What is put before the interpreter, such as a container's `exec`.
    wrapper: tuple[str, ...] = ()
    #: Variables of the submitting environment that pilots keep; all others they do not get.
    keep_env: tuple[str, ...] = ()
    #: Where controller and nodes both read and write: the endpoint and token, jobs' logs and
    #: checkpoints; "" is the state directory, which then all nodes must see.
    shared_dir: str = ""
    #: Where a node has room for what lives as long as a pilot.
    scratch_dir: str = "/tmp"  # noqa: S108 - a private directory is made there
    #: The controller's address as nodes reach it: a name, an IP address, or "" to find it by
    #: `subnet`, else by the host's name.
    address: str = ""
    #: The network for the controller's port and for collectives, such as 10.1.0.0/16.
    subnet: str = ""
    #: Nodes end themselves, and the training on them, once no controller was there for this long.
    controller_away_limit_s: float = 600.0
    #: See `[local]`.
    hang_limit_s: float = 120.0
    heartbeat_limit_s: float = 10.0


class SlurmSettings(Struct, frozen=True, kw_only=True):
    """How pilots are submitted by `sbatch`."""

    #: One whose jobs the site's other jobs may preempt; "" is the site's default.
    partition: str = ""
    account: str = ""
    qos: str = ""
    #: The more, the later among waiting jobs.
    nice: int = 10_000
    #: More options for `sbatch`, such as "--constraint=gpu".
    sbatch_options: tuple[str, ...] = ()
    #: More options for the `srun` under which the agent runs.
    srun_options: tuple[str, ...] = ()


class PbsSettings(Struct, frozen=True, kw_only=True):
    """How pilots are submitted by `qsub` of OpenPBS or PBS Pro."""

    queue: str = ""
    project: str = ""
    #: One node, whole.
    select: str = "1"
    place: str = "excl"
    #: More options for `qsub`.
    qsub_options: tuple[str, ...] = ()


class Config(Struct, frozen=True, kw_only=True):
    core: CoreSettings = CoreSettings()
    live: LiveSettings = LiveSettings()
    worker: WorkerDefaults = WorkerDefaults()
    local: LocalSettings = LocalSettings()
    scavenge: ScavengeSettings = ScavengeSettings()
    slurm: SlurmSettings = SlurmSettings()
    pbs: PbsSettings = PbsSettings()

    @classmethod
    def load(cls, path: Path | None) -> Config:
        """Read a file; None gives the defaults.

        Raises:
            ConfigError: in one line, which key of which file, what it has and what it may have.
        """
        if path is None:
            return cls()
        try:
            return parse(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not UTF-8 text: {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error


#: No number may be more: as a wait, 30 years. An infinite one could not be kept in the journal,
#: as JSON has none.
_MOST = 1e9
#: (least, most) of numbers that have bounds other than the usual ones, 0 and `_MOST`.
_BOUNDS: dict[str, tuple[float, float]] = {
    "core.advisor.relative_precision": (1e-4, 1.0),
    "core.advisor.min_steps": (2, _MOST),
    "core.advisor.scales": (2, _MOST),
    "core.prior.rate_sd": (1e-3, _MOST),
    "core.prior.cost_weight": (1e-3, _MOST),
    "core.horizon.fixed_s": (1e-3, _MOST),
    "core.horizon.min_s": (1e-3, _MOST),
    "core.horizon.memory_s": (1e-3, _MOST),
    "core.restart.backoff_factor": (1.0, _MOST),
    "live.allocator_time_limit_s": (0.01, _MOST),
    # Nothing is decided while it lasts.
    "live.settle_s": (0.0, 60.0),
    "live.ping_every_s": (0.1, _MOST),
    "live.journal_retry_s": (0.01, _MOST),
    "live.outbox_messages": (10, _MOST),
    "live.snapshot_every_events": (1, _MOST),
    "live.attach_deadline_s": (0.1, _MOST),
    "live.connect_deadline_s": (0.1, _MOST),
    "live.switch_deadline_s": (0.1, _MOST),
    "worker.checkpoint_every_s": (0.1, _MOST),
    "worker.checkpoints_kept": (1, _MOST),
    "worker.collective_timeout_s": (1.0, _MOST),
    "local.max_nodes": (1, _MOST),
    "local.speed": (1e-6, _MOST),
    "local.hang_limit_s": (1.0, _MOST),
    # Heartbeats come every second.
    "local.heartbeat_limit_s": (2.0, _MOST),
    "local.controller_away_limit_s": (1.0, _MOST),
    "scavenge.max_nodes": (1, _MOST),
    "scavenge.max_waiting": (1, 1000),
    "scavenge.walltime_s": (60.0, _MOST),
    "scavenge.min_hole_s": (60.0, _MOST),
    # Administrators ask for no more than one in a minute or two.
    "scavenge.query_every_s": (10.0, _MOST),
    "scavenge.query_backoff_max_s": (10.0, _MOST),
    "scavenge.submit_every_s": (1.0, _MOST),
    "scavenge.call_limit_s": (5.0, _MOST),
    "scavenge.controller_away_limit_s": (1.0, _MOST),
    "scavenge.hang_limit_s": (1.0, _MOST),
    "scavenge.heartbeat_limit_s": (2.0, _MOST),
    "slurm.nice": (0, 2_147_483_645),
}


def parse(text: str) -> Config:
    """Read the text of a configuration file.

    Raises:
        ConfigError: see `Config.load`.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError("it has numbers too long or tables too deep") from error
    return _checked(raw)


def core_settings(base: CoreSettings, table: Mapping[str, Any]) -> CoreSettings:
    """Return settings with those of a table `[core]` in the place of their own.

    Raises:
        ConfigError: see `Config.load`.
    """
    _check_keys({"core": table}, Config, "")
    return _checked({"core": _merged(msgspec.to_builtins(base), table)}).core


def _merged(base: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in table.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) else value
    return merged


def _checked(raw: dict[str, Any]) -> Config:
    _check_keys(raw, Config, "")
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_in_one_line(error, Config)) from error
    for path, value in _numbers(config, ""):
        _check_number(path, value)
    return config


def _check_number(path: str, value: float) -> None:
    least, most = _BOUNDS.get(path, (0.0, _MOST))
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(f"{path} = nan is out of range: a number from {least:g} to {most:g}")
    if not least <= value <= most:
        limit = f"at least {least:g}" if value < least else f"at most {most:g}"
        raise ConfigError(f"{path} = {_short(value)} is out of range: {limit}")


def _short(value: float) -> str:
    """Return it as text; a whole number can be too long for a line, and for a float."""
    try:
        return f"{value:g}"
    except OverflowError:
        return "-inf" if value < 0 else "inf"


def _check_keys(raw: dict[str, Any], kind: type[Struct], where: str) -> None:
    """Refuse what nobody would read: a misspelt key must not silently mean its default."""
    types = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in raw.items():
        if key not in types:
            near = difflib.get_close_matches(key, types, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(types)}"
            raise ConfigError(f"unknown key {where}{key}: {hint}")
        if isinstance(types[key], type) and issubclass(types[key], Struct):
            if not isinstance(value, dict):
                raise ConfigError(f"{where}{key} must be a table: write [{where}{key}]")
            _check_keys(value, types[key], f"{where}{key}.")


def _numbers(struct: Struct, where: str) -> Iterator[tuple[str, float]]:
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, Struct):
            yield from _numbers(value, f"{where}{name}.")
        elif isinstance(value, dict):
            yield from ((f"{where}{name}.{key}", number) for key, number in value.items())
        elif isinstance(value, int | float) and not isinstance(value, bool | enum.Enum):
            yield f"{where}{name}", value


def _in_one_line(error: msgspec.ValidationError, kind: type[Struct]) -> str:
    """Turn "Expected `int`, got `str` - at `$.a.b`" round: the key first."""
    what, _, where = str(error).partition(" - at ")
    key = where.strip("`").removeprefix("$.")
    choices = _choices(kind, key.split("."))
    known = f": it must be one of {', '.join(choices)}" if choices else ""
    return f"{key}: {what[:1].lower()}{what[1:]}{known}"


def _choices(kind: Any, path: Sequence[str]) -> list[str]:
    """Return what the key may be, where it is one of a few words."""
    for name in path:
        types = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        kind = types.get(name)
        if not isinstance(kind, type) or not issubclass(kind, Struct):
            break
    is_choice = isinstance(kind, type) and issubclass(kind, enum.Enum)
    return [str(choice.value) for choice in kind] if is_choice else []
