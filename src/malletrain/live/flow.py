"""What a job's rescale flow works with: its limits, what it says, and the order under way."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from malletrain.core.events import AnyEvent
from malletrain.wire import AbortGroup, PrepareGroup, Switch, Switched, WorkerExited


@dataclass(frozen=True, slots=True)
class StartOn:
    """Start these workers (id -> node); the caller knows how the job is launched."""

    workers: dict[str, str]
    #: Worker id -> which of its node's workers it is.
    slots: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopNow:
    """End these workers, by SIGTERM first where there is a grace period."""

    worker_ids: tuple[str, ...]
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Send:
    """Pass the message to the agents of the workers in its `to`."""

    message: PrepareGroup | Switch | AbortGroup


Output = StartOn | StopNow | Send | AnyEvent


@dataclass(frozen=True, slots=True)
class FlowSettings:
    #: A started worker must have attached and be warm by then.
    attach_deadline_s: float = 120.0
    #: Prepared groups must be connected by then.
    connect_deadline_s: float = 30.0
    #: All members must have switched and leavers have gone by then.
    switch_deadline_s: float = 120.0
    #: When a member ends with status 0 and nobody said that all samples are trained: the others
    #: must end so too by then, or it counts as failed. One may evaluate and save after the loop.
    common_end_s: float = 30.0
    #: Workers that still run so long after all samples were trained are killed.
    linger_s: float = 120.0
    #: What a cancelled job's workers have between SIGTERM and SIGKILL.
    stop_grace_s: float = 5.0
    #: Failures to connect a group in a row, after which the job itself is to blame.
    group_failures: int = 3


class Stage(enum.Enum):
    WARMING = "warming"
    CONNECTING = "connecting"
    SWITCHING = "switching"


@dataclass(slots=True)
class Pending:
    """The rescale under way."""

    generation: int
    node_ids: tuple[str, ...]
    deadline_at_s: float
    #: Workers a node, 1 where not named.
    slots: Mapping[str, int] = field(default_factory=dict)
    is_stop: bool = False
    stage: Stage = Stage.WARMING
    targets: tuple[str, ...] = ()
    #: Why it is given up, once its workers are told to end for having taken too long to be warm.
    overdue: str = ""
    #: What all were told, once the stage is beyond warming.
    prepare: PrepareGroup | None = None
    ready: set[str] = field(default_factory=set)
    switched: dict[str, Switched] = field(default_factory=dict)

    @property
    def has_switched(self) -> bool:
        return self.stage is Stage.SWITCHING and self.switched.keys() >= set(self.targets)


def end_in_words(message: WorkerExited) -> str:
    """Say for the user how a worker ended, with the end of its log."""
    words = f"worker {message.worker_id} {message.reason}"
    if not message.had_attached:
        words += (
            "; it never called malletrain.train.attach: call it near the top of the script "
            "and iterate over job.batches()"
        )
    return with_log(words, message)


def with_log(words: str, message: WorkerExited) -> str:
    """Add where the worker's log is, and how it ends."""
    words += f"; log: {message.log_path}"
    return f"{words}\n{message.log_tail}" if message.log_tail else words
