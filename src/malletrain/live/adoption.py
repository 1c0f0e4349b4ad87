"""How a controller that comes back takes over a job's workers, and what it finds changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from malletrain.core.events import RescaleDone, RescaleFailed, WorkersLost
from malletrain.live.crew import Crew, Worker
from malletrain.live.flow import Output, Send, StopNow
from malletrain.wire import AbortGroup, WorkerInfo


@dataclass(frozen=True, slots=True)
class Journalled:
    """What the journal knows of a job's workers."""

    #: The running generation and its nodes, in rank order.
    generation: int
    node_ids: tuple[str, ...]
    #: The rescale that was under way, if there was one.
    asked_generation: int | None
    asked_node_ids: tuple[str, ...]
    #: Workers a node, 1 where not named.
    slots: Mapping[str, int]
    samples: float
    #: A member had died: the others stand still.
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class Adoption:
    """What was found."""

    generation: int
    crew: Crew
    #: The workers had carried out the rescale that was under way.
    has_switched: bool
    #: Nodes of the generation that lack a worker.
    missing: tuple[str, ...]
    #: Workers that have no place in the generation.
    strays: tuple[str, ...]


def adopted(infos: Sequence[WorkerInfo], journal: Journalled) -> Adoption:
    """Sort the workers that outlived the controller into members and strays.

    Workers that never got into a group are strays: their rescale cannot be finished, and the next
    decision makes a new one. So are those on nodes that are not the job's any more.
    """
    trained = [info.generation for info in infos]
    generation = max(trained, default=0) or journal.generation
    has_switched = generation == journal.asked_generation and any(trained)
    expected = journal.asked_node_ids if has_switched else journal.node_ids
    rank = {node_id: index for index, node_id in enumerate(expected)}
    group = [info for info in infos if info.generation == generation]
    kept = [info for info in group if info.node_id in rank]
    kept.sort(key=lambda info: (rank[info.node_id], info.slot))
    present = {(info.node_id, info.slot) for info in kept}
    missing = tuple(
        node_id
        for node_id in expected
        if any((node_id, slot) not in present for slot in range(journal.slots.get(node_id, 1)))
    )
    was_broken = journal.is_broken and not has_switched
    is_torn = bool(missing) or was_broken or len(group) > len(kept)
    crew = Crew(
        workers={info.worker_id: Worker(info.node_id, info.slot, is_warm=True) for info in kept},
        members=tuple(info.worker_id for info in kept),
        is_group_dead=bool(kept) and is_torn,
    )
    strays = tuple(info.worker_id for info in infos if info.worker_id not in crew.workers)
    return Adoption(generation, crew, has_switched, missing, strays)


def differences(job_id: str, found: Adoption, journal: Journalled, now_s: float) -> list[Output]:
    """Say how what was found differs from the journal, and end who has no place."""
    outputs: list[Output] = [StopNow(found.strays)] if found.strays else []
    if journal.asked_generation is not None:
        outputs += _settled(job_id, journal.asked_generation, found, journal, now_s)
    if found.missing:
        lost = WorkersLost(
            at_s=now_s,
            job_id=job_id,
            generation=found.generation,
            node_ids=found.missing,
            reason=f"workers on {', '.join(found.missing)} ended while the controller was away",
        )
        outputs.append(lost)
    return outputs


def _settled(
    job_id: str, generation: int, found: Adoption, journal: Journalled, now_s: float
) -> list[Output]:
    """Say what became of the rescale that was under way when the controller died."""
    crew = found.crew
    has_stopped = not journal.asked_node_ids and not crew.workers
    if found.has_switched or has_stopped:
        done = RescaleDone(
            at_s=now_s,
            job_id=job_id,
            generation=generation,
            node_ids=journal.asked_node_ids,
            stall_s=0.0,
            samples=journal.samples,
        )
        return [done]
    failed = RescaleFailed(
        at_s=now_s,
        job_id=job_id,
        generation=generation,
        reason="the controller was restarted",
        node_ids=crew.nodes_of(crew.members),
        is_group_dead=crew.is_group_dead,
    )
    if not crew.members:
        return [failed]
    return [Send(AbortGroup(job_id=job_id, generation=generation, to=crew.members)), failed]
