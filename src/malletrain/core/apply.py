"""What an event makes of the state: `(cluster, event) -> cluster`.

Total and pure: an event about something unknown or of an old generation changes nothing but the
time, so late and repeated messages are harmless, and replaying a journal rebuilds the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from malletrain.core import horizon, metrics, rescale_cost, scalability
from malletrain.core.actions import ReleaseNodes, Rescale, Stop, WakeAt
from malletrain.core.events import (
    AnyEvent,
    CheckpointSaved,
    Configured,
    DecisionTaken,
    JobCancelled,
    JobFinished,
    JobNoted,
    JobResumed,
    JobsForgotten,
    JobSubmitted,
    JobSuspended,
    NodeEndsForeseen,
    NodesJoined,
    NodesLeaving,
    NodesLost,
    ProgressReported,
    RescaleDone,
    RescaleFailed,
    WokeUp,
    WorkersLost,
)
from malletrain.core.ledger import JobLedger
from malletrain.core.model import Activity, Cluster, Job, Phase, Rescaling, Scalability
from malletrain.errors import InvariantError

_NODE_IDS = attrgetter("node_ids")


def apply(cluster: Cluster, event: AnyEvent) -> Cluster:
    """Return the state after the event. Time never runs backwards: late events count as now."""
    cluster = replace(cluster, now_s=max(cluster.now_s, event.at_s))
    return _HANDLERS[type(event)](cluster, event)


def check(cluster: Cluster) -> None:
    """Raise if the state breaks a rule that must hold after every event.

    Raises:
        InvariantError: a node held twice or unknown, or a ledger that does not add up.
    """
    seen: dict[str, str] = {}
    for job_id, job in cluster.jobs.items():
        for node_id in job.held_node_ids:
            if node_id in seen:
                raise InvariantError(f"{node_id} is held by {seen[node_id]} and {job_id}")
            if node_id not in cluster.nodes:
                raise InvariantError(f"{job_id} holds {node_id}, which is not there")
            seen[node_id] = job_id
    totals = metrics.totals(cluster)
    tolerance = 1e-6 * max(1.0, totals.offered)
    parts = (totals.training, totals.rescaling, totals.profiling, totals.preempted, totals.idle)
    if min(parts) < -tolerance:
        raise InvariantError(f"the ledger has a negative entry: {totals}")


# -- changing one job ------------------------------------------------------------------------------


def _with_job(
    cluster: Cluster, job: Job, book: Callable[[JobLedger], JobLedger] | None = None
) -> Cluster:
    """Put the changed job in, after charging it for what it held until now."""
    return _with_jobs(cluster, (job,), book)


def _with_jobs(
    cluster: Cluster, changed: Iterable[Job], book: Callable[[JobLedger], JobLedger] | None = None
) -> Cluster:
    jobs, entries = cluster.jobs.copy(), cluster.ledger.jobs.copy()
    for job in changed:
        job_id = job.spec.id
        entry = metrics.charged(entries[job_id], jobs[job_id], cluster.now_s)
        entries[job_id] = book(entry) if book else entry
        jobs[job_id] = job
    return replace(cluster, jobs=jobs, ledger=replace(cluster.ledger, jobs=entries))


def _observe_stability(before: Cluster, after: Cluster, changes: int) -> Cluster:
    """Count allocations that ended now, and the time that those of `before` have stood."""
    running = sum(map(bool, map(_NODE_IDS, before.jobs.values())))
    stability = horizon.observe(
        before.stability, after.now_s, running, changes, after.settings.horizon
    )
    return replace(after, stability=stability)


def _end(cluster: Cluster, job: Job, phase: Phase, note: str = "") -> Cluster:
    ended = replace(job, phase=phase, ended_at_s=cluster.now_s, note=note or job.note, pin=None)
    return _with_job(cluster, ended)


def _news(job: Job, note: str) -> str:
    """Return the job's note; one that is over keeps why it ended, whatever comes after."""
    return job.note if job.is_over else note


def _configured(cluster: Cluster, event: Configured) -> Cluster:
    return replace(cluster, settings=event.settings)


# -- nodes -----------------------------------------------------------------------------------------


def _nodes_joined(cluster: Cluster, event: NodesJoined) -> Cluster:
    new = {node.id: node for node in event.nodes if node.id not in cluster.nodes}
    if not new:
        return cluster
    cluster = metrics.charge_offer(cluster, cluster.now_s)
    return replace(cluster, nodes={**cluster.nodes, **new})


