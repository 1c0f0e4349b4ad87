from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from malletrain.core.apply import replay
from malletrain.core.events import (
    AnyEvent,
    NodesJoined,
    NodesLeaving,
    NodesLost,
    WokeUp,
)
from malletrain.core.model import Node
from malletrain.live.inbox import Entry, Inbox, merged

NODES = st.sampled_from(["a", "b", "c", "d"])


def joined(node: str) -> AnyEvent:
    return NodesJoined(at_s=1.0, nodes=(Node(id=node, opened_at_s=1.0),))


def leaving(node: str, deadline_at_s: float = 9.0) -> AnyEvent:
    return NodesLeaving(at_s=1.0, node_ids=(node,), deadline_at_s=deadline_at_s)


def lost(node: str, reason: str = "") -> AnyEvent:
    return NodesLost(at_s=1.0, node_ids=(node,), reason=reason)


def of(*events: AnyEvent) -> list[AnyEvent]:
    return [entry.event for entry in merged(map(Entry, events))]


def test_a_burst_becomes_one_event() -> None:
    (event,) = of(leaving("a", 9.0), leaving("b", 8.8), leaving("c", 9.1))
    assert isinstance(event, NodesLeaving)
    assert event.node_ids == ("a", "b", "c")
    # Nobody is promised more time than he has.
    assert event.deadline_at_s == 8.8


def test_what_differs_stays_apart() -> None:
    assert len(of(leaving("a", 9.0), leaving("b", 30.0))) == 2
    assert len(of(lost("a", "it left"), lost("b", "its host died"))) == 2
    assert len(of(joined("a"), lost("a"), joined("a"))) == 3


@given(
    st.lists(
        st.one_of(
            st.builds(joined, NODES),
            st.builds(leaving, NODES, st.sampled_from([9.0, 90.0])),
            st.builds(lost, NODES),
            st.just(WokeUp(at_s=1.0)),
        ),
        max_size=12,
    )
)
def test_merging_changes_nothing(events: list[AnyEvent]) -> None:
    assert replay(of(*events)) == replay(events)


def test_who_waits_for_an_event_is_told_of_that_event() -> None:
    async def story() -> None:
        inbox = Inbox()
        done = asyncio.get_running_loop().create_future()
        inbox.put(joined("a"))
        inbox.put(joined("b"), done)
        inbox.put(joined("c"))
        entries = inbox.take()
        assert [entry.done for entry in entries] == [None, done, None]
        assert not inbox.has_entries.is_set()

    asyncio.run(story())
