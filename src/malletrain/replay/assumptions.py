"""Say in words what a replay takes for granted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from malletrain.replay.request import Asked, learns
from malletrain.sim.policies import Policy
from malletrain.sim.settings import LedgerKind, ModelIdentity, WorldSettings
from malletrain.workloads.workload import Workload


def assumptions(
    request: Asked,
    jobs: Workload,
    policies: Sequence[Policy],
    end_s: float,
    most_idle_nodes: int,
) -> Iterator[str]:
    if request.ledger is LedgerKind.EXACT:
        yield from _exact(request.world)
    else:
        yield (
            "The ledger is the papers' replayer's: a rescale takes no time, its cost is taken from "
            "the job's progress at once; jobs come in and end only when nodes come or go; nodes "
            "leave without notice."
        )
        if request.from_s is None:
            yield "As there, the replay starts at the first submission."
    yield _stalls(request.world)
    yield from _faults(request.world)
    if any(map(learns, policies)):
        yield (
            "Jobs with the same true curve are known to be of one model."
            if request.models is ModelIdentity.KNOWN
            else "Every job is a model of its own: what is learned of one says nothing of another."
        )
    late = sum(job.submitted_at_s >= end_s for job in jobs.jobs)
    if late:
        yield f"Jobs that are submitted after the replay's end, and never come in: {late:,}."
    large = sum(job.min_nodes > most_idle_nodes for job in jobs.jobs)
    if large:
        yield (
            f"Jobs that need more nodes than the {most_idle_nodes:,} that are idle at once at "
            f"most, and never train: {large:,}."
        )


def _exact(world: WorldSettings) -> Iterator[str]:
    yield (
        f"Orders reach the workers {world.decision_delay_s:g} s after what they follow from; a "
        f"worker on a joining node is warm {world.worker_start_s:g} s later, while the others "
        f"train on."
    )
    yield (
        f"A node that the main scheduler wants back may be held for {world.grace_s:g} s more at "
        f"most, unless the log says that it is taken without notice."
        if world.grace_s
        else "The main scheduler takes nodes back without notice."
    )
    yield (
        f"A loss without notice is seen after {world.loss_notice_s:g} s and costs half a step of "
        f"{world.step_s:g} s; a job that loses all its nodes so goes back to a checkpoint, of "
        f"which it writes one every {world.checkpoint_every_s:g} s."
    )


def _stalls(world: WorldSettings) -> str:
    stalls = [
        f"scaling {way} costs {stall_s:g} s" if stall_s is not None else f"scaling {way} as given"
        for way, stall_s in (("up", world.scale_up_s), ("down", world.scale_down_s))
    ]
    own = "what its workload says"
    said = own if world.scale_up_s is world.scale_down_s is None else ", ".join(stalls)
    factor = "" if world.cost_factor == 1 else f", times {world.cost_factor:g}"
    return f"A rescale stalls a job for {said}{factor}."


def _faults(world: WorldSettings) -> Iterator[str]:
    if world.pilot_start_s:
        yield f"A node is of use {world.pilot_start_s:g} s after it falls idle."
    if world.crashes_per_node_day:
        yield f"Each node crashes {world.crashes_per_node_day:g} times a day."
    if world.lost_message_share:
        yield (
            f"{world.lost_message_share:.1%} of the orders are lost and sent again after "
            f"{world.message_retry_s:g} s."
        )
    if world.slow_node_share:
        yield (
            f"{world.slow_node_share:.1%} of the nodes have {world.slow_node_speed:g} times the "
            f"speed of the others."
        )
    if world.knows_node_ends:
        yield "It is known of every node when it will be wanted back."
