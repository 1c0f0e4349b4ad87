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
from malletrain.core.model import Cluster, Job, Pin
from malletrain.core.problem import Allocation
from malletrain.core.view import View

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
    view: View,
    actions: Sequence[Action],
    pins: dict[str, Pin],
    allocation: Allocation | None,
    trigger: Sequence[AnyEvent],
) -> str:
    """Say what happened, what is done about it and for what, and how good the answer is."""
    cluster = view.cluster
    changes = [words for action in actions if (words := _action(view, action))]
    changes += _to_follow(view, actions, allocation)
    changes += [
        f"{cluster.jobs[job_id].spec.name} is held at {nodes_word(pin.nodes)}: {pin.reason}"
        for job_id, pin in pins.items()
        if cluster.jobs[job_id].pin != pin
    ]
    words = "; ".join(changes) or "nothing to change"
    if allocation and changes:
        words += f" ({_quality(allocation)})"
    cause = causes(cluster, trigger)
    return f"{cause}: {words}" if cause else words


def _to_follow(view: View, actions: Sequence[Action], allocation: Allocation | None) -> list[str]:
    """Name who gets what others give up, once it is free."""
    ordered = {action.job_id for action in actions if isinstance(action, Rescale)}
    if not ordered or allocation is None:
        return []
    return [
        f"then {_change(view, job, count)}"
        for job_id, count in allocation.counts.items()
        if count
        and job_id not in ordered
        and (job := view.cluster.jobs.get(job_id)) is not None
        and job.rescaling is None
        and count > len(job.node_ids)
    ]


def _change(view: View, job: Job, after: int) -> str:
    """Name the node counts, and what they are believed to change where that was measured."""
    before = len(job.node_ids)
    words = f"{job.spec.name} {before}\N{RIGHTWARDS ARROW}{nodes_word(after)}"
    known = view.cluster.curves.get(job.spec.model_key)
    if not known or not known.observations:
        return f"{words}, not measured yet"
    rates = view.outlook(job).curve.rates(max(before, after))
    return f"{words}, {rates[after] - rates[before]:+,.0f} samples/s"


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
                    words.append(f"{job.spec.name} {_CAUSES[type(event)]}{_why(event)}")
    moves = [f"{nodes_word(count)} {what}" for what, count in counts.items()]
    return ", ".join(dict.fromkeys([*moves, *words]))


def _why(event: AnyEvent) -> str:
    reason = getattr(event, "reason", "").partition("\n")[0]
    return f" ({reason})" if reason else ""


def nodes_word(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _action(view: View, action: Action) -> str:
    match action:
        case Rescale(job_id, _, node_ids):
            job = view.cluster.jobs[job_id]
            if job.is_broken and node_ids:
                return f"{job.spec.name} goes on with {nodes_word(len(node_ids))}"
            if not node_ids:
                return f"{job.spec.name} leaves its {nodes_word(len(job.node_ids))}, state saved"
            return _change(view, job, len(node_ids))
        case Stop(job_id):
            return f"{view.cluster.jobs[job_id].spec.name} is ended"
        case ReleaseNodes(node_ids):
            return f"{nodes_word(len(node_ids))} given back early"
        case _:
            return ""


def _quality(allocation: Allocation) -> str:
    if allocation.proved_optimal:
        return "no division is worth more: proved"
    return f"within {100 * allocation.gap:.2g}% of the best possible"
