"""What to do now: state the allocation problem, and turn its answer into actions and a reason.

`problem_of` and `decide` are apart because the allocator runs in between, off the event loop, on
a snapshot: `decide` reconciles its answer with the newest state, which may have fewer nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import repeat

from malletrain.core import advisor, horizon, objective, placement, reasons
from malletrain.core.actions import Action, ReleaseNodes, Rescale, Stop, WakeAt
from malletrain.core.events import AnyEvent, DecisionTaken
from malletrain.core.model import Cluster, Job, JobSpec, Pin, RescaleCost, Rescaling, Scalability
from malletrain.core.problem import Allocation, Allocator, Claim, Problem
from malletrain.core.scalability import Curve
from malletrain.core.view import Outlook, Terms, View, outlook_of


def problem_of(cluster: Cluster) -> Problem | None:
    """State the allocation problem over the nodes that stay; None where there is none to solve.

    Pinned jobs have their nodes already: they and their nodes are left out.
    """
    view = View(cluster)
    return _problem(view, advisor.advise(view))


def decide(
    cluster: Cluster,
    allocation: Allocation | None,
    trigger: Sequence[AnyEvent] = (),
) -> DecisionTaken:
    """Turn the allocation into actions on the newest state.

    `trigger` holds the events since the last decision, for the reason in words only. The answer
    may have no action and unchanged pins; then there is nothing to journal.
    """
    view = View(cluster)
    return _decision(view, advisor.advise(view), allocation, trigger)


def decide_now(
    cluster: Cluster,
    allocator: Allocator,
    trigger: Sequence[AnyEvent] = (),
) -> DecisionTaken:
    """Decide in one go, where the allocator may run in the foreground: replay and tests."""
    view = View(cluster)
    pins = advisor.advise(view)
    problem = _problem(view, pins)
    allocation = allocator.allocate(problem) if problem else None
    return _decision(view, pins, allocation, trigger)


def has_news(cluster: Cluster, decision: DecisionTaken) -> bool:
    """Whether the decision would change anything."""
    if decision.actions:
        return True
    return decision.pins != {j: job.pin for j, job in cluster.jobs.items() if job.pin is not None}


# -- who wants nodes -------------------------------------------------------------------------------


def _problem(view: View, pins: Mapping[str, Pin]) -> Problem | None:
    jobs = [job for job in view.claimants if job.spec.id not in pins]
    if not jobs or not view.num_usable:
        return None
    cluster, up_s = view.cluster, view.cost_of_all.scale_up_s
    stay_s = horizon.stay_s(cluster.nodes.values(), view.now_s)
    horizon_s = horizon.horizon_s(cluster.stability, up_s, view.settings.horizon, stay_s)
    quotas = dict(view.settings.quotas)
    for job_id, pin in pins.items():
        if (owner := cluster.jobs[job_id].spec.owner) in quotas:
            quotas[owner] -= pin.nodes
    return Problem(
        claims=tuple(_claims(view, jobs, horizon_s)),
        nodes=view.num_usable - sum(pin.nodes for pin in pins.values()),
        horizon_s=horizon_s,
        quotas=quotas,
    )


def _claims(view: View, jobs: Sequence[Job], horizon_s: float) -> list[Claim]:
    """Say what each job would make of each number of nodes."""
    if view.has_deadlines:
        return [_claim(view, job, horizon_s) for job in jobs]
    keys = [job.spec.model_key for job in jobs]
    known = map(view.curves.get, keys, repeat(view.unknown_curve))
    common = repeat(view.terms), repeat(horizon_s), repeat(view.limit)
    # Most jobs are as they were at the last decision.
    claims = list(map(_usual_claim, jobs, known, map(view.costs.get, keys), *common))
    if unusual := {job.spec.id for job in (*view.backing_off, *view.asked_back)}:
        for index, job in enumerate(jobs):
            if job.spec.id in unusual:
                claims[index] = _claim(view, job, horizon_s)
    return claims


def _claim(view: View, job: Job, horizon_s: float) -> Claim:
    current = len(view.staying(_present(job)))
    most = _most(job.spec, view.limit)
    if job.retry_at_s > view.now_s:
        most = min(most, max(current, job.spec.min_nodes))
    return _remembered_claim(job.spec, view.outlook(job), horizon_s, min(current, most), most)


def _present(job: Job) -> tuple[str, ...]:
    """Return the nodes that a job has, or that are joining it."""
    is_growing = job.rescaling is not None and len(job.rescaling.node_ids) > len(job.node_ids)
    return job.held_node_ids if is_growing else job.node_ids


def _most(spec: JobSpec, limit: int) -> int:
    return min(spec.max_nodes, max(limit, spec.min_nodes))


@lru_cache(maxsize=16384)
def _usual_claim(  # noqa: PLR0917 - called by `map`
    job: Job,
    known: Scalability | Curve,
    cost: RescaleCost | None,
    terms: Terms,
    horizon_s: float,
    limit: int,
) -> Claim:
    """Return the claim of a job that backs off from nothing and has no node that leaves."""
    outlook = outlook_of(job.spec, known, cost, terms, 0.0)
    most = _most(job.spec, limit)
    return _remembered_claim(job.spec, outlook, horizon_s, min(len(_present(job)), most), most)


@lru_cache(maxsize=65536)
def _remembered_claim(
    spec: JobSpec, outlook: Outlook, horizon_s: float, current: int, most: int
) -> Claim:
    values = objective.values(outlook.aim, outlook.curve, outlook.cost, horizon_s, current, most)
    return Claim(spec.id, min(spec.min_nodes, most), most, current, values, spec.owner)


# -- actions ---------------------------------------------------------------------------------------


def _decision(
    view: View,
    pins: dict[str, Pin],
    allocation: Allocation | None,
    trigger: Sequence[AnyEvent],
) -> DecisionTaken:
    actions: list[Action] = [*_endings(view), *_rescales(view, allocation, pins)]
    if released := _releasable(view, actions):
        actions.append(ReleaseNodes(released))
    if (wake := _next_wake(view, pins)) is not None:
        actions.append(wake)
    reason = reasons.of_decision(view, actions, pins, allocation, trigger)
    return DecisionTaken(at_s=view.now_s, actions=tuple(actions), pins=pins, reason=reason)


def _endings(view: View) -> list[Action]:
    """Take their nodes from jobs that are over or that their users have suspended."""
    actions: list[Action] = []
    for job in view.ending:
        if not job.held_node_ids or _is_ending(job):
            continue
        generation = job.generation + 1
        if job.is_over:
            actions.append(Stop(job.spec.id, generation))
        else:
            actions.append(Rescale(job.spec.id, generation, ()))
    return actions


def _is_ending(job: Job) -> bool:
    """Whether the order under way is enough; workers that linger heed no suspension."""
    rescaling = job.rescaling
    if rescaling is None or rescaling.node_ids:
        return False
    return rescaling.is_stop or not job.is_over


def _rescales(view: View, allocation: Allocation | None, pins: Mapping[str, Pin]) -> list[Action]:
    wanted: dict[str, int] = {}
    held: dict[str, tuple[str, ...]] = {}
    counts = allocation.counts if allocation else {}
    for job in _movable(view, counts, pins):
        job_id = job.spec.id
        pin = pins.get(job_id)
        # One that the allocator did not know keeps what it has.
        count = counts.get(job_id) if pin is None else pin.nodes
        if job.rescaling is None:
            staying = view.staying(job.node_ids)
            is_settled = staying is job.node_ids and not job.is_broken
            if is_settled and (count is None or len(staying) == count):
                continue
        elif _may_move(view, job, job.rescaling):
            staying = view.staying(job.held_node_ids)
        else:
            continue
        if count is None:
            count = len(view.staying(job.node_ids))
        if _is_asked_back(view, job):
            # Those that are to leave do so at once: a joiner would keep them waiting.
            staying = view.staying(job.node_ids)
            count = min(count, len(staying))
        held[job_id] = staying
        wanted[job_id] = _recovery_count(job, count, len(staying))
    if not wanted:
        return []
    nodes = view.cluster.nodes
    kind = view.settings.placement
    assigned = placement.assign(wanted, held, view.free, nodes, kind)
    if _is_more_coming(view, wanted, held):
        # Growing once, when all nodes are there, stalls the job once.
        patient = {j: min(n, len(held[j])) for j, n in wanted.items() if len(assigned[j]) < n}
        if patient:
            assigned = placement.assign({**wanted, **patient}, held, view.free, nodes, kind)
    return [
        Rescale(job_id, view.cluster.jobs[job_id].generation + 1, node_ids)
        for job_id, node_ids in _possible(view.cluster, assigned).items()
    ]


def _movable(view: View, counts: Mapping[str, int], pins: Mapping[str, Pin]) -> list[Job]:
    """Leave out jobs that wait and go on waiting: with many jobs, almost all."""
    starting = {job_id for job_id, count in counts.items() if count}.union(pins)
    return [
        job
        for job in view.claimants
        if job.node_ids or job.rescaling is not None or job.spec.id in starting
    ]


def _may_move(view: View, job: Job, rescaling: Rescaling) -> bool:
    """Leave a rescale under way alone, unless what it aims at has become impossible.

    Nor may it keep a member that is asked back waiting for those that join. One that nobody joins
    is soon over: those that are asked back meanwhile leave by the next, as starting it again with
    each of them could keep the first for ever.
    """
    node_ids = rescaling.node_ids
    if set(node_ids) <= set(job.node_ids):
        return False
    return _is_asked_back(view, job) or len(view.staying(node_ids)) < len(node_ids)


def _is_asked_back(view: View, job: Job) -> bool:
    """Whether a node that it trains on is to be given back."""
    return view.staying(job.node_ids) is not job.node_ids


def _recovery_count(job: Job, count: int, held: int) -> int:
    """Let survivors of a loss go on at once: they grow afterwards, while they train."""
    return held if job.is_broken and count > held >= job.spec.min_nodes else count


def _is_more_coming(
    view: View, wanted: Mapping[str, int], held: Mapping[str, tuple[str, ...]]
) -> bool:
    """Whether other jobs are about to give nodes up."""
    if any(wanted[job_id] < len(held[job_id]) for job_id in wanted):
        return True
    return any(
        job.rescaling is not None and not set(job.node_ids) <= set(job.rescaling.node_ids)
        for job in view.holding
    )


def _possible(cluster: Cluster, assigned: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Keep what changes something; too few nodes for a job's minimum are none."""
    changes = {}
    for job_id, node_ids in assigned.items():
        job = cluster.jobs[job_id]
        members = node_ids if len(node_ids) >= job.spec.min_nodes else ()
        is_same = members == (job.rescaling.node_ids if job.rescaling else job.node_ids)
        if not is_same or (job.is_broken and job.rescaling is None):
            changes[job_id] = members
    return changes


