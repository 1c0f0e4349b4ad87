"""The Job Profiling Advisor: which job to hold at which scale for measuring, and until when.

Every steady state is an observation anyway; a pin asks for one that would not come by itself. Jobs
without a pin run as the allocator likes, on what is believed of their curve: none ever waits for
profiling. The idea of profiling online, and the inverse order, are MalleTrain's (section 3.3).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from itertools import chain, islice

import msgspec
from msgspec import Struct

from malletrain.core.model import (
    Activity,
    Cluster,
    Job,
    Observation,
    Phase,
    Pin,
    Scalability,
)
from malletrain.core.objective import utilities
from malletrain.core.rounding import rounded
from malletrain.core.scalability import curve_for
from malletrain.core.settings import AdvisorKind, AdvisorSettings
from malletrain.core.view import Outlook, View

#: What a node is worth to others is one of a scale of values with this step between them.
_WORTH_STEP = 0.02

_NORMAL = statistics.NormalDist()


def advise(view: View) -> dict[str, Pin]:
    """Return all pins that hold from now on, by job id.

    A pin ends when its scale is known to the precision asked for, when the budget is spent since
    the job reached it (or without reaching it), when there are too few nodes for it, or when the
    job is not to run. Each job has one turn; jobs of one model take theirs one after the other,
    and only as long as something is unknown. At most `max_profiling_jobs` are pinned at once, and
    all pins together leave its minimum to every job that fits.

    - Inverse order: a turn starts at the largest scale the job can have and steps down over
      `scales` scales, leaving out those known and those there are too few nodes for.
    - Informed: a turn is one scale, where the answer is worth more than it costs (`_question`).
    - Static and told: no pins.
    """
    settings = view.settings.advisor
    if settings.kind in (AdvisorKind.STATIC, AdvisorKind.TOLD):
        return {}
    pins: dict[str, Pin] = {}
    room = cache(partial(_Room, view))  # counted where it is asked for: mostly it is not
    for job in view.cluster.jobs.values():
        if job.pin is None or not view.may_run(job):
            continue
        pin = _continued(job, job.pin, view, room().of(job))
        if pin is None and settings.kind is AdvisorKind.INVERSE_ORDER:
            pin = _stepped_down(job, job.pin.nodes, view, room().of(job))
        if pin is not None:
            pins[job.spec.id] = pin
            room().take(job, pin.nodes)
    if settings.kind is AdvisorKind.INVERSE_ORDER:
        _start_at_the_top(pins, view, room)
    else:
        _ask(pins, view, room)
    return pins


def measuring_ends_at_s(pins: dict[str, Pin], settings: AdvisorSettings) -> float | None:
    """Return when the first of the pins runs out of budget; None without pins."""
    return min((_ends_at_s(pin, settings) for pin in pins.values()), default=None)


def is_known(job: Job, nodes: int, cluster: Cluster) -> bool:
    """Say whether the mean rate on so many nodes is measured to the precision asked for."""
    scalability = cluster.curves.get(job.spec.model_key)
    return scalability is not None and _is_known(scalability, nodes, cluster.settings.advisor)


@lru_cache(maxsize=8192)
def _is_known(scalability: Scalability, nodes: int, settings: AdvisorSettings) -> bool:
    observation = next((o for o in scalability.observations if o.nodes == nodes), None)
    return (
        observation is not None
        and observation.count >= settings.min_steps
        and _half_width(observation) <= settings.relative_precision
    )


@lru_cache(maxsize=1024)
def scales(min_nodes: int, max_nodes: int, count: int) -> tuple[int, ...]:
    """Return up to `count` scales in geometric steps from the largest down to the smallest."""
    if count <= 1:
        return (max_nodes,)
    ratio = max_nodes / min_nodes
    steps = {round(min_nodes * ratio ** (i / (count - 1))) for i in range(count)}
    return tuple(sorted(steps, reverse=True))


def explain(job: Job, cluster: Cluster) -> str:
    """Say in one sentence what is known of the job's scaling and what is being measured."""
    scalability = cluster.curves.get(job.spec.model_key)
    observations = scalability.observations if scalability is not None else ()
    if observations:
        points = ", ".join(f"{o.nodes} (±{_half_width(o):.1%})" for o in observations)
        known = f"its throughput is measured on {points} nodes"
    else:
        known = "nothing is measured of its scaling yet, so a typical curve is assumed"
    if present := len(job.node_ids):
        curve = curve_for(cluster, job)
        rate, sd = curve.rates(present)[present], curve.sd(present)[present]
        known += f"; on its present {present} it should do {rate:.4g} samples/s ± {1.96 * sd:.0%}"
    if job.pin is None:
        return f"{known}; no scale is being measured on purpose."
    held = "held" if job.pin.reached_at_s is not None else "to be held"
    return (
        f"{known}; it is {held} at {job.pin.nodes} nodes for at most "
        f"{cluster.settings.advisor.budget_s:g} s to measure there: {job.pin.reason}."
    )