def _nodes_leaving(cluster: Cluster, event: NodesLeaving) -> Cluster:
    leaving = {
        node_id: replace(
            cluster.nodes[node_id],
            leaving_at_s=event.deadline_at_s,
            is_awaited=event.are_awaited,
        )
        for node_id in event.node_ids
        if node_id in cluster.nodes
    }
    return replace(cluster, nodes={**cluster.nodes, **leaving}) if leaving else cluster


def _node_ends_foreseen(cluster: Cluster, event: NodeEndsForeseen) -> Cluster:
    changed = {
        node_id: replace(cluster.nodes[node_id], expected_end_at_s=end_at_s)
        for node_id, end_at_s in event.ends_at_s.items()
        if node_id in cluster.nodes
    }
    return replace(cluster, nodes={**cluster.nodes, **changed}) if changed else cluster


def _nodes_lost(cluster: Cluster, event: NodesLost) -> Cluster:
    lost = set(event.node_ids) & cluster.nodes.keys()
    if not lost:
        return cluster
    before, losses = cluster, 0
    for job in before.jobs.values():
        holds_nodes = job.node_ids or job.rescaling
        if not holds_nodes or lost.isdisjoint(job.held_node_ids):
            continue
        if _have_left_as_told(before, job, lost):
            # Before the others could say that they go on without them.
            members = tuple(node_id for node_id in job.node_ids if node_id not in lost)
            cluster = _with_job(cluster, replace(job, node_ids=members))
            continue
        is_hit = not lost.isdisjoint(job.node_ids)
        losses += is_hit
        cluster = _with_job(cluster, _without_nodes(job, lost), _count_loss if is_hit else None)
    cluster = metrics.charge_offer(cluster, cluster.now_s)
    nodes = {node_id: node for node_id, node in cluster.nodes.items() if node_id not in lost}
    return _observe_stability(before, replace(cluster, nodes=nodes), losses)


def _have_left_as_told(cluster: Cluster, job: Job, lost: set[str]) -> bool:
    """Tell nodes that leave by the rescale under way; should they be missed, it will fail."""
    if job.rescaling is None or not lost.isdisjoint(job.rescaling.node_ids):
        return False
    gone = lost.intersection(job.node_ids)
    return all(cluster.nodes[node_id].leaving_at_s is not None for node_id in gone)


def _count_loss(entry: JobLedger) -> JobLedger:
    return replace(entry, losses=entry.losses + 1)


def _without_nodes(job: Job, lost: set[str]) -> Job:
    """Take nodes from a job; where members were among them, the others stand still."""
    members = tuple(node_id for node_id in job.node_ids if node_id not in lost)
    if job.rescaling and job.rescaling.node_ids:
        joining = tuple(node_id for node_id in job.rescaling.node_ids if node_id not in lost)
        rescaling = replace(job.rescaling, node_ids=joining) if joining else None
    else:
        rescaling = job.rescaling
    if len(members) == len(job.node_ids):
        return replace(job, rescaling=rescaling)
    is_ending = rescaling is not None and not rescaling.node_ids
    if members and not is_ending:
        # The order under way was for members that are no more: the next decision makes a new one.
        return replace(job, node_ids=members, rescaling=None, is_broken=True, samples_per_s=0.0)
    return replace(job, node_ids=members, rescaling=rescaling, is_broken=False, samples_per_s=0.0)


# -- what users ask --------------------------------------------------------------------------------


def _job_submitted(cluster: Cluster, event: JobSubmitted) -> Cluster:
    job_id = event.spec.id
    if job_id in cluster.jobs:
        return cluster
    job = Job(event.spec, submitted_at_s=cluster.now_s)
    entry = JobLedger(charged_at_s=cluster.now_s)
    ledger = replace(cluster.ledger, jobs={**cluster.ledger.jobs, job_id: entry})
    return replace(cluster, jobs={**cluster.jobs, job_id: job}, ledger=ledger)


def _job_cancelled(cluster: Cluster, event: JobCancelled) -> Cluster:
    job = cluster.jobs.get(event.job_id)
    if job is None or job.is_over:
        return cluster
    return _end(cluster, job, Phase.CANCELLED)


def _job_suspended(cluster: Cluster, event: JobSuspended) -> Cluster:
    job = cluster.jobs.get(event.job_id)
    if job is None or job.phase is not Phase.ACTIVE:
        return cluster
    return _with_job(cluster, replace(job, phase=Phase.SUSPENDED, pin=None))


def _job_resumed(cluster: Cluster, event: JobResumed) -> Cluster:
    job = cluster.jobs.get(event.job_id)
    if job is None or job.phase is not Phase.SUSPENDED:
        return cluster
    return _with_job(cluster, replace(job, phase=Phase.ACTIVE))


# -- what became of our orders ---------------------------------------------------------------------


