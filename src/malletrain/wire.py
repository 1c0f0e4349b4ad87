"""What controller, agents and workers say to each other: msgpack-encoded, tagged structs.

A worker talks to its node's agent over a Unix socket (4-byte big-endian length, then the
message); the agent talks to the controller over a WebSocket that it opened (one message a binary
frame). Messages about a worker pass through the agent unchanged. `PROTOCOL` changes whenever a
message does; peers of another version are refused with a clear line.

How a rescale goes, for job j and its next generation g:

1. controller -> agents of joining nodes: `StartWorkers`. The worker runs the user's script, which
   attaches, is warmed up by some solo steps, and says `WorkerWarm`. Members train on meanwhile.
2. all targets warm: controller -> every target and every present member: `PrepareGroup(g)`.
   Targets build the process group of g in the background through `StoreSet`/`StoreGet` and say
   `GroupReady(g)`. Present members that are no target (leavers) build nothing.
3. all targets ready: controller -> targets and present members: `Switch(g)`. Present members agree
   through an element that rides on the gradient all-reduce on the step after which they switch.
   At the switch all-gather step counts, state from the most advanced member, train on;
   `Switched(g)`. Leavers exit with status 0 without a word.
A hard loss: `PrepareGroup(g, is_immediate=True)` with the survivors: their current group is dead,
whatever they are doing; they drop it, build g and switch as soon as they have it, no `Switch`.
Suspending: `PrepareGroup(g, members=())` then `Switch(g)`: at the agreed step the first of `to`
saves a durable checkpoint and all exit (with `is_immediate` at once, at its newest whole step).
Starting from none: `is_immediate` too; the state comes from the newest durable checkpoint, if
there is one.

A connection may break with messages under way. An agent sends again what is not proved to have
arrived; the controller says again, when the agent calls, what the rescale under way asks of its
node. So receivers take no notice of what they know: a worker id is started once, a generation
prepared once.
"""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from malletrain.core.model import Node
from malletrain.errors import WireError

PROTOCOL = 2
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

#: A worker's environment: where its agent listens, who it is, and the proof that it is.
SOCKET_ENV = "MALLETRAIN_AGENT_SOCKET"
JOB_ID_ENV = "MALLETRAIN_JOB_ID"
WORKER_ID_ENV = "MALLETRAIN_WORKER_ID"
SECRET_ENV = "MALLETRAIN_SECRET"  # noqa: S105 - the variable's name, not a secret
#: At this signal a worker writes every thread's stack to its log (`faulthandler.register`).
STACK_SIGNAL = signal.SIGUSR2

#: What ends in the journal is checked here: JSON knows neither infinity nor NaN, and an event with
#: one could be written but never read.
Quantity = Annotated[float, Meta(ge=0.0, le=sys.float_info.max)]


class Message(Struct, frozen=True, tag=True, kw_only=True):
    pass


# -- worker or agent -> controller ---------------------------------------------------------------


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A live worker, as its agent knows it."""

    worker_id: str
    job_id: str
    node_id: str
    #: Which of the node's workers of this job it is.
    slot: int = 0
    #: Of the group it trains in; 0 while warming.
    generation: int = 0
    is_warm: bool = False


class AgentHello(Message, frozen=True):
    """The first message on every connection of an agent."""

    protocol: int
    node: Node
    #: Distinguishes a restarted agent of the same node from a reconnecting one.
    incarnation: str
    pid: int
    workers: tuple[WorkerInfo, ...] = ()


class AgentLeaving(Message, frozen=True):
    """The batch system wants the node back within `grace_s`."""

    node_id: str
    grace_s: Quantity
    reason: str = ""
    #: Somebody waits for the node. Its workers are killed after so long: where others of their job
    #: stay, and where none does and the job has its state to save. None: they have until the end.
    shrink_within_s: Quantity | None = None
    save_within_s: Quantity | None = None


class Malformed(Message, frozen=True):
    """The agent closed connections at its workers' socket for what came: so many since its start.

    A sum, so that it may be told twice.
    """

    connections: int


class WorkerWarm(Message, frozen=True):
    worker_id: str
    job_id: str


class GroupReady(Message, frozen=True):
    worker_id: str
    job_id: str
    generation: int


class GroupFailed(Message, frozen=True):
    """The group of this generation could not be built."""

    worker_id: str
    job_id: str
    generation: int
    reason: str


class Switched(Message, frozen=True):
    worker_id: str
    job_id: str
    generation: int
    #: Committed steps and samples that the generation starts from.
    step: int
    samples: Quantity
    #: This worker's time without progress; 0 for a joiner.
    stall_s: Quantity


class WorkerExited(Message, frozen=True):
    """The agent reaped it, or gave it up as hung and killed it."""

    worker_id: str
    job_id: str
    #: Exit status; negative: killed by that signal.
    status: int
    #: In words, for the user: "exited with 1", "killed by SIGKILL", "hung: no step for 120 s".
    reason: str
    log_path: str
    #: The last 20 lines of its log, where it did not end well.
    log_tail: str = ""
    #: It had called the library before it ended.
    had_attached: bool = True


class Progress(Message, frozen=True):
    """Sent by rank 0 at most every `WorkerSettings.report_every_s`."""

    worker_id: str
    job_id: str
    generation: int
    #: Members of the group.
    workers: int
    step: int
    epoch: int
    samples: Quantity
    #: Steady-state steps in the window, warm-up after a switch left out.
    steps: int
    samples_per_s: Quantity
    variance: Quantity
    loss: float | None = None


class Saved(Message, frozen=True):
    """A durable checkpoint is complete on disk."""

    worker_id: str
    job_id: str
    generation: int
    step: int
    samples: Quantity
    path: str


class Noted(Message, frozen=True):
    """Something the user should see; training goes on (a checkpoint that could not be written)."""

    worker_id: str
    job_id: str
    note: str


class WorkDone(Message, frozen=True):
    """All the job's samples are trained; the script goes on to its end."""

    worker_id: str
    job_id: str
    generation: int
    step: int
    samples: Quantity


