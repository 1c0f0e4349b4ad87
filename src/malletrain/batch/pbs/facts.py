"""What can be known of a site's PBS by an ordinary user, without submitting anything."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

from msgspec import Struct, field

from malletrain.batch.commands import CommandKind, Commands
from malletrain.batch.pbs import build
from malletrain.batch.pbs.answers import Text, decode, duration_s, text_of
from malletrain.clock import Clock
from malletrain.config import PbsSettings, ScavengeSettings
from malletrain.errors import BatchError

_PROGRAMS = ("qsub", "qdel", "qstat", "pbsnodes", "pbs_rstat")
#: PBS's own, where neither the server nor the queue says.
_KILL_DELAY_S = 10.0
#: `    name = value`, the value in quotes or not.
_ATTRIBUTE = re.compile(r'^\s+(\w+) = "?(.*?)"?\s*$', re.MULTILINE)
_TARGET = re.compile(r"\s*queue=(\S+)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    name: str
    #: It passes jobs on to others.
    is_routing: bool = False
    #: Whether it takes jobs, and whether those in it start.
    is_enabled: bool = True
    is_started: bool = True
    priority: int = 0
    #: Infinite where there is no limit.
    max_walltime_s: float
    kill_delay_s: float = _KILL_DELAY_S
    #: None where there is no limit but the server's.
    max_array_size: int | None = None
    #: The only queues whose jobs its own may preempt by default; empty: all.
    targets: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    name: str
    version: str
    default_queue: str
    max_array_size: int | None
    #: Everybody is shown everybody's jobs.
    is_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFacts:
    """How jobs make way for others; the defaults are PBS's."""

    #: What is tried first, second and so on: Suspend, Checkpoint, Requeue, Delete. Percentages of
    #: the time that is left may stand between.
    preempt_order: str = "SCR"
    #: Levels of jobs, the highest first.
    preempt_prio: str = "express_queue, normal_jobs"
    #: Queues from this priority on are express queues.
    express_priority: int = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class PbsFacts:
    """What the checks judge. Where nothing is known, None or nothing."""

    scavenge: ScavengeSettings
    pbs: PbsSettings
    missing_programs: tuple[str, ...] = ()
    #: Why the server does not answer, "" where it does.
    server_problem: str = ""
    server: ServerFacts | None = None
    queues: tuple[QueueFacts, ...] = ()
    #: None where PBS, as before version 19, does not tell users.
    scheduler: SchedulerFacts | None = None
    #: How much the newest time that the server has noted is ahead of ours. PBS does not tell its
    #: clock: one that is behind is not found.
    clock_ahead_s: float = 0.0

    @property
    def queue(self) -> QueueFacts | None:
        """The one that pilots are for."""
        name = self.pbs.queue or (self.server.default_queue if self.server else "")
        return next((queue for queue in self.queues if queue.name == name), None)


async def gather(
    commands: Commands, clock: Clock, scavenge: ScavengeSettings, pbs: PbsSettings, *, path: str
) -> PbsFacts:
    """Ask PBS, by four programs at most; `path` is where its programs are looked for."""
    if missing := tuple(name for name in _PROGRAMS if not shutil.which(name, path=path)):
        return PbsFacts(scavenge=scavenge, pbs=pbs, missing_programs=missing)
    try:
        server = parse_server(await commands.run(CommandKind.QUERY, show_server()))
        queues = parse_queues(await commands.run(CommandKind.QUERY, show_queues()))
        noted_at_s = newest_s(await commands.run(CommandKind.QUERY, build.show_nodes()))
    except BatchError as error:
        return PbsFacts(scavenge=scavenge, pbs=pbs, server_problem=str(error))
    return PbsFacts(
        scavenge=scavenge,
        pbs=pbs,
        server=server,
        queues=queues,
        scheduler=await _scheduler(commands),
        clock_ahead_s=max(noted_at_s - clock.now_s(), 0.0),
    )


def show_server() -> tuple[str, ...]:
    return ("qstat", "-B", "-f", "-F", "json")


