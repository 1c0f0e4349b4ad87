"""Clusters as the API shows them, made up for the tests."""

from __future__ import annotations

from typing import Any

from malletrain.core.ledger import NodeSeconds
from malletrain.live.views import ClusterView, DecisionView, JobView, NodeView

STARTED_AT_S = 1_700_000_000.0
NOW_S = STARTED_AT_S + 52.0


def job(number: int, name: str, **changes: Any) -> JobView:
    fields: dict[str, Any] = {
        "id": f"job-{number}",
        "name": name,
        "phase": "active",
        "activity": "training",
        "nodes": (),
        "target_nodes": None,
        "min_nodes": 1,
        "max_nodes": 8,
        "weight": 1.0,
        "generation": 3,
        "done_samples": 12_345.0,
        "work_samples": 50_000.0,
        "samples_per_s": 812.5,
        "loss": 0.4321,
        "scale_ups": 4,
        "scale_downs": 3,
        "losses": 1,
        "stall_s": 1.7,
        "node_s": NodeSeconds(training=210.0, rescaling=4.0),
        "pinned_nodes": None,
        "measured_at": (1, 2, 4),
        "failures": 0,
        "note": "",
        "submitted_at_s": STARTED_AT_S + number,
        "ended_at_s": None,
    }
    return JobView(**fields | changes)


def node(node_id: str, group: str, state: str, job_id: str | None = None) -> NodeView:
    return NodeView(
        id=node_id,
        group=group,
        node_class="local",
        gpus=0,
        state=state,
        job_id=job_id,
        opened_at_s=STARTED_AT_S,
        leaving_at_s=NOW_S + 12.0 if state == "leaving" else None,
        host="",
        pilot_id="",
        expected_end_at_s=None,
    )


def small_cluster() -> ClusterView:
    """Eight nodes in two groups, jobs in every state that a reader must tell apart."""
    nodes = (
        node("node-0", "g0", "training", "job-1"),
        node("node-1", "g0", "training", "job-1"),
        node("node-2", "g0", "training", "job-2"),
        node("node-3", "g0", "training", "job-2"),
        node("node-4", "g1", "training", "job-3"),
        node("node-5", "g1", "idle"),
        node("node-6", "g1", "leaving", "job-4"),
        node("node-7", "g1", "joining", "job-1"),
    )
    jobs = (
        job(
            1,
            "digits-cnn",
            activity="rescaling",
            nodes=("node-0", "node-1"),
            target_nodes=("node-0", "node-1", "node-7"),
        ),
        job(2, "mlp-wide", nodes=("node-2", "node-3"), pinned_nodes=2, samples_per_s=23_456.0),
        job(3, "char-transformer", nodes=("node-4",), work_samples=None, loss=None),
        job(4, "compute-heavy", nodes=("node-6",)),
        job(5, "patient", activity="waiting", done_samples=0.0, samples_per_s=0.0, loss=None),
        job(
            6,
            "broken",
            activity="over",
            phase="failed",
            samples_per_s=0.0,
            note="exited with 1 after 3 restarts: no module named foo\nTraceback ...",
            ended_at_s=NOW_S - 20.0,
        ),
    )
    return ClusterView(
        now_s=NOW_S,
        nodes=nodes,
        jobs=jobs,
        samples_per_s=25_893.0,
        node_s=NodeSeconds(
            training=1210.0, rescaling=44.0, profiling=31.0, preempted=12.0, idle=150.0
        ),
        decision=DecisionView(
            at_s=NOW_S - 4.0,
            reason="node-6 leaves: compute-heavy 1→0; digits-cnn 2→3, worth 340 samples/s over a "
            "horizon of 118 s against a cost of 0.4 s",
        ),
        counters={"malformed_messages": 3, "refused_tokens": 0},
    )


def large_cluster(num_nodes: int = 5000, num_jobs: int = 1000, num_groups: int = 40) -> ClusterView:
    nodes = tuple(
        node(f"nid{i:05}", f"c{i * num_groups // num_nodes}", "training", f"job-{i % num_jobs}")
        if i % 10
        else node(f"nid{i:05}", f"c{i * num_groups // num_nodes}", "idle")
        for i in range(num_nodes)
    )
    held: dict[str, list[str]] = {}
    for one in nodes:
        if one.job_id is not None:
            held.setdefault(one.job_id, []).append(one.id)
    jobs = tuple(
        job(
            i,
            f"sweep-{i:04}-of-a-model-with-a-long-name",
            nodes=tuple(held.get(f"job-{i}", ())),
            activity="training" if f"job-{i}" in held else "waiting",
        )
        for i in range(num_jobs)
    )
    return ClusterView(
        now_s=NOW_S,
        nodes=nodes,
        jobs=jobs,
        samples_per_s=812.5 * num_jobs,
        node_s=NodeSeconds(training=1.2e9, idle=1.3e8),
        decision=DecisionView(at_s=NOW_S, reason="a long reason " * 60),
        counters={},
    )


def empty_cluster() -> ClusterView:
    return ClusterView(
        now_s=NOW_S,
        nodes=(),
        jobs=(),
        samples_per_s=0.0,
        node_s=NodeSeconds(),
        decision=None,
        counters={},
    )
