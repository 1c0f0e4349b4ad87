"""The policies that are compared: who decides, and what it is told of the jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from malletrain import draws
from malletrain.core.model import StatedScaling
from malletrain.core.settings import AdvisorKind
from malletrain.errors import UsageError
from malletrain.workloads.tables import suggest
from malletrain.workloads.workload import MalleableJob, TrueCurve, Workload

#: The share of users that overclaim, and what they multiply their throughput by.
OVERCLAIM_SHARE = 0.2
OVERCLAIM_FACTOR = 8.0

#: What a user states of a job's curve, given the workload and the seed.
_States = Callable[[Workload, MalleableJob, int], TrueCurve]


@dataclass(frozen=True, slots=True)
class Policy:
    """Told policies believe what users state, and know the true rescale costs, as FreeTrain does.

    The others are told nothing but the jobs' bounds.
    """

    name: str
    advisor: AdvisorKind = AdvisorKind.STATIC
    #: Of `allocate.ALLOCATORS`.
    allocator: str = "exact"
    states: _States | None = None

    def stated(
        self, workload: Workload, job: MalleableJob, costs_s: tuple[float, float], seed: int
    ) -> StatedScaling | None:
        """Return what the system is told of the job; `costs_s` are its true stalls up and down."""
        if self.states is None:
            return None
        curve = self.states(workload, job, seed)
        return StatedScaling(curve.nodes, curve.samples_per_s, *costs_s)


def _true(workload: Workload, job: MalleableJob, _seed: int) -> TrueCurve:
    return workload.curves[job.curve]


def _linear(workload: Workload, job: MalleableJob, _seed: int) -> TrueCurve:
    """The user has measured one node and multiplies."""
    one_node = workload.curves[job.curve].samples_per_s[0]
    return TrueCurve((1, job.max_nodes), (one_node, one_node * job.max_nodes))


def _one_for_all(workload: Workload, _job: MalleableJob, _seed: int) -> TrueCurve:
    """Everybody states the curve of the first job's model: one benchmark, passed around."""
    return workload.curves[workload.jobs[0].curve]


def _another_models(workload: Workload, job: MalleableJob, seed: int) -> TrueCurve:
    """Every model has the curve of the next one in a drawn order: nobody has the own one."""
    names = sorted(workload.curves, key=lambda name: draws.uniform(seed, "shuffled", name))
    return workload.curves[names[(names.index(job.curve) + 1) % len(names)]]


def _overclaimed(workload: Workload, job: MalleableJob, seed: int) -> TrueCurve:
    """Some users claim far more than is true, to be given more nodes."""
    curve = workload.curves[job.curve]
    if draws.uniform(seed, "overclaim", job.id) >= OVERCLAIM_SHARE:
        return curve
    return replace(
        curve, samples_per_s=tuple(OVERCLAIM_FACTOR * rate for rate in curve.samples_per_s)
    )


_TOLD = AdvisorKind.TOLD
_ALL = (
    Policy("malletrain", AdvisorKind.INFORMED),
    # Profiles every job from its largest scale down, as the MalleTrain paper does.
    Policy("malletrain-inverse-order", AdvisorKind.INVERSE_ORDER),
    # Takes one typical curve for all, and never learns.
    Policy("static-prior"),
    Policy("freetrain-oracle", _TOLD, states=_true),
    Policy("freetrain-linear", _TOLD, states=_linear),
    Policy("freetrain-one-curve", _TOLD, states=_one_for_all),
    Policy("freetrain-shuffled", _TOLD, states=_another_models),
    Policy("freetrain-overclaim", _TOLD, states=_overclaimed),
    Policy("equal-share", allocator="equal-share"),
    Policy("fifo", allocator="fifo"),
    Policy("greedy", _TOLD, "greedy", states=_true),
)
POLICIES: Mapping[str, Policy] = {policy.name: policy for policy in _ALL}


def policy(name: str) -> Policy:
    """Return the policy of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in POLICIES:
        raise UsageError(f"there is no policy {name!r}: {suggest(name, POLICIES, 'policies')}")
    return POLICIES[name]
