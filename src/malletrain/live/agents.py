"""The agents that have called: one link a node, which outlives its connections.

A broken connection is no lost node: the agent has some time to call again. What was on its way to
it may be lost: the listener says again what matters. The node is lost at once where it was leaving
anyway, where another agent speaks for it, and where the batch system says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from malletrain import __version__
from malletrain.clock import Clock, within
from malletrain.config import LiveSettings
from malletrain.core.model import Node
from malletrain.errors import WireError
from malletrain.live.alarms import Alarms
from malletrain.live.ports import Connection
from malletrain.wire import (
    PROTOCOL,
    AgentHello,
    AgentLeaving,
    FromAgent,
    Malformed,
    Message,
    ReleaseNode,
    Welcome,
    decode,
    encode,
)

#: An agent that has connected must introduce itself by then.
HELLO_LIMIT_S = 10.0

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who is told what agents do."""

    def node_joined(self, node: Node) -> None: ...

    def agent_called(self, hello: AgentHello) -> tuple[str, ...]:
        """Return which of its workers must end; send it again what it must have heard."""
        ...

    def heard(self, node_id: str, message: Message) -> None: ...

    def nodes_lost(self, node_ids: tuple[str, ...], reason: str) -> None: ...


@dataclass(slots=True, eq=False)
class _Link:
    node: Node
    #: None until it has called this controller.
    incarnation: str | None
    connection: Connection | None = None
    outbox: deque[Message] = field(default_factory=deque)
    has_mail: asyncio.Event = field(default_factory=asyncio.Event)
    #: Its end is expected: no use in waiting for it to call again.
    is_leaving: bool = False
    #: Somebody waits for it, by its agent's word.
    is_awaited: bool = False
    #: Connections at its workers' socket that it closed for what came.
    malformed: int = 0