def _decision_taken(cluster: Cluster, event: DecisionTaken) -> Cluster:
    changed: dict[str, Job] = {}
    for action in event.actions:
        match action:
            case Rescale(job_id, generation, node_ids):
                changed[job_id] = _ordered(cluster.jobs[job_id], generation, node_ids)
            case Stop(job_id, generation):
                changed[job_id] = _ordered(cluster.jobs[job_id], generation, (), is_stop=True)
            case ReleaseNodes(node_ids):
                released = {n: replace(cluster.nodes[n], is_released=True) for n in node_ids}
                cluster = replace(cluster, nodes={**cluster.nodes, **released})
            case WakeAt(at_s):
                cluster = replace(cluster, wake_at_s=at_s)
    pinned = [job_id for job_id, job in cluster.jobs.items() if job.pin is not None]
    for job_id in dict.fromkeys((*pinned, *(event.pins.keys() & cluster.jobs.keys()))):
        job = changed.get(job_id, cluster.jobs[job_id])
        if job.pin != (pin := event.pins.get(job_id)):
            changed[job_id] = replace(job, pin=pin)
    return _with_jobs(cluster, changed.values())


def _ordered(job: Job, generation: int, node_ids: tuple[str, ...], *, is_stop: bool = False) -> Job:
    rescaling = Rescaling(generation, node_ids, len(job.node_ids), is_stop)
    return replace(job, generation=generation, rescaling=rescaling)


def _rescale_done(cluster: Cluster, event: RescaleDone) -> Cluster:
    job = cluster.jobs.get(event.job_id)
    if job is None or job.rescaling is None or job.rescaling.generation != event.generation:
        return cluster
    # A node lost meanwhile may be back and another job's by now.
    members = tuple(node_id for node_id in event.node_ids if node_id in job.held_node_ids)
    before, after = job.rescaling.from_nodes, len(members)
    done = replace(
        job,
        node_ids=members,
        running_generation=event.generation,
        rescaling=None,
        is_broken=len(members) < len(event.node_ids),
        done_samples=event.samples if members else job.done_samples,
        samples_per_s=0.0,
    )

    def book(entry: JobLedger) -> JobLedger:
        redone = job.done_samples - event.samples if members else 0.0
        if redone > 0:
            entry = metrics.rolled_back(entry, redone, job.done_samples - job.saved_samples)
        if before and after:
            entry = metrics.stalled(entry, event.stall_s, min(before, after))
        ups, downs = int(after > before), int(after < before)
        return replace(
            entry, scale_ups=entry.scale_ups + ups, scale_downs=entry.scale_downs + downs
        )

    was_planned = before > 0 and not job.is_broken
    changed = _with_job(cluster, done, book)
    if was_planned and after and after != before:
        learned = rescale_cost.learned(
            cluster.rescale_costs,
            job.spec.model_key,
            after > before,
            event.stall_s,
            cluster.settings.prior,
        )
        changed = replace(changed, rescale_costs=learned)
    return _observe_stability(cluster, changed, int(was_planned))


def _rescale_failed(cluster: Cluster, event: RescaleFailed) -> Cluster:
    job = cluster.jobs.get(event.job_id)
    if job is None or job.rescaling is None or job.rescaling.generation != event.generation:
        return cluster
    members = tuple(node_id for node_id in event.node_ids if node_id in job.node_ids)
    failed = replace(
        job,
        node_ids=members,
        rescaling=None,
        is_broken=bool(members) and (event.is_group_dead or job.is_broken),
        note=_news(job, event.reason),
    )
    if event.is_job_fault:
        return _count_failure(cluster, failed, event.generation, event.reason)
    return _with_job(cluster, failed)


def _workers_lost(cluster: Cluster, event: WorkersLost) -> Cluster:
    job = cluster.jobs.get(event.job_id)
    if job is None or event.generation != job.running_generation:
        return cluster
    lost = set(event.node_ids) & set(job.node_ids)
    if not lost:
        return cluster
    job = _without_nodes(job, lost)
    nodes = cluster.nodes
    if all(n not in nodes or nodes[n].leaving_at_s is not None for n in lost):
        # They ended with their nodes, which is no fault of the job's.
        return _with_job(cluster, job)
    return _count_failure(cluster, job, event.generation, event.reason)


