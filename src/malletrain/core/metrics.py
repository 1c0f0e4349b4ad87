"""The ledger: every node-second offered is charged to exactly one use.

A job is charged for the nodes it holds whenever something about it changes, the offer whenever
the nodes change; idle is what is left. So a replay pays for changes, not for jobs times events.
"""

from __future__ import annotations

from msgspec.structs import replace

from malletrain.core.ledger import JobLedger, Ledger, NodeSeconds
from malletrain.core.model import Cluster, Job


def charge_offer(cluster: Cluster, at_s: float) -> Cluster:
    """Charge what was offered until then; to be called before the nodes change."""
    ledger = cluster.ledger
    node_s = len(cluster.nodes) * max(0.0, at_s - ledger.charged_at_s)
    charged = replace(ledger, offered_node_s=ledger.offered_node_s + node_s, charged_at_s=at_s)
    return replace(cluster, ledger=charged)


def charged(entry: JobLedger, job: Job, at_s: float) -> JobLedger:
    """Return the job's entry, charged until then for the nodes it holds."""
    elapsed_s = max(0.0, at_s - entry.charged_at_s)
    active_node_s = elapsed_s * len(job.node_ids)
    joining_node_s = elapsed_s * len(job.held_node_ids) - active_node_s
    node_s = entry.node_s
    rescaling = node_s.rescaling + joining_node_s
    training, profiling, at_risk = node_s.training, node_s.profiling, entry.at_risk_node_s
    if job.is_broken or job.is_over:
        rescaling += active_node_s
    elif job.pin:
        profiling += active_node_s
    else:
        training += active_node_s
        at_risk += active_node_s
    return replace(
        entry,
        node_s=replace(node_s, training=training, rescaling=rescaling, profiling=profiling),
        charged_at_s=at_s,
        at_risk_node_s=at_risk,
    )


def stalled(entry: JobLedger, stall_s: float, nodes: int) -> JobLedger:
    """Move the time that the survivors stood still in a rescale from training to rescaling."""
    moved = min(stall_s * nodes, entry.node_s.training)
    node_s = replace(
        entry.node_s,
        training=entry.node_s.training - moved,
        rescaling=entry.node_s.rescaling + moved,
    )
    at_risk = max(0.0, entry.at_risk_node_s - moved)
    return replace(entry, node_s=node_s, stall_s=entry.stall_s + stall_s, at_risk_node_s=at_risk)


def rolled_back(entry: JobLedger, redone_samples: float, at_risk_samples: float) -> JobLedger:
    """Move the training that a loss undid to preempted.

    `at_risk_samples` were trained since the newest durable checkpoint, in `at_risk_node_s`.
    """
    share = 1.0 if at_risk_samples <= 0 else min(1.0, redone_samples / at_risk_samples)
    lost = min(share * entry.at_risk_node_s, entry.node_s.training)
    node_s = replace(
        entry.node_s,
        training=entry.node_s.training - lost,
        preempted=entry.node_s.preempted + lost,
    )
    return replace(
        entry,
        node_s=node_s,
        redone_samples=entry.redone_samples + redone_samples,
        at_risk_node_s=max(0.0, entry.at_risk_node_s - lost),
    )


def saved(entry: JobLedger) -> JobLedger:
    """Note that a durable checkpoint holds everything until now."""
    return replace(entry, at_risk_node_s=0.0)


def job_ledger(cluster: Cluster, job_id: str) -> JobLedger:
    """Return the job's entry, charged until the cluster's time."""
    return charged(cluster.ledger.jobs[job_id], cluster.jobs[job_id], cluster.now_s)


def totals(cluster: Cluster) -> NodeSeconds:
    """Return where every node-second offered so far went."""
    ledger: Ledger = charge_offer(cluster, cluster.now_s).ledger
    entries = (job_ledger(cluster, job_id).node_s for job_id in cluster.jobs)
    used = sum(entries, start=ledger.forgotten)
    return replace(used, idle=ledger.offered_node_s - used.offered)