class _Room:
    """Nodes that may be pinned: every job that fits keeps its minimum, and quotas hold.

    So measuring one job shrinks others at most: it suspends none, and lets none wait.
    """

    def __init__(self, view: View) -> None:
        self._nodes = view.num_usable
        self._minimum: dict[str, int] = {}
        self._left_by_owner = dict(view.settings.quotas)
        holding = [job for job in view.claimants if job.node_ids and view.may_run(job)]
        waiting = [job for job in view.claimants if not job.node_ids]
        for job in chain(holding, waiting):
            if self._nodes <= 0:
                break
            if job.spec.min_nodes <= self._nodes:
                self._minimum[job.spec.id] = job.spec.min_nodes
                self._nodes -= job.spec.min_nodes
                self._take_from_owner(job, job.spec.min_nodes)
        self._left = self._nodes
        self._nodes_by_owner = dict(self._left_by_owner)

    def most(self, job: Job) -> int:
        """Return what the job could have if nothing were pinned."""
        own = self._minimum.get(job.spec.id, 0)
        return own + min(self._nodes, self._nodes_by_owner.get(job.spec.owner, self._nodes))

    def of(self, job: Job) -> int:
        """Return what the job can have now."""
        own = self._minimum.get(job.spec.id, 0)
        return own + min(self._left, self._left_by_owner.get(job.spec.owner, self._left))

    def take(self, job: Job, nodes: int) -> None:
        more = nodes - self._minimum.pop(job.spec.id, 0)
        self._left -= more
        self._take_from_owner(job, more)

    def _take_from_owner(self, job: Job, nodes: int) -> None:
        if job.spec.owner in self._left_by_owner:
            self._left_by_owner[job.spec.owner] -= nodes


def _continued(job: Job, pin: Pin, view: View, room: int) -> Pin | None:
    """Return the pin, marked once its scale is reached, or None where it ends."""
    if pin.nodes > room or is_known(job, pin.nodes, view.cluster):
        return None
    is_there = job.activity is Activity.TRAINING and len(job.node_ids) == pin.nodes
    if is_there and pin.reached_at_s is None:
        pin = msgspec.structs.replace(pin, reached_at_s=view.now_s)
    return pin if view.now_s < _ends_at_s(pin, view.settings.advisor) else None


def _ends_at_s(pin: Pin, settings: AdvisorSettings) -> float:
    began_at_s = pin.since_s if pin.reached_at_s is None else pin.reached_at_s
    return began_at_s + settings.budget_s


def _without_turn(pins: dict[str, Pin], view: View, jobs: Sequence[Job]) -> Iterator[Job]:
    """Those of the jobs whose turn may begin, in order of submission.

    They were never profiled: the ledger remembers those that were.
    """
    busy_models = {view.cluster.jobs[job_id].spec.model_key for job_id in pins}
    ledgers = view.cluster.ledger.jobs
    for job in jobs:
        if len(pins) >= view.settings.advisor.max_profiling_jobs:
            return
        spec = job.spec
        if job.pin is not None or spec.model_key in busy_models:
            continue
        ledger = ledgers.get(spec.id)
        if (ledger is None or ledger.node_s.profiling == 0) and view.may_run(job):
            yield job
            if spec.id in pins:
                busy_models.add(spec.model_key)


