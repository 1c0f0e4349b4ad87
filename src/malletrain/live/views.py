"""What the API shows: flat, stable JSON, made from the core's state by pure functions."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from malletrain.core.ledger import NodeSeconds
from malletrain.core.metrics import job_ledger, totals
from malletrain.core.model import Cluster, Job, Node


class NodeView(Struct, frozen=True, kw_only=True):
    id: str
    group: str
    node_class: str
    gpus: int
    #: idle, joining, training or leaving.
    state: str
    job_id: str | None
    opened_at_s: float
    leaving_at_s: float | None
    #: The batch system's name for it, and the pilot that holds it there; "" where it has none.
    host: str
    pilot_id: str
    #: When the batch system is known to want it back.
    expected_end_at_s: float | None


class JobView(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    phase: str
    activity: str
    nodes: tuple[str, ...]
    #: Nodes of the rescale under way, if there is one.
    target_nodes: tuple[str, ...] | None
    min_nodes: int
    max_nodes: int
    weight: float
    generation: int
    done_samples: float
    work_samples: float | None
    samples_per_s: float
    loss: float | None
    scale_ups: int
    scale_downs: int
    losses: int
    stall_s: float
    node_s: NodeSeconds
    #: The scale that the advisor holds it at, if it does.
    pinned_nodes: int | None
    #: Node counts at which its model was measured.
    measured_at: tuple[int, ...]
    failures: int
    note: str
    submitted_at_s: float
    ended_at_s: float | None


class DecisionView(Struct, frozen=True, kw_only=True):
    at_s: float
    reason: str


class ClusterView(Struct, frozen=True, kw_only=True):
    now_s: float
    nodes: tuple[NodeView, ...]
    jobs: tuple[JobView, ...]
    samples_per_s: float
    node_s: NodeSeconds
    decision: DecisionView | None
    #: What went wrong at the ports since the start: malformed messages, refused tokens.
    counters: dict[str, int]
    #: What keeps the controller from its work: no room for the journal, no batch system any more.
    trouble: str = ""
    #: Pilots in the queue of a batch system.
    pilots_waiting: int = 0


def node_view(node: Node, job: Job | None) -> NodeView:
    if node.leaving_at_s is not None:
        state = "leaving"
    elif job is None:
        state = "idle"
    else:
        state = "training" if node.id in job.node_ids else "joining"
    return NodeView(
        id=node.id,
        group=node.group,
        node_class=node.node_class,
        gpus=node.gpus,
        state=state,
        job_id=job.spec.id if job else None,
        opened_at_s=node.opened_at_s,
        leaving_at_s=node.leaving_at_s,
        host=node.host,
        pilot_id=node.pilot_id,
        expected_end_at_s=node.expected_end_at_s,
    )


def job_view(job: Job, cluster: Cluster) -> JobView:
    ledger = job_ledger(cluster, job.spec.id)
    curve = cluster.curves.get(job.spec.model_key)
    return JobView(
        id=job.spec.id,
        name=job.spec.name,
        phase=job.phase.value,
        activity=job.activity.value,
        nodes=job.node_ids,
        target_nodes=job.rescaling.node_ids if job.rescaling else None,
        min_nodes=job.spec.min_nodes,
        max_nodes=job.spec.max_nodes,
        weight=job.spec.weight,
        generation=job.generation,
        done_samples=job.done_samples,
        work_samples=job.spec.work_samples,
        samples_per_s=job.samples_per_s,
        loss=job.loss,
        scale_ups=ledger.scale_ups,
        scale_downs=ledger.scale_downs,
        losses=ledger.losses,
        stall_s=ledger.stall_s,
        node_s=ledger.node_s,
        pinned_nodes=job.pin.nodes if job.pin else None,
        measured_at=tuple(o.nodes for o in curve.observations) if curve else (),
        failures=job.failures,
        note=job.note,
        submitted_at_s=job.submitted_at_s,
        ended_at_s=job.ended_at_s,
    )


def cluster_view(
    cluster: Cluster,
    now_s: float,
    decision: DecisionView | None,
    counters: dict[str, int],
    *,
    trouble: str = "",
    pilots_waiting: int = 0,
) -> ClusterView:
    cluster = replace(cluster, now_s=max(now_s, cluster.now_s))
    owners = cluster.owners
    jobs = tuple(job_view(job, cluster) for job in cluster.jobs.values())
    nodes = tuple(
        node_view(node, cluster.jobs.get(owners.get(node.id, "")))
        for node in cluster.nodes.values()
    )
    return ClusterView(
        now_s=cluster.now_s,
        nodes=nodes,
        jobs=jobs,
        samples_per_s=sum(job.samples_per_s for job in jobs),
        node_s=totals(cluster),
        decision=decision,
        counters=counters,
        trouble=trouble,
        pilots_waiting=pilots_waiting,
    )
