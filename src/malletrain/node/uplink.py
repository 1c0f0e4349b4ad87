"""An agent's connection to the controller: opened outwards, re-opened with back-off.

While the controller is away, what it must learn is kept, and of the rest the newest. A message is
kept until a round trip behind it has proved that the peer has it, so some are sent twice; to the
receiver every message but the first of its kind is a no-op.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Protocol

from malletrain.clock import Clock, within
from malletrain.errors import WireError
from malletrain.wire import (
    PROTOCOL,
    AgentHello,
    Message,
    Progress,
    StoreAdd,
    StoreGet,
    StoreValue,
    ToAgent,
    Welcome,
    decode,
    encode,
)

_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 5.0
_WELCOME_LIMIT_S = 10.0

_logger = logging.getLogger(__name__)


class Connection(Protocol):
    """A message stream. Every method raises `ConnectionError` once it is lost."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes: ...

    async def flush(self) -> None:
        """Return when the peer has received all that was sent before."""
        ...

    async def close(self) -> None: ...


#: Raises `ConnectionError` or `OSError` where the controller cannot be reached.
Connect = Callable[[], Awaitable[Connection]]


class Uplink:
    """Speaks with the controller for as long as it is not away for too long."""

    def __init__(
        self,
        connect: Connect,
        clock: Clock,
        jitter: Callable[[], float],
        *,
        hello: Callable[[], AgentHello],
        receive: Callable[[ToAgent], None],
        away_limit_s: float,
    ) -> None:
        self._connect = connect
        self._clock = clock
        #: Between 0 and 1: a thousand agents must not come back in the same instant.
        self._jitter = jitter
        self._hello = hello
        self._receive = receive
        self._away_limit_s = away_limit_s
        #: Connections closed for what the controller said.
        self.malformed = 0
        self._outbox = _Outbox()
        self.is_connected = False
        self._last_seen_at_s = clock.now_s()
        self._backoff_s = _FIRST_BACKOFF_S

    def send(self, message: Message) -> None:
        """Send now or as soon as there is a connection."""
        self._outbox.put(message)

    def forget(self, request: int) -> None:
        """Nobody waits for the answer to this request any more."""
        self._outbox.answered(request)

    async def flush(self) -> None:
        """Return when the controller has all that was sent, at once where it is away."""
        if self.is_connected:
            await self._outbox.all_proved.wait()

    async def run(self) -> None:
        """Keep connected; return when the controller was away for the limit."""
        self._last_seen_at_s = self._clock.now_s()
        problem = ""
        while (left_s := self._away_limit_s - self._away_s()) > 0:
            try:
                await self._connect_and_serve()
            except WireError as error:
                self.malformed += 1
                _logger.warning("closed the connection (no. %d): %s", self.malformed, error)
            except OSError as error:
                if str(error) != problem:
                    problem = str(error)
                    _logger.warning("controller: %s", problem)
            await self._clock.sleep(min(self._backoff_s * (0.5 + self._jitter()), left_s))
            self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)
        _logger.error("the controller was away for %.0f s", self._away_s())

    def _away_s(self) -> float:
        return self._clock.now_s() - self._last_seen_at_s

    async def _connect_and_serve(self) -> None:
        connection = await self._connect()
        try:
            await connection.send(encode(self._hello()))
            self._greet(await within(self._clock, _WELCOME_LIMIT_S, connection.receive()))
            try:
                await self._exchange(connection)
            finally:
                self.is_connected = False
                self._last_seen_at_s = self._clock.now_s()
                # Nobody shall wait for a controller that is away.
                self._outbox.all_proved.set()
        finally:
            await connection.close()

    def _greet(self, data: bytes) -> None:
        welcome = decode(data, ToAgent)
        if not isinstance(welcome, Welcome):
            raise WireError("the controller's first message must be Welcome")
        if welcome.protocol != PROTOCOL:
            raise WireError(
                f"the controller speaks protocol {welcome.protocol}, this agent {PROTOCOL}: "
                f"install the same malletrain version for both"
            )
        self.is_connected = True
        self._backoff_s = _FIRST_BACKOFF_S
        self._outbox.restart()
        self._receive(welcome)

    async def _exchange(self, connection: Connection) -> None:
        tasks = [
            asyncio.create_task(self._read(connection)),
            asyncio.create_task(self._outbox.send_to(connection)),
            asyncio.create_task(self._outbox.prove(connection)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, connection: Connection) -> None:
        while True:
            message = decode(await connection.receive(), ToAgent)
            if isinstance(message, StoreValue):
                self._outbox.answered(message.request)
            self._receive(message)


class _Outbox:
    """What is to be sent, and what was sent but may not have arrived."""

    def __init__(self) -> None:
        #: By serial: not yet proved to have arrived, or a request that is not answered yet.
        self._kept: dict[int, Message] = {}
        self._serials = count()
        #: Request number -> serial of the question.
        self._questions: dict[int, int] = {}
        self._to_send: deque[int] = deque()
        self._last_sent = -1
        self._progress: dict[str, Progress] = {}
        self._has_news = asyncio.Event()
        self._has_sent = asyncio.Event()
        self.all_proved = asyncio.Event()
        self.all_proved.set()

    def put(self, message: Message) -> None:
        if isinstance(message, Progress):
            self._progress[message.worker_id] = message
        else:
            serial = next(self._serials)
            self._kept[serial] = message
            self._to_send.append(serial)
            if isinstance(message, StoreGet | StoreAdd):
                self._questions[message.request] = serial
            self.all_proved.clear()
        self._has_news.set()

    def answered(self, request: int) -> None:
        if (serial := self._questions.pop(request, None)) is not None:
            self._kept.pop(serial, None)

    def restart(self) -> None:
        """Begin anew on a new connection: nothing is known to have arrived."""
        self._to_send = deque(self._kept)
        self._last_sent = -1
        self._has_sent.clear()
        self._has_news.set()
        if self._kept:
            self.all_proved.clear()

    async def send_to(self, connection: Connection) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            while self._to_send:
                serial = self._to_send.popleft()
                if message := self._kept.get(serial):
                    await connection.send(encode(message))
                self._last_sent = serial
                self._has_sent.set()
            while self._progress:
                await connection.send(encode(self._progress.popitem()[1]))

    async def prove(self, connection: Connection) -> None:
        """Drop what a round trip has proved to have arrived."""
        while True:
            await self._has_sent.wait()
            self._has_sent.clear()
            mark = self._last_sent
            await connection.flush()
            waiting = set(self._questions.values())
            for serial in [s for s in self._kept if s <= mark and s not in waiting]:
                del self._kept[serial]
            if self._kept.keys() <= waiting:
                self.all_proved.set()