# -- inverse order ---------------------------------------------------------------------------------


def _start_at_the_top(pins: dict[str, Pin], view: View, room: Callable[[], _Room]) -> None:
    for job in _without_turn(pins, view, view.claimants):
        if (pin := _top(job, view, room())) is not None:
            pins[job.spec.id] = pin
            room().take(job, pin.nodes)


def _top(job: Job, view: View, room: _Room) -> Pin | None:
    """Return a pin at the largest scale the job can have, or the next one that is unknown.

    While other pins take too much for that, the turn waits; the job does not.
    """
    largest = min(job.spec.max_nodes, room.most(job))
    if room.of(job) < max(largest, job.spec.min_nodes):
        return None
    if is_known(job, largest, view.cluster):
        return _stepped_down(job, largest, view, largest)
    return Pin(largest, view.now_s, "the largest scale first")


def _stepped_down(job: Job, last: int, view: View, room: int) -> Pin | None:
    """Return a pin at the largest scale below the last one that is possible and unknown."""
    num_scales = view.settings.advisor.scales
    for nodes in scales(job.spec.min_nodes, job.spec.max_nodes, num_scales):
        if nodes < last and nodes <= room and not is_known(job, nodes, view.cluster):
            return Pin(nodes, view.now_s, f"stepping down from {last}")
    return None


# -- informed --------------------------------------------------------------------------------------


def _ask(pins: dict[str, Pin], view: View, room: Callable[[], _Room]) -> None:
    market = cache(partial(_Market, view))
    for job in _without_turn(pins, view, view.training):
        spec = job.spec
        outlook = view.outlook(job)
        doubtful = _doubtful(
            outlook, spec.min_nodes, spec.max_nodes, view.limit, view.settings.advisor
        )
        if not doubtful or (most := room().of(job)) < doubtful[-1]:
            continue
        # Other scales can be compared once the present one is known.
        if is_known(job, len(job.node_ids), view.cluster):
            pin = _question(job, doubtful, view, market(), most)
            if pin is not None:
                pins[job.spec.id] = pin
                room().take(job, pin.nodes)


@lru_cache(maxsize=8192)
def _doubtful(
    outlook: Outlook, min_nodes: int, max_nodes: int, limit: int, settings: AdvisorSettings
) -> tuple[int, ...]:
    """Return the scales up to the limit that might be worth asking about, the largest first.

    However doubtful the move, an answer gains no more than L(0) of the standard deviation, and it
    costs at least a scale-down from there.
    """
    sd = outlook.curve.sd(min(limit, max_nodes))
    most_gain_s = _unit_normal_loss(0.0) * settings.answer_life_s
    return tuple(
        nodes
        for nodes in scales(min_nodes, max_nodes, settings.scales)
        if nodes < sd.size
        and sd[nodes] > settings.relative_precision
        and sd[nodes] * most_gain_s > outlook.cost.scale_down_s
    )


class _Price(Struct, frozen=True, cache_hash=True):
    """What nodes that a job takes or gives back are worth to others."""

    num_free: int
    #: What the median running job would lose with its last one, rounded.
    worth_of_a_node: float
    #: Whether others could use what is given back.
    is_of_use: bool

    def of(self, nodes: int) -> float:
        """Return the utility a second that taking so many nodes more costs others.

        Free nodes cost nothing. Giving nodes back (negative) is worth something only where none
        is free and another job could use them.
        """
        if nodes >= 0:
            return max(0, nodes - self.num_free) * self.worth_of_a_node
        return nodes * self.worth_of_a_node if self.is_of_use else 0.0


