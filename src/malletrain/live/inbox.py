"""Events that wait to be journalled, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from malletrain.core.events import (
    AnyEvent,
    NodesJoined,
    NodesLeaving,
    NodesLost,
)

#: Leaves announced within this time are one leave.
SAME_LEAVE_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    event: AnyEvent
    #: Somebody waits for the event to be on disk; None: nobody does.
    done: asyncio.Future[None] | None = None


class Inbox:
    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self.has_entries = asyncio.Event()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, event: AnyEvent, done: asyncio.Future[None] | None = None) -> None:
        self._entries.append(Entry(event, done))
        self.has_entries.set()

    def take(self) -> list[Entry]:
        """Take out everything, with what came together put together."""
        entries, self._entries = self._entries, []
        self.has_entries.clear()
        return merged(entries)


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """Make neighbouring events about single nodes one event: a burst costs what one node does."""
    result: list[Entry] = []
    run: list[AnyEvent] = []
    for entry in entries:
        if entry.done is None and run and _is_same(run[0], entry.event):
            run.append(entry.event)
            continue
        if run:
            result.append(Entry(_as_one(run)))
        run = [] if entry.done else [entry.event]
        if entry.done:
            result.append(entry)
    if run:
        result.append(Entry(_as_one(run)))
    return result


def _is_same(first: AnyEvent, event: AnyEvent) -> bool:
    match first, event:
        case NodesJoined(), NodesJoined():
            return True
        case NodesLost(), NodesLost():
            return (first.reason, first.were_released) == (event.reason, event.were_released)
        case NodesLeaving(deadline_at_s=before_s), NodesLeaving(deadline_at_s=after_s):
            is_alike = (first.reason, first.are_awaited) == (event.reason, event.are_awaited)
            return is_alike and abs(after_s - before_s) <= SAME_LEAVE_S
    return False


def _as_one(run: Sequence[AnyEvent]) -> AnyEvent:
    if len(run) == 1:
        return run[0]
    at_s = run[-1].at_s
    match run[0]:
        case NodesJoined():
            nodes = tuple(n for event in run if isinstance(event, NodesJoined) for n in event.nodes)
            return NodesJoined(at_s=at_s, nodes=nodes)
        case NodesLost() as lost:
            node_ids = tuple(n for e in run if isinstance(e, NodesLost) for n in e.node_ids)
            return replace(lost, at_s=at_s, node_ids=node_ids)
    leaves = [event for event in run if isinstance(event, NodesLeaving)]
    return replace(
        leaves[0],
        at_s=at_s,
        node_ids=tuple(node_id for event in leaves for node_id in event.node_ids),
        deadline_at_s=min(event.deadline_at_s for event in leaves),
    )
