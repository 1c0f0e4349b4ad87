"""What a period of ours meant for the machine and its other users."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from malletrain.batch.commands import CommandRecord
from malletrain.core.ledger import NodeSeconds
from malletrain.impact.accounting import BatchJob
from malletrain.impact.load import SchedulerLoad, cancelled_at_s, pilot_names, scheduler_load
from malletrain.impact.pilots import PilotEnd, Queue, divide, end_of, most_waiting, node_s, ran
from malletrain.impact.stays import Held, Leave, Stay
from malletrain.impact.takings import Taking, takings

_NO_PILOTS = (
    "the accounting has none of these pilots: it may be another machine's, of another time, or in "
    "another time zone (SLURM_TIME_FORMAT=%s has none)"
)
_NO_OTHERS = (
    "the accounting has no job of anybody else; where others' jobs are hidden "
    "(Slurm's PrivateData), an administrator can see them"
)


class Spread(Struct, frozen=True, kw_only=True):
    """Durations in s, their middle and their longest."""

    count: int
    median_s: float
    longest_s: float


class Unfit(Struct, frozen=True, kw_only=True):
    """A node that was taken out of service, or failed, while it was ours."""

    host: str
    at_s: float
    reason: str


class QueueImpact(Struct, frozen=True, kw_only=True):
    """What only the accounting knows."""

    takings: tuple[Taking, ...]
    waited: Spread | None
    pilot_ends: dict[str, int]
    #: What pilots held, from their start: more than was harvested, as they had yet to call.
    pilot_node_s: float
    most_waiting: int
    #: Of the accounting; none may mean that it hides them.
    main_jobs: int


class Impact(Struct, frozen=True, kw_only=True):
    """Figures of a period. What is not known is null."""

    from_at_s: float
    to_at_s: float
    pilots: int
    harvested_node_s: float
    node_s: NodeSeconds
    #: Nodes by how they left, those still held too.
    leaves: dict[str, int]
    #: From being asked back to being gone, as the journal tells.
    released: Spread | None
    unfit: tuple[Unfit, ...]
    load: SchedulerLoad | None
    queue: QueueImpact | None
    #: What these figures cannot say, and how to get it.
    notes: tuple[str, ...]


def impact(
    held: Held,
    commands: Sequence[CommandRecord] | None,
    jobs: Sequence[BatchJob] | None,
    notes: Sequence[str] = (),
) -> Impact:
    """Gather the figures.

    Args:
        held: the period, and which nodes were ours in it.
        commands: the log of commands; None where there is none.
        jobs: the accounting; None where there is none.
        notes: what is to be said beside them.
    """
    cancelled = cancelled_at_s(commands or ())
    stays = tuple(_as_ordered(stay, cancelled) for stay in held.stays)
    held = dataclasses.replace(held, stays=stays)
    if commands is None and not _pilot_ids(stays):
        # Nodes that no scheduler gave.
        commands = ()
    queue = None
    if jobs is not None:
        queue = divide(jobs, _pilot_ids(stays), pilot_names(commands or ()))
    of_queue = None if queue is None else _queue_impact(held, cancelled, queue)
    return Impact(
        from_at_s=held.from_s,
        to_at_s=held.to_s,
        pilots=len({stay.pilot_id or stay.node_id for stay in stays}),
        harvested_node_s=held.node_s.offered,
        node_s=held.node_s,
        leaves=dict(Counter(stay.leave.value for stay in stays)),
        released=_spread(_releases_s(held)),
        unfit=tuple(sorted(_unfit(held, queue), key=lambda unfit: unfit.at_s)),
        load=None if commands is None else scheduler_load(commands, held.from_s, held.to_s),
        queue=of_queue,
        notes=(*notes, *_doubts(stays, of_queue)),
    )


def _as_ordered(stay: Stay, cancelled: Mapping[str, float]) -> Stay:
    """Tell a signal, or an end, that followed from our own cancelling from the batch system's."""
    ended_at_s = stay.asked_at_s or stay.gone_at_s
    at_s = cancelled.get(stay.pilot_id)
    if at_s is None or ended_at_s is None or at_s > ended_at_s:
        return stay
    if stay.leave not in (Leave.ASKED, Leave.LOST):
        return stay
    return dataclasses.replace(stay, leave=Leave.GIVEN_BACK, reason="cancelled by us")


def _pilot_ids(stays: Sequence[Stay]) -> set[str]:
    return {stay.pilot_id for stay in stays if stay.pilot_id}


def _doubts(stays: Sequence[Stay], queue: QueueImpact | None) -> tuple[str, ...]:
    if queue is None:
        return ()
    if _pilot_ids(stays) and not queue.pilot_ends:
        return (_NO_PILOTS,)
    return () if queue.main_jobs else (_NO_OTHERS,)


def _queue_impact(held: Held, cancelled: Mapping[str, float], queue: Queue) -> QueueImpact:
    from_s, to_s = held.from_s, held.to_s
    ids = {pilot: stay.pilot_id for stay in held.stays if (pilot := queue.pilot_of(stay))}
    found = takings(held.stays, queue, from_s, to_s)
    pilots = [pilot for pilot in queue.pilots if ran(pilot, from_s, to_s)]
    ends = Counter(end_of(pilot, ids.get(pilot), cancelled).value for pilot in pilots)
    return QueueImpact(
        takings=found,
        waited=_spread([taking.waited_s for taking in found]),
        pilot_ends={end.value: ends[end.value] for end in PilotEnd if ends[end.value]},
        pilot_node_s=sum(node_s(pilot, from_s, to_s) for pilot in pilots),
        most_waiting=most_waiting(queue.pilots, from_s, to_s),
        main_jobs=len(queue.main_jobs),
    )


def _releases_s(held: Held) -> list[float]:
    """Return how long nodes stayed ours after they were asked back within the period."""
    return [
        stay.gone_at_s - stay.asked_at_s
        for stay in held.stays
        if stay.leave is Leave.ASKED and stay.asked_at_s is not None and stay.gone_at_s is not None
        if stay.asked_at_s >= held.from_s
    ]


def _unfit(held: Held, queue: Queue | None) -> list[Unfit]:
    found = [
        Unfit(host=stay.host, at_s=at_s, reason=stay.reason)
        for stay in held.stays
        if stay.leave is Leave.UNFIT and (at_s := stay.asked_at_s or stay.gone_at_s)
    ]
    known = {unfit.host for unfit in found}
    for pilot in queue.pilots if queue else ():
        is_failed = pilot.state.startswith("NODE_FAIL") and ran(pilot, held.from_s, held.to_s)
        if is_failed and known.isdisjoint(pilot.hosts):
            at_s = held.to_s if pilot.ended_at_s is None else pilot.ended_at_s
            reason = f"the accounting says that pilot {pilot.id} ended as NODE_FAIL"
            found += [Unfit(host=host, at_s=at_s, reason=reason) for host in pilot.hosts]
    return found


def _spread(durations_s: Sequence[float]) -> Spread | None:
    if not durations_s:
        return None
    return Spread(
        count=len(durations_s),
        median_s=statistics.median(durations_s),
        longest_s=max(durations_s),
    )
