"""What a replay assumes of the world, and what it is asked to do."""

from __future__ import annotations

import enum

from msgspec import Struct

from malletrain.core.settings import CoreSettings


class LedgerKind(enum.Enum):
    #: Time passes as it would: see `courses.ExactCourses`.
    EXACT = "exact"
    #: The papers' replayer, with its quirks: see `courses.PapersCourses`.
    PAPERS = "papers"


class ModelIdentity(enum.Enum):
    """What a job's model key is: what of one job's measurements another can use."""

    #: Every job is its own model: nothing is known of a new one.
    UNKNOWN = "unknown"
    #: Jobs with one true curve are known to be one model.
    KNOWN = "known"


class WorldSettings(Struct, frozen=True, kw_only=True):
    """What things cost and how they fail. Times in seconds.

    The defaults are those of this product on an ordinary cluster; the stalls that a rescale costs
    are the jobs' own, times `cost_factor`.
    """

    #: From notice to the node's end, as the main scheduler's partition sets it.
    grace_s: float = 30.0
    #: From a node's falling idle to its agent's first word.
    pilot_start_s: float = 0.0
    #: From the order to a warm worker on a joining node; members train on meanwhile.
    worker_start_s: float = 10.0
    #: Survivors notice that a member died without notice.
    loss_notice_s: float = 1.0
    #: From what happened to the orders that follow from it.
    decision_delay_s: float = 0.02
    #: Multiplies every job's stalls.
    cost_factor: float = 1.0
    #: In place of every job's own stalls.
    scale_up_s: float | None = None
    scale_down_s: float | None = None
    #: Durable checkpoints: what a job that loses all nodes without notice falls back to.
    checkpoint_every_s: float = 600.0
    #: Length of a training step; a loss without notice costs half a one on average.
    step_s: float = 0.5
    #: Standard deviation of a step's time, relative.
    step_noise: float = 0.05
    #: A job has to sit at a scale for this long before its speed there counts as measured.
    measure_after_s: float = 20.0
    #: Measurements wait at most this long for something else to happen.
    report_every_s: float = 120.0
    #: Crashes of a node without notice, a day; it stays away until its idle interval ends.
    crashes_per_node_day: float = 0.0
    #: Share of orders whose first message is lost, and when it is sent again.
    lost_message_share: float = 0.0
    message_retry_s: float = 5.0
    #: Share of nodes that are slow, and their speed; a job is as fast as its slowest node.
    slow_node_share: float = 0.0
    slow_node_speed: float = 0.7
    #: Nodes say when they will be taken back: perfect knowledge, for comparison.
    knows_node_ends: bool = False


class ReplayOptions(Struct, frozen=True, kw_only=True):
    """How the workload is offered, who decides, and how it is accounted."""

    core: CoreSettings = CoreSettings()
    world: WorldSettings = WorldSettings()
    ledger: LedgerKind = LedgerKind.EXACT
    identity: ModelIdentity = ModelIdentity.UNKNOWN
    #: Jobs that are in the system at once; the others wait outside. None: no limit.
    max_parallel: int | None = None
    #: The list starts again when it is exhausted.
    repeat: bool = False
    #: No job ever finishes.
    endless: bool = False
    #: Cut the trace to this part of it.
    from_s: float = 0.0
    until_s: float | None = None
    seed: int = 0
    #: Measurements alone lead to a decision at most this often: as often as live ones are written
    #: to the journal.
    progress_decide_s: float = 5.0
