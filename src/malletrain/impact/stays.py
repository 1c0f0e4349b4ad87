"""What the journal knows of the nodes that were ours: since when, until when, and why they left."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from malletrain.core import metrics
from malletrain.core.apply import apply
from malletrain.core.events import AnyEvent, NodesJoined, NodesLeaving, NodesLost
from malletrain.core.ledger import NodeSeconds
from malletrain.core.model import Cluster, Node

#: What an agent says when the batch system signals; journals of before have no reason.
_SIGNALLED = re.compile(r"|the node got .*")
#: Why `batch.harvest` gives a node back whose host is being taken out of service.
_UNFIT = re.compile(r"the batch system says that \S+ is .+")
#: How a controller names an end that was no surprise, such as those at its own shutdown.
_IN_ORDER = "it left"


class Leave(enum.Enum):
    """How a node stopped being ours."""

    HELD = "held to the end"
    #: The batch system signalled: a job was to have it, its time was over, or somebody cancelled.
    ASKED = "asked back"
    #: We left by ourselves: nobody needed it, or the end of its time was near.
    GIVEN_BACK = "given back"
    #: Its host was taken out of service.
    UNFIT = "drained or down"
    #: It was gone without a word.
    LOST = "lost without notice"


@dataclass(slots=True)
class Stay:
    """One node while it was ours."""

    node_id: str
    host: str
    pilot_id: str
    joined_at_s: float
    leave: Leave = Leave.HELD
    #: When its leave began; None where it never did.
    asked_at_s: float | None = None
    gone_at_s: float | None = None
    reason: str = ""

    def node_s(self, from_s: float, to_s: float) -> float:
        """Return how long it was ours within a period."""
        gone_at_s = to_s if self.gone_at_s is None else self.gone_at_s
        return max(0.0, min(gone_at_s, to_s) - max(self.joined_at_s, from_s))


@dataclass(frozen=True, slots=True)
class Held:
    """All stays of a period, and where their node-seconds went."""

    #: As far as the journal tells of it.
    from_s: float
    to_s: float
    stays: tuple[Stay, ...]
    node_s: NodeSeconds


def span(start: Cluster | None, events: tuple[AnyEvent, ...]) -> tuple[float, float] | None:
    """Return the first and the last moment that a journal tells of; None where it is empty."""
    moments = [event.at_s for event in (*events[:1], *events[-1:])]
    if start is not None:
        moments.append(start.now_s)
    return (min(moments), max(moments)) if moments else None


def held(start: Cluster | None, events: Iterable[AnyEvent], from_s: float, to_s: float) -> Held:
    """Replay a journal up to the end of the period."""
    recorder = _Recorder(start or Cluster())
    before: NodeSeconds | None = None
    for event in events:
        if event.at_s > to_s:
            break
        if before is None and event.at_s > from_s:
            before = _totals_at(recorder.cluster, from_s)
        recorder.take(event)
    after = _totals_at(recorder.cluster, to_s)
    if before is None:
        before = _totals_at(recorder.cluster, from_s)
    stays = [stay for stay in recorder.stays if stay.gone_at_s is None or stay.gone_at_s > from_s]
    return Held(from_s, to_s, tuple(stays), _difference(after, before))


@dataclass(slots=True)
class _Recorder:
    cluster: Cluster
    stays: list[Stay] = field(default_factory=list)
    #: Those that are ours now, by node id.
    current: dict[str, Stay] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.cluster.nodes.values():
            self._begin(node)

    def take(self, event: AnyEvent) -> None:
        before, self.cluster = self.cluster, apply(self.cluster, event)
        match event:
            case NodesJoined(nodes=nodes):
                for node in nodes:
                    if node.id not in before.nodes:
                        self._begin(node)
            case NodesLeaving(node_ids=node_ids, reason=reason):
                for node_id in node_ids:
                    if (stay := self.current.get(node_id)) and stay.asked_at_s is None:
                        stay.asked_at_s = event.at_s
                        is_released = before.nodes[node_id].is_released
                        stay.leave, stay.reason = _why(reason, is_released=is_released), reason
            case NodesLost(node_ids=node_ids, reason=reason, were_released=were_released):
                for node_id in node_ids:
                    if stay := self.current.pop(node_id, None):
                        self._end(stay, reason, were_released=were_released)
            case _:
                pass

    def _begin(self, node: Node) -> None:
        stay = Stay(node.id, node.host or node.id, node.pilot_id, self.cluster.now_s)
        self.current[node.id] = stay
        self.stays.append(stay)

    def _end(self, stay: Stay, reason: str, *, were_released: bool) -> None:
        stay.gone_at_s = self.cluster.now_s
        if _UNFIT.fullmatch(reason):
            stay.leave, stay.reason = Leave.UNFIT, reason
        elif stay.leave is Leave.HELD:
            is_in_order = were_released or reason == _IN_ORDER
            stay.leave = Leave.GIVEN_BACK if is_in_order else Leave.LOST
            stay.reason = reason


def _why(reason: str, *, is_released: bool) -> Leave:
    if _UNFIT.fullmatch(reason):
        return Leave.UNFIT
    is_asked = _SIGNALLED.fullmatch(reason) and not is_released
    return Leave.ASKED if is_asked else Leave.GIVEN_BACK


def _totals_at(cluster: Cluster, at_s: float) -> NodeSeconds:
    return metrics.totals(replace(cluster, now_s=max(cluster.now_s, at_s)))


def _difference(after: NodeSeconds, before: NodeSeconds) -> NodeSeconds:
    parts = {name: getattr(after, name) - getattr(before, name) for name in after.__struct_fields__}
    return NodeSeconds(**parts)
