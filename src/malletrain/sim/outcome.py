"""What a replay came to, checked to add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from malletrain.core import metrics, scalability
from malletrain.core.ledger import JobLedger
from malletrain.core.model import Cluster
from malletrain.errors import InvariantError
from malletrain.sim.results import CurveComparison, JobResult, NodeSeconds
from malletrain.sim.run import Run
from malletrain.sim.settings import ModelIdentity
from malletrain.sim.world import World
from malletrain.workloads.workload import Workload

#: Of each sum; what is beyond is no rounding.
_TOLERANCE = 1e-9
_MOST_CURVES = 50


@dataclass(frozen=True, slots=True)
class Account:
    """A job as the world and as the system's ledger have it."""

    run: Run
    entry: JobLedger
    finished_at_s: float | None


def job_result(account: Account) -> JobResult:
    run, entry = account.run, account.entry
    return JobResult(
        id=run.job.id,
        job_class=run.job.job_class or run.job.curve,
        curve=run.job.curve,
        submitted_at_s=run.job.submitted_at_s,
        started_at_s=run.first_node_at_s,
        finished_at_s=account.finished_at_s,
        done_samples=run.samples,
        work_samples=run.job.work_samples,
        used_node_s=entry.node_s.used,
        profiling_node_s=entry.node_s.profiling,
        scale_ups=entry.scale_ups,
        scale_downs=entry.scale_downs,
        losses=entry.losses,
    )


def checked_totals(cluster: Cluster, world: World, accounts: Sequence[Account]) -> NodeSeconds:
    """Return where the node-seconds went, if both ledgers agree to the last second.

    The system's ledger is held against the world's own record of every node's time with us, and
    the samples of all jobs against the world's record of every stretch of training.

    Raises:
        InvariantError: they do not, or an entry is negative.
    """
    totals = metrics.totals(cluster)
    offered = world.recorder.offered_node_s
    _check("node-seconds offered", totals.offered, offered, offered)
    parts = (totals.training, totals.rescaling, totals.profiling, totals.preempted, totals.idle)
    if min(parts) < -_TOLERANCE * max(offered, 1.0):
        raise InvariantError(f"the ledger has a negative entry: {totals}")
    samples = sum(account.run.samples for account in accounts)
    gross = world.recorder.gross_samples
    _check("samples", samples, world.recorder.done_samples, gross)
    training, rescaling, profiling, preempted, idle = (max(part, 0.0) for part in parts)
    return NodeSeconds(
        offered=training + rescaling + profiling + preempted + idle,
        training=training,
        rescaling=rescaling,
        profiling=profiling,
        preempted=preempted,
        idle=idle,
    )


def _check(what: str, ours: float, theirs: float, scale: float) -> None:
    if abs(ours - theirs) > _TOLERANCE * max(scale, 1.0):
        raise InvariantError(f"the ledger has {ours} {what}, the world {theirs}")


def compared_curves(
    cluster: Cluster, workload: Workload, runs: Iterable[Run], identity: ModelIdentity
) -> tuple[CurveComparison, ...]:
    """Return for each true curve the belief that rests on most steps beside it."""
    keys: dict[str, set[str]] = {}
    for run in runs:
        is_known = identity is ModelIdentity.KNOWN
        keys.setdefault(run.job.curve, set()).add(run.job.curve if is_known else run.job.id)
    comparisons = []
    for name in list(workload.curves)[:_MOST_CURVES]:
        known = [key for key in sorted(keys.get(name, ())) if key in cluster.curves]
        if known:
            best = max(known, key=lambda key: _steps(cluster, key))
            comparisons.append(_compared(cluster, name, workload, best))
    return tuple(comparisons)


def _steps(cluster: Cluster, key: str) -> int:
    return sum(observation.count for observation in cluster.curves[key].observations)


def _compared(cluster: Cluster, name: str, workload: Workload, key: str) -> CurveComparison:
    true = workload.curves[name]
    most = max(job.max_nodes for job in workload.jobs if job.curve == name)
    nodes = tuple(n for n in true.nodes if n <= most)
    known = cluster.curves[key]
    curve = scalability.fit(known, cluster.settings.prior)
    low, high = curve.interval(most)
    learned = curve.rates(most)
    rates = true.rates(most)

    def at_nodes(values: Mapping[int, float] | Sequence[float]) -> tuple[float, ...]:
        return tuple(float(values[n]) for n in nodes)

    return CurveComparison(
        model=name,
        nodes=nodes,
        true_samples_per_s=at_nodes(rates.tolist()),
        learned_samples_per_s=at_nodes(learned.tolist()),
        low_samples_per_s=at_nodes(low.tolist()),
        high_samples_per_s=at_nodes(high.tolist()),
        measured_nodes=tuple(o.nodes for o in known.observations if o.nodes <= most),
    )
