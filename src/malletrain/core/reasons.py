"""Decisions in words, for the people who live with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from malletrain.core.actions import Action, ReleaseNodes, Rescale, Stop
from malletrain.core.events import (
    AnyEvent,
    JobCancelled,
    JobFinished,
    JobResumed,
    JobSubmitted,
    JobSuspended,
    NodesJoined,
    NodesLeaving,
    NodesLost,
    RescaleFailed,
    WorkersLost,
)
from malletrain.core.model import Cluster, Pin
from malletrain.core.problem import Allocation

_CAUSES: dict[type, str] = {
    JobSubmitted: "submitted",
    JobCancelled: "cancelled",
    JobSuspended: "suspended",
    JobResumed: "resumed",
    JobFinished: "finished",
    WorkersLost: "lost a worker",
    RescaleFailed: "could not be rescaled",
}


def of_decision(
    cluster: Cluster,
    actions: Sequence[Action],
    pins: dict[str, Pin],
    allocation: Allocation | None,
    trigger: Sequence[AnyEvent],
) -> str:
    """Say what happened, what is done about it, and how good the answer is."""
    changes = [words for action in actions if (words := _action(cluster, action))]
    changes += [
        f"{cluster.jobs[job_id].spec.name} is held at {nodes_word(pin.nodes)}: {pin.reason}"
        for job_id, pin in pins.items()
        if cluster.jobs[job_id].pin != pin
    ]
    parts = [causes(cluster, trigger), "; ".join(changes) or "nothing to change"]
    if allocation and changes:
        parts.append(_quality(allocation))
    return " -> ".join(part for part in parts if part)


def causes(cluster: Cluster, trigger: Sequence[AnyEvent]) -> str:
    """Name what happened, nodes counted and jobs by name."""
    counts: Counter[str] = Counter()
    words: list[str] = []
    for event in trigger:
        match event:
            case NodesJoined(nodes=nodes):
                counts["joined"] += len(nodes)
            case NodesLeaving(node_ids=node_ids):
                counts["leaving"] += len(node_ids)
            case NodesLost(node_ids=node_ids):
                counts["gone"] += len(node_ids)
            case JobSubmitted(spec=spec):
                words.append(f"{spec.name} submitted")
            case _ if type(event) in _CAUSES:
                job = cluster.jobs.get(getattr(event, "job_id", ""))
                if job:
                    words.append(f"{job.spec.name} {_CAUSES[type(event)]}")
    moves = [f"{nodes_word(count)} {what}" for what, count in counts.items()]
    return ", ".join(dict.fromkeys([*moves, *words]))


def nodes_word(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _action(cluster: Cluster, action: Action) -> str:
    match action:
        case Rescale(job_id, _, node_ids):
            job = cluster.jobs[job_id]
            before, after = len(job.node_ids), len(node_ids)
            if job.is_broken and after:
                return f"{job.spec.name} goes on with {nodes_word(after)}"
            if not after:
                return f"{job.spec.name} {before} -> 0 nodes, its state is saved"
            return f"{job.spec.name} {before} -> {nodes_word(after)}"
        case Stop(job_id):
            return f"{cluster.jobs[job_id].spec.name} is ended"
        case ReleaseNodes(node_ids):
            return f"{nodes_word(len(node_ids))} given back early"
        case _:
            return ""


def _quality(allocation: Allocation) -> str:
    if allocation.proved_optimal:
        return "optimum proved"
    return f"within {100 * allocation.gap:.2g}% of the best possible"
