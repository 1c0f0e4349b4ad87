"""Every number that steers decisions, with its unit; `config.py` reads them from a file."""

from __future__ import annotations

import enum

from msgspec import Struct


class ObjectiveKind(enum.Enum):
    #: Total samples/s, weighted: the papers' objective.
    SAMPLES = "samples"
    #: Each job's speed-up over its fewest nodes: none is starved for being slow.
    SPEEDUP = "speedup"
    #: Samples, with jobs that would miss their deadline favoured.
    DEADLINE = "deadline"
    #: Log of the speed-up: proportional fairness.
    FAIR = "fair"
    #: Most samples in the long run of a backlog: jobs that end are treated alike, as those that
    #: are starved would clog it; those that never end go by their samples.
    BACKLOG = "backlog"


class PlacementKind(enum.Enum):
    #: Along the line of groups (cabinets, switches), by which nodes leave; first those it has.
    GROUP = "group"
    #: Nodes are given out as they came. For comparison.
    JOIN_ORDER = "join-order"
    #: Those expected to stay longest first. For comparison: it needs to know how long they stay.
    LIFETIME = "lifetime"


class AdvisorKind(enum.Enum):
    INFORMED = "informed"
    INVERSE_ORDER = "inverse-order"
    #: Never pins and never learns: the prior alone. For comparison.
    STATIC = "static"
    #: Takes what users state of their jobs' scaling as it is: FreeTrain. For comparison.
    TOLD = "told"


class AdvisorSettings(Struct, frozen=True, kw_only=True, cache_hash=True):
    kind: AdvisorKind = AdvisorKind.INFORMED
    #: At most this many jobs are held at a scale for measuring at once.
    max_profiling_jobs: int = 4
    #: A scale counts as known when the 95% interval of its mean rate is within this of the mean.
    relative_precision: float = 0.05
    #: A scale is left, known or not, after this long.
    budget_s: float = 60.0
    #: Steps needed before an interval is believed.
    min_steps: int = 8
    #: Informed: how long an answer is of use before it would have come by itself, as allocations
    #: change for other reasons.
    answer_life_s: float = 60.0
    #: Inverse order: number of scales between the largest and the smallest, both included.
    scales: int = 4


class PriorSettings(Struct, frozen=True, kw_only=True, cache_hash=True):
    """What is believed of a model before anything was measured."""

    #: Scaling efficiency is n**-slope; the mean of the slope and its standard deviation.
    efficiency_slope: float = 0.15
    efficiency_slope_sd: float = 0.15
    #: Relative spread (standard deviation of the log) of one-node rates among unknown models.
    rate_sd: float = 1.0
    #: How far a real curve strays from any step-time model in each doubling of the nodes.
    residual_sd: float = 0.08
    #: Relative error that no number of steps takes away: nodes and days differ.
    noise_floor: float = 0.01
    scale_up_s: float = 2.0
    scale_down_s: float = 0.5
    #: A learned cost counts as this many observed rescales at the start.
    cost_weight: float = 1.0


class HorizonSettings(Struct, frozen=True, kw_only=True):
    #: None adapts: T = m * exp(-up / m), m the mean time an allocation stands.
    fixed_s: float | None = None
    initial_s: float = 120.0
    min_s: float = 5.0
    max_s: float = 3600.0
    #: Older experience of how long allocations stand fades with this time constant.
    memory_s: float = 6 * 3600.0


class RestartSettings(Struct, frozen=True, kw_only=True):
    """What happens to a job whose own workers die."""

    max_failures: int = 3
    first_backoff_s: float = 2.0
    backoff_factor: float = 2.0


class CoreSettings(Struct, frozen=True, kw_only=True):
    #: Samples of different models cannot be compared: the papers' total would starve slow jobs.
    objective: ObjectiveKind = ObjectiveKind.SPEEDUP
    placement: PlacementKind = PlacementKind.GROUP
    advisor: AdvisorSettings = AdvisorSettings()
    prior: PriorSettings = PriorSettings()
    horizon: HorizonSettings = HorizonSettings()
    restart: RestartSettings = RestartSettings()
    #: Owner -> most nodes at once.
    quotas: dict[str, int] = {}
