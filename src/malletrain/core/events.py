"""What happened. Every event carries its time: the core never asks for one."""

from __future__ import annotations

from msgspec import Struct

from malletrain.core.actions import Action
from malletrain.core.model import JobSpec, Node, Pin
from malletrain.core.settings import CoreSettings


class Event(Struct, frozen=True, tag=True, kw_only=True):
    at_s: float


class Configured(Event, frozen=True):
    """The controller started with other settings than those in force."""

    settings: CoreSettings


class NodesJoined(Event, frozen=True):
    nodes: tuple[Node, ...]


class NodesLeaving(Event, frozen=True):
    """The main scheduler wants them back; they die at the deadline, or before."""

    node_ids: tuple[str, ...]
    deadline_at_s: float
    reason: str = ""
    #: Somebody waits for them, who may wait for others, too.
    are_awaited: bool = False


class NodesLost(Event, frozen=True):
    """They are gone, announced or not."""

    node_ids: tuple[str, ...]
    reason: str = ""
    #: We had given them back, as nobody used them: it changes nothing for any job.
    were_released: bool = False


class NodeEndsForeseen(Event, frozen=True):
    """The batch system plans to have nodes back: when, by node id; None takes it back."""

    ends_at_s: dict[str, float | None]


class JobSubmitted(Event, frozen=True):
    spec: JobSpec


class JobCancelled(Event, frozen=True):
    job_id: str


class JobSuspended(Event, frozen=True):
    """Its user wants it to hold no node until `JobResumed`."""

    job_id: str


class JobResumed(Event, frozen=True):
    job_id: str


class WorkersLost(Event, frozen=True):
    """Workers died on nodes that live: the job's fault, as far as anyone can tell."""

    job_id: str
    generation: int
    node_ids: tuple[str, ...]
    reason: str


class RescaleDone(Event, frozen=True):
    """All members train in the new generation, and leavers are gone."""

    job_id: str
    generation: int
    node_ids: tuple[str, ...]
    #: Time in which the survivors made no progress; 0 where there was none to stall.
    stall_s: float
    #: The state that the generation starts from: less than before where work was lost.
    samples: float
    #: It gave nodes up that others may have; else all is as it was decided.
    frees_nodes: bool = True


class RescaleFailed(Event, frozen=True):
    """The rescale was given up, and its joiners are gone."""

    job_id: str
    generation: int
    reason: str
    #: Members that remain, in rank order. They train on, unless their group is dead.
    node_ids: tuple[str, ...]
    is_group_dead: bool = False
    #: The script is to blame: it counts towards the job's failures.
    is_job_fault: bool = False


class ProgressReported(Event, frozen=True):
    """A window of steps in steady state, warm-up steps after a rescale left out."""

    job_id: str
    generation: int
    nodes: int
    #: Total of the job, committed.
    samples: float
    #: Steps in the window that may be used as a measurement; 0 if none.
    steps: int
    #: Mean samples/s over those steps, and the variance of a single step's.
    samples_per_s: float
    variance: float
    loss: float | None = None


class CheckpointSaved(Event, frozen=True):
    """A loss of all nodes from now on costs only what came after."""

    job_id: str
    samples: float


class JobNoted(Event, frozen=True):
    """Something its user should know that stops nothing."""

    job_id: str
    note: str


class JobFinished(Event, frozen=True):
    """Its script ended well on every member."""

    job_id: str
    samples: float
    #: What was odd about the end, for the user.
    note: str = ""


class JobsForgotten(Event, frozen=True):
    """Jobs that are over leave the state; what they got stays in the ledger's sum."""

    job_ids: tuple[str, ...]


class DecisionTaken(Event, frozen=True):
    """What was decided, so that replaying the journal needs no allocator."""

    actions: tuple[Action, ...]
    #: All pins that hold from now on, by job id.
    pins: dict[str, Pin]
    reason: str


class WokeUp(Event, frozen=True):
    """A time asked for by `WakeAt` has come."""


AnyEvent = (
    Configured
    | NodesJoined
    | NodesLeaving
    | NodesLost
    | NodeEndsForeseen
    | JobSubmitted
    | JobCancelled
    | JobSuspended
    | JobResumed
    | WorkersLost
    | RescaleDone
    | RescaleFailed
    | ProgressReported
    | CheckpointSaved
    | JobNoted
    | JobFinished
    | JobsForgotten
    | DecisionTaken
    | WokeUp
)