def _releasable(view: View, actions: Sequence[Action]) -> tuple[str, ...]:
    """Leaving nodes that no job holds, so that the main scheduler has them before the deadline."""
    unreleased = [node.id for node in view.leaving if not node.is_released]
    if not unreleased:
        return ()
    # A node that was to join, and now is not, is free as soon as that is decided.
    orders = {a.job_id: a.node_ids for a in actions if isinstance(a, Rescale)}
    orders |= {a.job_id: () for a in actions if isinstance(a, Stop)}
    kept = {node_id for node_ids in orders.values() for node_id in node_ids}
    for job in view.holding:
        kept.update(job.node_ids)
        if job.rescaling is not None and job.spec.id not in orders:
            kept.update(job.rescaling.node_ids)
    return tuple(n for n in unreleased if n not in kept)


def _next_wake(view: View, pins: dict[str, Pin]) -> WakeAt | None:
    """Ask to be woken for the next back-off or measuring budget that ends."""
    times = [job.retry_at_s for job in view.backing_off]
    if (ends_at_s := advisor.measuring_ends_at_s(pins, view.settings.advisor)) is not None:
        times.append(ends_at_s)
    at_s = min((t for t in times if t > view.now_s), default=None)
    wake_at_s = view.cluster.wake_at_s
    if at_s is None or (wake_at_s is not None and wake_at_s <= at_s):
        return None
    return WakeAt(at_s)