class StoreSet(Message, frozen=True):
    """Rendezvous keys live in the controller, one space a (job, generation)."""

    job_id: str
    generation: int
    key: str
    value: bytes


class StoreGet(Message, frozen=True):
    """Answered by `StoreValue` as soon as the key is set."""

    job_id: str
    generation: int
    key: str
    #: Echoed in the answer; unique within the agent's connection.
    request: int


class StoreAdd(Message, frozen=True):
    """Adds to an integer key (0 where unset); answered by `StoreValue` with the decimal sum."""

    job_id: str
    generation: int
    key: str
    amount: int
    request: int


# -- controller -> agent (and on to the worker) --------------------------------------------------


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """What a worker must know that its user's script does not say."""

    checkpoint_dir: str
    checkpoint_every_s: float = 60.0
    checkpoints_kept: int = 2
    report_every_s: float = 0.5
    #: Steps after a switch that are no measurement.
    warmup_steps: int = 3
    #: Solo steps of a joiner before it calls itself warm.
    solo_steps: int = 2
    #: After this long a collective is given up as hung.
    collective_timeout_s: float = 60.0
    #: Network interface for collectives; "" leaves it to the library.
    interface: str = ""
    work_samples: float | None = None


class Welcome(Message, frozen=True):
    """The controller's answer to `AgentHello`."""

    protocol: int
    controller: str
    #: Workers that the agent reported and that must end: their generation is over.
    stop_worker_ids: tuple[str, ...] = ()


class WorkerStart(Struct, frozen=True, kw_only=True):
    worker_id: str
    #: GPU index on the node, None on CPU.
    gpu: int | None = None


class StartWorkers(Message, frozen=True):
    job_id: str
    workers: tuple[WorkerStart, ...]
    command: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str], ...]
    log_dir: str
    settings: WorkerSettings


class PrepareGroup(Message, frozen=True):
    job_id: str
    generation: int
    #: Worker ids in rank order.
    members: tuple[str, ...]
    #: To whom this agent must pass it on.
    to: tuple[str, ...]
    #: There is no working present group to agree with: switch as soon as this one is built.
    is_immediate: bool = False


class Switch(Message, frozen=True):
    job_id: str
    generation: int
    to: tuple[str, ...]


class AbortGroup(Message, frozen=True):
    """Forget the prepared group of this generation; the present one trains on."""

    job_id: str
    generation: int
    to: tuple[str, ...]


class StopWorkers(Message, frozen=True):
    """SIGTERM, `grace_s`, SIGKILL; each still ends in a `WorkerExited`."""

    job_id: str
    worker_ids: tuple[str, ...]
    grace_s: float


class StoreValue(Message, frozen=True):
    request: int
    value: bytes


class ReleaseNode(Message, frozen=True):
    """Nobody uses the node: the agent ends its workers, if any, and itself."""

    reason: str


# -- worker <-> agent only -----------------------------------------------------------------------


class WorkerHello(Message, frozen=True):
    """The first message of a worker, sent by `attach`."""

    protocol: int
    worker_id: str
    #: From its environment: a stranger's process cannot speak for the worker.
    secret: str
    pid: int


class WorkerWelcome(Message, frozen=True):
    settings: WorkerSettings


class Heartbeat(Message, frozen=True):
    """Every second from the worker's own thread: a stopped process sends none."""

    worker_id: str
    step: int
    #: It waits for the others in a collective or for the controller, so it is not to blame.
    is_waiting: bool


FromAgent = (
    AgentHello
    | AgentLeaving
    | Malformed
    | WorkerWarm
    | GroupReady
    | GroupFailed
    | Switched
    | WorkerExited
    | Progress
    | Saved
    | Noted
    | WorkDone
    | StoreSet
    | StoreGet
    | StoreAdd
)
ToAgent = (
    Welcome
    | StartWorkers
    | PrepareGroup
    | Switch
    | AbortGroup
    | StopWorkers
    | StoreValue
    | ReleaseNode
)
FromWorker = (
    WorkerHello
    | Heartbeat
    | WorkerWarm
    | GroupReady
    | GroupFailed
    | Switched
    | Progress
    | Saved
    | Noted
    | WorkDone
    | StoreSet
    | StoreGet
    | StoreAdd
)
ToWorker = WorkerWelcome | PrepareGroup | Switch | AbortGroup | StoreValue

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {
    kinds: msgspec.msgpack.Decoder(kinds) for kinds in (FromAgent, ToAgent, FromWorker, ToWorker)
}


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes, kinds: Any) -> Any:
    """Decode a message of one of the `kinds`: `FromAgent`, `ToAgent`, `FromWorker`, `ToWorker`.

    Raises:
        WireError: too long, not msgpack, or no message of these kinds.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"message of {len(data)} bytes, the limit is {MAX_MESSAGE_BYTES}")
    try:
        return _decoders[kinds].decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"not a message: {error}") from error