def show_queues() -> tuple[str, ...]:
    return ("qstat", "-Q", "-f", "-F", "json")


def show_scheduler() -> tuple[str, ...]:
    return ("qmgr", "-c", "list sched default")


class _Server(Struct, frozen=True):
    default_queue: Text = None
    max_array_size: int | None = None
    query_other_jobs: Text = None


class _Servers(Struct, frozen=True):
    version: Text = field(name="pbs_version", default=None)
    servers: dict[str, _Server] = field(name="Server", default_factory=dict)


class _Limits(Struct, frozen=True):
    walltime: Text = None


class _Defaults(Struct, frozen=True):
    preempt_targets: Text = None


class _Queue(Struct, frozen=True):
    kind: str = field(name="queue_type", default="")
    priority: int = field(name="Priority", default=0)
    enabled: Text = None
    started: Text = None
    kill_delay: Text = None
    max_array_size: int | None = None
    limits: _Limits = field(name="resources_max", default=_Limits())
    defaults: _Defaults = field(name="resources_default", default=_Defaults())


class _Queues(Struct, frozen=True):
    queues: dict[str, _Queue] = field(name="Queue", default_factory=dict)


class _NodeTimes(Struct, frozen=True):
    changed_at_s: float = field(name="last_state_change_time", default=0.0)
    used_at_s: float = field(name="last_used_time", default=0.0)


class _NodesTimes(Struct, frozen=True):
    nodes: dict[str, _NodeTimes]


def parse_server(text: str) -> ServerFacts:
    """Read what the default server says of itself.

    Raises:
        BatchError: it says nothing.
    """
    answer = decode(text, _Servers, "qstat")
    for name, server in answer.servers.items():
        return ServerFacts(
            name=name,
            version=text_of(answer.version),
            default_queue=text_of(server.default_queue),
            max_array_size=server.max_array_size,
            is_open=text_of(server.query_other_jobs) != "False",
        )
    raise BatchError("qstat lists no server", is_transient=True)


def parse_queues(text: str) -> tuple[QueueFacts, ...]:
    """Read all queues.

    Raises:
        BatchError: there is none.
    """
    answer = decode(text, _Queues, "qstat")
    if not answer.queues:
        raise BatchError("qstat lists no queue", is_transient=True)
    return tuple(_queue(name, queue) for name, queue in answer.queues.items())


def _queue(name: str, queue: _Queue) -> QueueFacts:
    named = text_of(queue.kill_delay)
    targets = text_of(queue.defaults.preempt_targets).split(",")
    return QueueFacts(
        name=name,
        is_routing=queue.kind == "Route",
        is_enabled=text_of(queue.enabled) == "True",
        is_started=text_of(queue.started) == "True",
        priority=queue.priority,
        max_walltime_s=duration_s(queue.limits.walltime),
        kill_delay_s=duration_s(named) if named else _KILL_DELAY_S,
        max_array_size=queue.max_array_size,
        targets=frozenset(match[1] for target in targets if (match := _TARGET.fullmatch(target))),
    )


def parse_scheduler(text: str) -> SchedulerFacts | None:
    """Read what `qmgr` lists of it; None where that is nothing of preemption."""
    found = dict(_ATTRIBUTE.findall(text))
    if not any(name.startswith("preempt_") for name in found):
        return None
    default = SchedulerFacts()
    express = found.get("preempt_queue_prio", "")
    return SchedulerFacts(
        preempt_order=found.get("preempt_order", default.preempt_order),
        preempt_prio=found.get("preempt_prio", default.preempt_prio),
        express_priority=int(express) if express.isdecimal() else default.express_priority,
    )


async def _scheduler(commands: Commands) -> SchedulerFacts | None:
    try:
        return parse_scheduler(await commands.run(CommandKind.QUERY, show_scheduler()))
    except BatchError:
        return None


def newest_s(text: str) -> float:
    """Return the newest time that the server has noted of any vnode."""
    nodes = decode(text, _NodesTimes, "pbsnodes").nodes.values()
    return max((max(node.changed_at_s, node.used_at_s) for node in nodes), default=0.0)
