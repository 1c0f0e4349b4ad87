"""What to do now: state the allocation problem, and turn its answer into actions and a reason.

`problem_of` and `decide` are apart because the allocator runs in between, off the event loop, on
a snapshot: `decide` reconciles its answer with the newest state, which may have fewer nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from malletrain.core import advisor, horizon, objective, placement, reasons
from malletrain.core.actions import Action, ReleaseNodes, Rescale, Stop, WakeAt
from malletrain.core.events import AnyEvent, DecisionTaken
from malletrain.core.model import Cluster, Job, Node, Phase, Pin
from malletrain.core.problem import Allocation, Allocator, Claim, Problem
from malletrain.core.rescale_cost import cost_for
from malletrain.core.scalability import curve_for


def problem_of(cluster: Cluster) -> Problem | None:
    """State the allocation problem over the nodes that stay; None where there is none to solve.

    Pinned jobs have their nodes already: they and their nodes are left out.
    """
    settings = cluster.settings
    pins = advisor.advise(cluster, settings)
    usable = sum(1 for node in cluster.nodes.values() if node.leaving_at_s is None)
    supply = usable - sum(pin.nodes for pin in pins.values())
    jobs = [job for job in _claimants(cluster) if job.spec.id not in pins]
    if not jobs or not usable:
        return None
    horizon_s = _horizon_s(cluster, jobs)
    claims = tuple(claim_of(cluster, job, horizon_s) for job in jobs)
    quotas = dict(settings.quotas)
    for job_id, pin in pins.items():
        if (owner := cluster.jobs[job_id].spec.owner) in quotas:
            quotas[owner] -= pin.nodes
    return Problem(claims, supply, horizon_s, quotas=quotas)


def claim_of(cluster: Cluster, job: Job, horizon_s: float) -> Claim:
    """Say what the job would make of each number of nodes."""
    settings = cluster.settings
    current = len(_staying(cluster, job.held_node_ids if _is_growing(job) else job.node_ids))
    most = min(job.spec.max_nodes, max(len(cluster.nodes), job.spec.min_nodes))
    if job.retry_at_s > cluster.now_s:
        most = min(most, max(current, job.spec.min_nodes))
    values = objective.values(
        job,
        curve_for(cluster, job, settings),
        cost_for(cluster, job),
        horizon_s,
        settings.objective,
        cluster.now_s,
        min(current, most),
        most,
    )
    return Claim(
        job_id=job.spec.id,
        min_nodes=min(job.spec.min_nodes, most),
        max_nodes=most,
        current_nodes=min(current, most),
        values=values,
        owner=job.spec.owner,
    )


def decide(
    cluster: Cluster,
    allocation: Allocation | None,
    trigger: Sequence[AnyEvent] = (),
) -> DecisionTaken:
    """Turn the allocation into actions on the newest state.

    `trigger` holds the events since the last decision, for the reason in words only. The answer
    may have no action and unchanged pins; then there is nothing to journal.
    """
    pins = advisor.advise(cluster, cluster.settings)
    targets = _targets(cluster, allocation, pins)
    actions: list[Action] = [*_endings(cluster), *_rescales(cluster, targets)]
    if released := _releasable(cluster, actions):
        actions.append(ReleaseNodes(released))
    if (wake := _next_wake(cluster, pins)) is not None:
        actions.append(wake)
    reason = reasons.of_decision(cluster, actions, pins, allocation, trigger)
    return DecisionTaken(at_s=cluster.now_s, actions=tuple(actions), pins=pins, reason=reason)


def decide_now(
    cluster: Cluster,
    allocator: Allocator,
    trigger: Sequence[AnyEvent] = (),
) -> DecisionTaken:
    """Decide in one go, where the allocator may run in the foreground: replay and tests."""
    problem = problem_of(cluster)
    allocation = allocator.allocate(problem) if problem else None
    return decide(cluster, allocation, trigger)


def has_news(cluster: Cluster, decision: DecisionTaken) -> bool:
    """Whether the decision would change anything."""
    pins = {job_id: job.pin for job_id, job in cluster.jobs.items() if job.pin}
    return bool(decision.actions) or decision.pins != pins


# -- who wants nodes -------------------------------------------------------------------------------


def _claimants(cluster: Cluster) -> list[Job]:
    """Active jobs that may have nodes now: those that back off keep what they have."""
    return [
        job
        for job in cluster.jobs.values()
        if job.phase is Phase.ACTIVE and (job.retry_at_s <= cluster.now_s or job.node_ids)
    ]


def _is_growing(job: Job) -> bool:
    return job.rescaling is not None and len(job.rescaling.node_ids) > len(job.node_ids)


def _staying(cluster: Cluster, node_ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(n for n in node_ids if cluster.nodes[n].leaving_at_s is None)


def _horizon_s(cluster: Cluster, jobs: Sequence[Job]) -> float:
    settings = cluster.settings
    costs = [cost_for(cluster, job).scale_up_s for job in jobs]
    mean_up_s = sum(costs) / len(costs)
    return horizon.horizon_s(cluster.stability, mean_up_s, settings.horizon)


def _targets(
    cluster: Cluster, allocation: Allocation | None, pins: dict[str, Pin]
) -> dict[str, int]:
    """Node counts by job; jobs that the allocator did not know keep what they have."""
    targets = {}
    for job in _claimants(cluster):
        job_id = job.spec.id
        if job_id in pins:
            targets[job_id] = pins[job_id].nodes
        elif allocation and job_id in allocation.counts:
            targets[job_id] = allocation.counts[job_id]
        else:
            targets[job_id] = len(_staying(cluster, job.node_ids))
    return targets


# -- actions ---------------------------------------------------------------------------------------


def _endings(cluster: Cluster) -> list[Action]:
    """Take their nodes from jobs that are over or that their users have suspended."""
    actions: list[Action] = []
    for job in cluster.jobs.values():
        if job.phase is Phase.ACTIVE or not job.held_node_ids or _is_ending(job):
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


def _rescales(cluster: Cluster, targets: dict[str, int]) -> list[Action]:
    movable = {j: n for j, n in targets.items() if _may_move(cluster, cluster.jobs[j])}
    held = {j: _staying(cluster, cluster.jobs[j].held_node_ids) for j in movable}
    owners = cluster.owners
    free = [n for n in cluster.nodes.values() if n.leaving_at_s is None and n.id not in owners]
    wanted = {j: _recovery_count(cluster, j, n, len(held[j])) for j, n in movable.items()}
    assigned = placement.assign(wanted, held, free, cluster.nodes)
    if _is_more_coming(cluster, wanted, held):
        # Growing once, when all nodes are there, stalls the job once.
        patient = {j: min(n, len(held[j])) for j, n in wanted.items() if len(assigned[j]) < n}
        if patient:
            assigned = placement.assign({**wanted, **patient}, held, free, cluster.nodes)
    return [
        Rescale(job_id, cluster.jobs[job_id].generation + 1, node_ids)
        for job_id, node_ids in _possible(cluster, assigned).items()
    ]


def _may_move(cluster: Cluster, job: Job) -> bool:
    """Leave a rescale under way alone, unless what it aims at has become impossible."""
    if job.rescaling is None:
        return True
    if not job.rescaling.node_ids:
        return False
    staying = _staying(cluster, job.rescaling.node_ids)
    return len(staying) < len(job.rescaling.node_ids) or len(staying) < job.spec.min_nodes


def _recovery_count(cluster: Cluster, job_id: str, count: int, held: int) -> int:
    """Let survivors of a loss go on at once: they grow afterwards, while they train."""
    job = cluster.jobs[job_id]
    if job.is_broken and count > held >= job.spec.min_nodes:
        return held
    return count


def _is_more_coming(
    cluster: Cluster, wanted: dict[str, int], held: dict[str, tuple[str, ...]]
) -> bool:
    """Whether other jobs are about to give nodes up."""
    if any(wanted[job_id] < len(held[job_id]) for job_id in wanted):
        return True
    return any(
        job.rescaling is not None and not set(job.node_ids) <= set(job.rescaling.node_ids)
        for job in cluster.jobs.values()
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


def _releasable(cluster: Cluster, actions: Sequence[Action]) -> tuple[str, ...]:
    """Leaving nodes that no job holds, so that the main scheduler has them before the deadline."""
    ordered = {n for action in actions if isinstance(action, Rescale) for n in action.node_ids}
    owners = cluster.owners
    return tuple(
        node.id
        for node in cluster.nodes.values()
        if _is_leaving_unreleased(node) and node.id not in owners and node.id not in ordered
    )


def _is_leaving_unreleased(node: Node) -> bool:
    return node.leaving_at_s is not None and not node.is_released


def _next_wake(cluster: Cluster, pins: dict[str, Pin]) -> WakeAt | None:
    """Ask to be woken for the next back-off or measuring budget that ends."""
    times = [job.retry_at_s for job in cluster.jobs.values() if job.phase is Phase.ACTIVE]
    if (ends_at_s := advisor.measuring_ends_at_s(pins, cluster.settings.advisor)) is not None:
        times.append(ends_at_s)
    at_s = min((t for t in times if t > cluster.now_s), default=None)
    if at_s is None or (cluster.wake_at_s is not None and cluster.wake_at_s <= at_s):
        return None
    return WakeAt(at_s)
