"""What the system knows, as frozen values: nodes, jobs, learned curves and costs.

Times are epoch seconds (`_at_s`), durations seconds (`_s`). Everything here can be encoded by
msgspec as it is, so the journal, the API and the tests share one representation.
"""

from __future__ import annotations

import enum

from msgspec import Struct, field

from malletrain.core.ledger import Ledger
from malletrain.core.settings import CoreSettings


class Node(Struct, frozen=True):
    """A node that the batch system lends us until the main scheduler wants it back."""

    id: str
    opened_at_s: float
    gpus: int = 0
    #: Cabinet, switch or dragonfly group: nodes of one group tend to leave together.
    group: str = ""
    node_class: str = ""
    expected_end_at_s: float | None = None
    #: Set once its leave is announced: no job may be given it from then on.
    leaving_at_s: float | None = None
    #: We have said that nobody uses it any more.
    is_released: bool = False
    #: Somebody waits for it, who may wait for others, too.
    is_awaited: bool = False
    #: The batch system's name for it, "" where that is its id. Two pilots on one host, one of them
    #: forgotten by the batch system, are two nodes.
    host: str = ""
    #: The pilot job that holds it for us.
    pilot_id: str = ""


class Launch(Struct, frozen=True):
    """How to start a worker of the job on a node."""

    command: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str], ...] = ()


class StatedScaling(Struct, frozen=True, cache_hash=True):
    """What a user says of a job's scaling and rescale costs, right or wrong."""

    #: Sorted, the first at 1 node; linear in between (BFTrainer, section 3.3).
    nodes: tuple[int, ...]
    samples_per_s: tuple[float, ...]
    scale_up_s: float
    scale_down_s: float


class JobSpec(Struct, frozen=True, cache_hash=True):
    """What the user asked for; it never changes after submission."""

    id: str
    name: str
    min_nodes: int
    max_nodes: int
    #: Jobs with one key are the same model at the same global batch: they share a learned curve.
    model_key: str
    owner: str = ""
    #: The job is done after this many samples; None leaves the end to the script.
    work_samples: float | None = None
    weight: float = 1.0
    deadline_at_s: float | None = None
    #: None in replay, where nothing is started.
    launch: Launch | None = None
    #: Heeded by the advisor that is told only.
    stated: StatedScaling | None = None


class Phase(enum.Enum):
    """What the system means to do with a job; what it does right now is `Job.activity`."""

    #: An enum's own is slow, and every change of a job asks for it.
    __hash__ = object.__hash__

    ACTIVE = "active"
    SUSPENDED = "suspended"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Activity(enum.Enum):
    WAITING = "waiting"
    STARTING = "starting"
    TRAINING = "training"
    RESCALING = "rescaling"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    OVER = "over"


class Rescaling(Struct, frozen=True):
    """A rescale that was ordered and has not ended yet."""

    generation: int
    #: In rank order; empty to suspend or stop.
    node_ids: tuple[str, ...]
    #: Members that it had then.
    from_nodes: int = 0
    #: Its workers are ended whatever they do, not asked to leave.
    is_stop: bool = False


class Pin(Struct, frozen=True):
    """The advisor holds a job at one scale to measure it there."""

    nodes: int
    since_s: float
    reason: str
    #: When it was first seen training at that scale; the measuring budget counts from here.
    reached_at_s: float | None = None


class Observation(Struct, frozen=True, cache_hash=True):
    """The measured throughput at one scale: a running mean over `count` steps."""

    nodes: int
    samples_per_s: float
    #: Variance of the samples/s of a single step.
    variance: float
    count: int


class Scalability(Struct, frozen=True, cache_hash=True):
    """All that was measured of a model's scaling; curves are fitted from it on demand."""

    #: Sorted by nodes, one entry a scale.
    observations: tuple[Observation, ...] = ()


class RescaleCost(Struct, frozen=True, cache_hash=True):
    """Seconds of progress that a rescale costs its job (learned)."""

    scale_up_s: float
    scale_down_s: float
    ups: int = 0
    downs: int = 0


class Job(Struct, frozen=True, cache_hash=True):
    """A job and all that happened to it, as far as decisions depend on it."""

    spec: JobSpec
    submitted_at_s: float
    phase: Phase = Phase.ACTIVE
    #: Nodes of the running generation, in rank order.
    node_ids: tuple[str, ...] = ()
    #: The newest generation number ever ordered; 0 before the first start.
    generation: int = 0
    #: The generation that trains, or trained last.
    running_generation: int = 0
    rescaling: Rescaling | None = None
    #: A member of the running generation died: survivors stand still until the next generation.
    is_broken: bool = False
    pin: Pin | None = None
    done_samples: float = 0.0
    #: What the newest durable checkpoint holds.
    saved_samples: float = 0.0
    loss: float | None = None
    #: As last reported by the running generation; 0 where it has not reported.
    samples_per_s: float = 0.0
    #: Failures of its own (not preemptions) since it last made progress.
    failures: int = 0
    #: The generation whose failure was counted last: its members mostly die together.
    failed_generation: int = 0
    #: Where it stood then; progress beyond it clears `failures`.
    failed_at_samples: float = 0.0
    #: Back-off: not to be grown or started before this time.
    retry_at_s: float = 0.0
    #: The newest thing its user should know: why it failed, what it warns of.
    note: str = ""
    ended_at_s: float | None = None

    @property
    def held_node_ids(self) -> tuple[str, ...]:
        """Every node that no other job may have: training, joining or not yet left."""
        if self.rescaling is None:
            return self.node_ids
        members = set(self.node_ids)
        return (*self.node_ids, *[n for n in self.rescaling.node_ids if n not in members])

    @property
    def is_over(self) -> bool:
        return self.phase in (Phase.FINISHED, Phase.FAILED, Phase.CANCELLED)

    @property
    def activity(self) -> Activity:
        if self.is_over and not self.held_node_ids:
            return Activity.OVER
        if self.is_over or (self.rescaling and not self.rescaling.node_ids):
            return Activity.STOPPING
        if self.is_broken:
            return Activity.RECOVERING
        if self.rescaling:
            return Activity.RESCALING if self.node_ids else Activity.STARTING
        return Activity.TRAINING if self.node_ids else Activity.WAITING


class Stability(Struct, frozen=True):
    """How long allocations stand: decayed sums behind the adaptive horizon."""

    running_s: float = 0.0
    changes: float = 0.0
    at_s: float = 0.0


class Cluster(Struct, frozen=True):
    """The whole state. Only `apply` makes a new one."""

    now_s: float = 0.0
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    #: By model key.
    curves: dict[str, Scalability] = field(default_factory=dict)
    #: By model key; `rescale_cost.ANY_MODEL` has that of all models together.
    rescale_costs: dict[str, RescaleCost] = field(default_factory=dict)
    stability: Stability = Stability()
    #: The next time that was asked for by `WakeAt`.
    wake_at_s: float | None = None
    ledger: Ledger = Ledger()
    #: In force since the newest `Configured`: part of the state, so that a changed configuration
    #: does not change what a journal says of the past.
    settings: CoreSettings = CoreSettings()

    @property
    def owners(self) -> dict[str, str]:
        """Node id -> id of the job that holds it."""
        return {n: job.spec.id for job in self.jobs.values() for n in job.held_node_ids}
