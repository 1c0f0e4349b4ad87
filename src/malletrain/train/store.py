"""The rendezvous store of one generation, kept by the controller and reached through the agent."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from datetime import timedelta

# The type stubs do not know that torch.distributed has it, too.
from torch._C._distributed_c10d import Store

from malletrain.wire import StoreAdd, StoreGet, StoreSet, StoreValue


class Answers:
    """Requests of this worker that wait for a `StoreValue`."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._values: dict[int, bytes | None] = {}
        self._changed = threading.Condition()

    def new_request(self) -> int:
        with self._changed:
            number = next(self._numbers)
            self._values[number] = None
            return number

    def arrived(self, message: StoreValue) -> None:
        with self._changed:
            if message.request in self._values:
                self._values[message.request] = message.value
                self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait(self, request: int, timeout_s: float, is_closed: Callable[[], bool]) -> bytes:
        with self._changed:
            self._changed.wait_for(
                lambda: self._values[request] is not None or is_closed(), timeout_s
            )
            value = self._values.pop(request)
        if value is None:
            # RuntimeError is what the C++ side expects of a store.
            why = "the generation was given up" if is_closed() else f"no answer in {timeout_s:g} s"
            raise RuntimeError(f"rendezvous store: {why}")
        return value


class ChannelStore(Store):
    """A store over the agent's channel: what gloo's and NCCL's rendezvous need of one."""

    def __init__(
        self,
        job_id: str,
        generation: int,
        send: Callable[[StoreSet | StoreGet | StoreAdd], None],
        answers: Answers,
        timeout_s: float,
    ) -> None:
        super().__init__()
        self._job_id = job_id
        self._generation = generation
        self._send = send
        self._answers = answers
        self._timeout_s = timeout_s
        self._is_closed = False

    def close(self) -> None:
        """Make pending requests fail: the generation was superseded."""
        self._is_closed = True
        self._answers.wake()

    def has_extended_api(self) -> bool:
        return False

    def set(self, key: str, value: str | bytes) -> None:
        data = value if isinstance(value, bytes) else value.encode()
        self._send(StoreSet(job_id=self._job_id, generation=self._generation, key=key, value=data))

    def get(self, key: str) -> bytes:
        return self._get(key, self._timeout_s)

    def _get(self, key: str, timeout_s: float) -> bytes:
        request = self._answers.new_request()
        self._send(
            StoreGet(job_id=self._job_id, generation=self._generation, key=key, request=request)
        )
        return self._answers.wait(request, timeout_s, lambda: self._is_closed)

    def add(self, key: str, amount: int) -> int:
        request = self._answers.new_request()
        self._send(
            StoreAdd(
                job_id=self._job_id,
                generation=self._generation,
                key=key,
                amount=amount,
                request=request,
            )
        )
        return int(self._answers.wait(request, self._timeout_s, lambda: self._is_closed))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        timeout_s = self._timeout_s if timeout is None else timeout.total_seconds()
        for key in keys:
            self._get(key, timeout_s)