class _Market:
    """What nodes are worth to other jobs at the moment."""

    def __init__(self, view: View) -> None:
        last_nodes = [
            _worth_of_last_node(view.outlook(job), len(job.node_ids))
            for job in view.training
            if len(job.node_ids) > job.spec.min_nodes
        ]
        worth = rounded(statistics.median(last_nodes), _WORTH_STEP) if last_nodes else 0.0
        num_free = len(view.free)
        self._prices = [_Price(num_free, worth, is_of_use) for is_of_use in (False, True)]
        hungry = (
            job.spec.id
            for job in view.cluster.jobs.values()
            if job.phase is Phase.ACTIVE and len(job.node_ids) < job.spec.max_nodes
        )
        self._buyers = list(islice(hungry, 2)) if num_free == 0 else []

    def price(self, job: Job) -> _Price:
        """Return the price for this job: it buys nothing from itself."""
        return self._prices[any(buyer != job.spec.id for buyer in self._buyers)]


@lru_cache(maxsize=8192)
def _worth_of_last_node(outlook: Outlook, nodes: int) -> float:
    utility = utilities(outlook.aim, outlook.curve, nodes)
    return float(utility[nodes] - utility[nodes - 1])


def _question(
    job: Job, doubtful: Sequence[int], view: View, market: _Market, room: int
) -> Pin | None:
    """Return a pin at the doubtful scale whose measurement pays most, or None where none pays."""
    settings = view.settings.advisor
    present = len(job.node_ids)
    possible = tuple(nodes for nodes in doubtful if nodes <= room and nodes != present)
    if not possible:
        return None
    outlook = view.outlook(job)
    life_s = min(settings.answer_life_s, _left_s(job, outlook, present))
    best = _best_question(outlook, market.price(job), settings, present, possible, life_s)
    return best and Pin(best[0], view.now_s, best[1])


@lru_cache(maxsize=8192)
def _best_question(  # noqa: PLR0917 - all that the answer depends on
    outlook: Outlook,
    price: _Price,
    settings: AdvisorSettings,
    present: int,
    possible: tuple[int, ...],
    life_s: float,
) -> tuple[int, str] | None:
    """Return the scale whose measurement pays most, and why.

    With u the utility a second and c the present nodes, moving to n is believed to gain
    d = u(n) - u(c) - price(n - c), give or take s = sd(n) * u(n). Without an answer the better
    side of d = 0 is chosen; with one, the expected gain over that is s * L(|d| / s), L the unit
    normal loss: large where the move is doubtful, nothing where even a surprise would change
    nothing. It lasts `answer_life_s`, or as long as the job. The price is a rescale there and back,
    and max(-d, 0) during the budget.
    """
    limit = max(present, *possible)
    sd, cost = outlook.curve.sd(limit), outlook.cost
    utility = utilities(outlook.aim, outlook.curve, limit)
    best: tuple[int, str] | None = None
    best_surplus = 0.0
    for nodes in possible:
        there, here = float(utility[nodes]), float(utility[present])
        change = there - here - price.of(nodes - present)
        doubt = float(sd[nodes]) * there
        gain = doubt * _unit_normal_loss(abs(change) / doubt) * life_s
        smaller, larger = min(here, there), max(here, there)
        moves = cost.scale_up_s * smaller + cost.scale_down_s * larger
        cost_of_asking = moves + max(-change, 0.0) * settings.budget_s
        if gain - cost_of_asking > best_surplus:
            best_surplus = gain - cost_of_asking
            reason = (
                f"its rate there is only known to ±{1.96 * sd[nodes]:.0%}, and knowing it is worth "
                f"{gain / max(cost_of_asking, 1e-12):.1f} times what it costs"
            )
            best = (nodes, reason)
    return best


def _left_s(job: Job, outlook: Outlook, nodes: int) -> float:
    if job.spec.work_samples is None:
        return math.inf
    samples_per_s = outlook.curve.rates(nodes)[nodes]
    return max(job.spec.work_samples - job.done_samples, 0.0) / float(samples_per_s)


def _unit_normal_loss(z: float) -> float:
    """Return E[max(X - z, 0)] of a standard normal X."""
    return _NORMAL.pdf(z) - z * (1.0 - _NORMAL.cdf(z))


def _half_width(observation: Observation) -> float:
    """Return half the 95% interval of the mean rate, relative to it."""
    return 1.96 * math.sqrt(observation.variance / observation.count) / observation.samples_per_s