def _count_failure(cluster: Cluster, job: Job, generation: int, reason: str) -> Cluster:
    """Count one failure a generation, back off, and give the job up after too many."""
    job = replace(job, note=_news(job, reason))
    if job.is_over or job.failed_generation == generation:
        return _with_job(cluster, job)
    restart = cluster.settings.restart
    failures = job.failures + 1
    backoff_s = restart.first_backoff_s * restart.backoff_factor**job.failures
    job = replace(
        job,
        failures=failures,
        failed_generation=generation,
        failed_at_samples=job.done_samples,
        retry_at_s=cluster.now_s + backoff_s,
    )
    if failures > restart.max_failures:
        note = f"given up after {failures} failures without progress; the last: {reason}"
        return _end(cluster, job, Phase.FAILED, note)
    return _with_job(cluster, job)


# -- what jobs report ------------------------------------------------------------------------------


def _progress_reported(cluster: Cluster, event: ProgressReported) -> Cluster:
    job = cluster.jobs.get(event.job_id)
    if job is None or event.generation != job.running_generation or job.is_over:
        return cluster
    has_recovered = event.samples > job.failed_at_samples
    job = replace(
        job,
        done_samples=max(job.done_samples, event.samples),
        loss=job.loss if event.loss is None else event.loss,
        samples_per_s=event.samples_per_s if event.steps else job.samples_per_s,
        failures=0 if has_recovered else job.failures,
    )
    cluster = replace(cluster, jobs={**cluster.jobs, event.job_id: job})
    if event.steps <= 0 or event.nodes != len(job.node_ids):
        return cluster
    key = job.spec.model_key
    known = cluster.curves.get(key, Scalability())
    observed = scalability.observe(
        known, event.nodes, event.samples_per_s, event.variance, event.steps
    )
    if observed is known:
        return cluster
    return replace(cluster, curves={**cluster.curves, key: observed})


def _checkpoint_saved(cluster: Cluster, event: CheckpointSaved) -> Cluster:
    job = cluster.jobs.get(event.job_id)
    if job is None or event.samples < job.saved_samples:
        return cluster
    return _with_job(cluster, replace(job, saved_samples=event.samples), metrics.saved)


def _job_noted(cluster: Cluster, event: JobNoted) -> Cluster:
    job = cluster.jobs.get(event.job_id)
    return _with_job(cluster, replace(job, note=_news(job, event.note))) if job else cluster


def _job_finished(cluster: Cluster, event: JobFinished) -> Cluster:
    job = cluster.jobs.get(event.job_id)
    if job is None or job.is_over:
        return cluster
    finished = _end(cluster, job, Phase.FINISHED)
    # Its workers have all ended by themselves: it holds nothing any more.
    ended = replace(
        finished.jobs[event.job_id],
        node_ids=(),
        rescaling=None,
        is_broken=False,
        done_samples=max(job.done_samples, event.samples),
        samples_per_s=0.0,
        # Whatever failed on the way is overcome.
        note=event.note,
    )
    return _observe_stability(cluster, _with_job(finished, ended), 1)


def _jobs_forgotten(cluster: Cluster, event: JobsForgotten) -> Cluster:
    jobs, entries = dict(cluster.jobs), dict(cluster.ledger.jobs)
    sum_of_forgotten = cluster.ledger.forgotten
    for job_id in event.job_ids:
        if job_id in jobs and jobs[job_id].activity is Activity.OVER:
            del jobs[job_id]
            sum_of_forgotten += entries.pop(job_id).node_s
    ledger = replace(cluster.ledger, jobs=entries, forgotten=sum_of_forgotten)
    return replace(cluster, jobs=jobs, ledger=ledger)


def _woke_up(cluster: Cluster, event: WokeUp) -> Cluster:
    if cluster.wake_at_s is not None and event.at_s >= cluster.wake_at_s:
        return replace(cluster, wake_at_s=None)
    return cluster


_HANDLERS: dict[type, Callable[[Cluster, Any], Cluster]] = {
    Configured: _configured,
    NodesJoined: _nodes_joined,
    NodesLeaving: _nodes_leaving,
    NodesLost: _nodes_lost,
    NodeEndsForeseen: _node_ends_foreseen,
    JobSubmitted: _job_submitted,
    JobCancelled: _job_cancelled,
    JobSuspended: _job_suspended,
    JobResumed: _job_resumed,
    WorkersLost: _workers_lost,
    RescaleDone: _rescale_done,
    RescaleFailed: _rescale_failed,
    ProgressReported: _progress_reported,
    CheckpointSaved: _checkpoint_saved,
    JobNoted: _job_noted,
    JobFinished: _job_finished,
    JobsForgotten: _jobs_forgotten,
    DecisionTaken: _decision_taken,
    WokeUp: _woke_up,
}


def replay(events: Iterable[AnyEvent], cluster: Cluster | None = None) -> Cluster:
    """Rebuild the state from a journal."""
    state = cluster or Cluster()
    for event in events:
        state = apply(state, event)
    return state