class Agents:
    def __init__(
        self,
        listener: Listener,
        clock: Clock,
        alarms: Alarms,
        settings: LiveSettings,
        counters: Counter[str],
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._alarms = alarms
        self._settings = settings
        self._counters = counters
        self._links: dict[str, _Link] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._links

    @property
    def node_ids(self) -> tuple[str, ...]:
        return tuple(self._links)

    @property
    def away(self) -> int:
        """How many have no connection now."""
        return sum(1 for link in self._links.values() if link.connection is None)

    def node(self, node_id: str) -> Node:
        return self._links[node_id].node

    def expect(self, nodes: Iterable[Node], limit_s: float) -> None:
        """Wait for the agents of nodes that were there before this controller was."""
        for node in nodes:
            is_leaving = node.leaving_at_s is not None
            self._links[node.id] = _Link(node, incarnation=None, is_leaving=is_leaving)
            self._expect_call(self._links[node.id], limit_s)

    def send(self, node_id: str, message: Message) -> bool:
        """Put a message into the agent's outbox; False where there is no such node."""
        link = self._links.get(node_id)
        if link is None:
            return False
        if len(link.outbox) >= self._settings.outbox_messages:
            self._counters["slow_agents"] += 1
            self.lose(node_id, f"its agent left {len(link.outbox)} messages unread")
            return False
        link.outbox.append(message)
        link.has_mail.set()
        return True

    def release(self, node_id: str, reason: str) -> None:
        """Have the agent end its workers and itself."""
        if link := self._links.get(node_id):
            link.is_leaving = True
            if link.connection is None:
                self.lose(node_id, reason)
            else:
                self.send(node_id, ReleaseNode(reason=reason))

    def lose(self, node_id: str, reason: str) -> None:
        """Take the node for lost."""
        link = self._links.pop(node_id, None)
        if link is None:
            return
        self._alarms.cancel(("away", node_id))
        self._hang_up(link, reason)
        self._listener.nodes_lost((node_id,), reason)

    async def serve(self, connection: Connection) -> None:
        """Talk with an agent until its connection ends."""
        try:
            hello = await self._hello(connection)
            if hello is None:
                return
            await self._converse(connection, hello)
        except WireError as error:
            self._counters["malformed_messages"] += 1
            _log.warning("an agent's connection was closed: %s", error)
            with contextlib.suppress(OSError):
                await connection.close(str(error))

    async def _hello(self, connection: Connection) -> AgentHello | None:
        try:
            data = await within(self._clock, HELLO_LIMIT_S, connection.receive())
        except TimeoutError:
            raise WireError(f"no hello within {HELLO_LIMIT_S:g} s") from None
        if data is None:
            return None
        hello = decode(data, FromAgent)
        if not isinstance(hello, AgentHello):
            raise WireError(f"the first message was {type(hello).__name__}, not AgentHello")
        if hello.protocol != PROTOCOL:
            raise WireError(
                f"the agent of {hello.node.id} speaks protocol {hello.protocol}, this controller "
                f"{PROTOCOL}: install the same version of malletrain on both"
            )
        return hello

    async def _converse(self, connection: Connection, hello: AgentHello) -> None:
        link = self._attach(connection, hello)
        stop_worker_ids = self._listener.agent_called(hello)
        welcome = Welcome(
            protocol=PROTOCOL,
            controller=f"malletrain {__version__}",
            stop_worker_ids=stop_worker_ids,
        )
        pump = asyncio.create_task(_pump(link, connection, welcome))
        try:
            while (data := await connection.receive()) is not None:
                if link.connection is connection:
                    self._hear(link, decode(data, FromAgent))
        finally:
            pump.cancel()
            self._detach(link, connection)

    def _attach(self, connection: Connection, hello: AgentHello) -> _Link:
        node = hello.node
        link = self._links.get(node.id)
        if link and link.incarnation not in (None, hello.incarnation):
            self.lose(node.id, "its agent was started anew")
            link = None
        if link is None:
            link = self._links[node.id] = _Link(node, hello.incarnation)
            self._listener.node_joined(node)
        self._hang_up(link, "the agent called again")
        self._alarms.cancel(("away", node.id))
        link.incarnation = hello.incarnation
        link.connection = connection
        return link

    def _hear(self, link: _Link, message: Message) -> None:
        if isinstance(message, AgentHello):
            raise WireError("a second AgentHello on one connection")
        if isinstance(message, AgentLeaving):
            is_awaited = message.shrink_within_s is not None
            if link.is_leaving and is_awaited <= link.is_awaited:
                return  # said before: the deadline stands
            link.is_leaving = True
            link.is_awaited = is_awaited
        if isinstance(message, Malformed):
            more = max(0, message.connections - link.malformed)
            self._counters["malformed_worker_messages"] += more
            link.malformed += more
            return
        try:
            self._listener.heard(link.node.id, message)
        except Exception:
            # A bug of ours must not cost a node; what hangs for it has its deadline.
            _log.exception("a message could not be handled: %s", message)
            self._counters["failed_messages"] += 1

    def _detach(self, link: _Link, connection: Connection) -> None:
        if link.connection is not connection:
            return
        link.connection = None
        if link.is_leaving:
            self.lose(link.node.id, "it left")
        elif connection.was_silent:
            self._expect_call(link, self._settings.agent_away_limit_s)
        else:
            # Its end closed the connection: mostly the kernel, for a process that died. An agent
            # that lives can reach us, and calls again within a fraction of a second. Silence, on
            # the other hand, may be a network that is down for a while, with workers that train.
            self._expect_call(link, self._settings.agent_closed_limit_s)

    def _expect_call(self, link: _Link, limit_s: float) -> None:
        node_id = link.node.id
        reason = f"its agent was away for {limit_s:g} s"
        self._alarms.set(
            ("away", node_id),
            self._clock.now_s() + limit_s,
            lambda: self.lose(node_id, reason),
        )

    def _hang_up(self, link: _Link, reason: str) -> None:
        connection, link.connection = link.connection, None
        if connection is None:
            return
        task = asyncio.create_task(_close(connection, reason))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _pump(link: _Link, connection: Connection, welcome: Welcome) -> None:
    """Empty the outbox into the connection until it is closed."""
    with contextlib.suppress(OSError):
        await connection.send(encode(welcome))
        while True:
            link.has_mail.clear()
            while link.outbox:
                # Taken out first: whether it arrived nobody knows if the connection breaks now.
                await connection.send(encode(link.outbox.popleft()))
            await link.has_mail.wait()


async def _close(connection: Connection, reason: str) -> None:
    with contextlib.suppress(OSError):
        await connection.close(reason)
