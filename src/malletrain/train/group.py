"""The process group of one generation, which can be built in the background and cut at will.

`torch.distributed`'s global group is left alone: it cannot be exchanged while the old one is in
use, and a broken one cannot be left in milliseconds. Gloo's own `abort` and `shutdown` do
nothing to a blocked collective; only closing its connections frees it, here and on every peer.
So a group knows its sockets and can shut them from any thread (`cut`).

Closing does not free every collective, either. A closed connection (gloo's `tcp::Pair`) tells the
operations that still wait for their turn, but neither the one whose data it has begun to read nor
those it has begun to write or could not write, as after a cut on this side: whoever waits for one
of these waits until gloo's timeout. So nobody here waits in gloo for long (`wait`), and a group is
given up without gloo's consent where that does not come soon (`release`).

On a GPU the gradients travel over NCCL and every decision over a gloo group beside it. The NCCL
half is tested where there are GPUs (`pytest -m gpu`).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

# The type stubs do not know that torch.distributed has these, too.
from torch._C._distributed_c10d import PrefixStore, Store, Work

from malletrain.errors import MalleTrainError
from malletrain.train.feed import tcp_sockets

_ENVIRONMENT_INTERFACE = "GLOO_SOCKET_IFNAME"
#: How long a leaver waits for the others to have read all it said.
_LEAVE_TIMEOUT_S = 1.0
#: How long the collectives of a cut group have to fail, which takes them some 10 ms.
_LET_GO_S = 1.0
#: How soon one who waits for gloo sees that the group was cut.
_GLOO_POLL = timedelta(seconds=0.1)
_NCCL_POLL_S = 0.0005
_DRAIN_BYTES = 1 << 20
#: Sockets (descriptor, inode) that belong to a group already: two may be in the making at once.
_claimed: set[tuple[int, int]] = set()
_claiming = threading.Lock()


class GroupLostError(MalleTrainError):
    """A member is gone or the group was cut: the step in flight is void."""


class CannotAbortError(MalleTrainError):
    """NCCL would not let go of a dead group: only a new process image frees the worker."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """What it takes to build a generation's group."""

    store: Store
    rank: int
    workers: int
    device: torch.device
    timeout_s: float
    interface: str = ""


class Group:
    """The members of one generation, connected."""

    def __init__(self, rank: int = 0, workers: int = 1) -> None:
        self.rank = rank
        self.workers = workers
        self._gloo: Any = None
        self._nccl: Any = None
        #: Kept alive: the C++ group calls back into the Python object.
        self._store: Store | None = None
        #: Descriptor and inode: the number alone may belong to another file by now.
        self._sockets: set[tuple[int, int]] = set()
        self._is_cut = False
        self._timeout_s = 0.0
        #: Released, and yet gloo may still write into what it was to sum.
        self.is_stuck = False

    @classmethod
    def build(cls, rendezvous: Rendezvous) -> Group:
        """Connect to the other members; blocks until all have, or raises."""
        group = cls(rendezvous.rank, rendezvous.workers)
        if rendezvous.workers > 1:
            group._connect(rendezvous)
        return group

    def _connect(self, rendezvous: Rendezvous) -> None:
        self._store = rendezvous.store
        self._timeout_s = rendezvous.timeout_s
        before = tcp_sockets()
        self._gloo = _build_gloo(rendezvous)
        with _claiming:
            # Connections that appeared in the meantime are the group's own.
            self._sockets = tcp_sockets() - before - _claimed
            _claimed.update(self._sockets)
        if rendezvous.device.type == "cuda":
            self._nccl = _build_nccl(rendezvous)

    # -- collectives --------------------------------------------------------------------------
    # They return what `wait` takes. It must not be kept after that: it would hold the group's
    # connections open after the group itself was dropped.

    def all_reduce(self, tensor: Tensor) -> Any:
        return self._begin(tensor, lambda group: group.allreduce([tensor]))

    def broadcast(self, tensor: Tensor, source: int) -> Any:
        return self._begin(tensor, lambda group: group.broadcast(tensor, source))

    def _begin(self, tensor: Tensor, collective: Callable[[Any], Any]) -> Any:
        if self._is_cut:
            raise GroupLostError("the process group was cut")
        try:
            if tensor.is_cuda:
                return partial(self._wait_for_nccl, collective(self._nccl))
            return partial(self._wait_for_gloo, collective(self._gloo))
        except RuntimeError as error:
            raise _lost(error) from None

    def wait(self, pending: Iterable[Any]) -> None:
        """Wait for collectives.

        Raises:
            GroupLostError: one of them failed.
        """
        try:
            for wait in pending:
                wait()
        except RuntimeError as error:
            raise _lost(error) from None

    def _wait_for_gloo(self, work: Work) -> None:
        while not work.is_completed():
            if self._is_cut:
                # Not even its failure is to be waited for.
                raise GroupLostError("the process group was cut")
            with contextlib.suppress(RuntimeError):
                work.wait(_GLOO_POLL)
        work.wait()

    def _wait_for_nccl(self, work: Work) -> None:
        # wait() would only order streams: a dead peer has to be noticed before the step counts.
        deadline_at_s = time.monotonic() + self._timeout_s
        while not work.is_completed():
            if self._is_cut or time.monotonic() > deadline_at_s:
                raise GroupLostError("a collective on the GPU did not complete")
            time.sleep(_NCCL_POLL_S)
        work.wait()

    def all_gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return every member's numbers, by rank."""
        own = torch.tensor(numbers, dtype=torch.int64)
        if self.workers == 1:
            return [own.tolist()]
        all_numbers = [torch.empty_like(own) for _ in range(self.workers)]
        self.wait([self._begin(own, lambda group: group.allgather([all_numbers], [own]))])
        return [tensor.tolist() for tensor in all_numbers]

    # -- the end ------------------------------------------------------------------------------

    def cut(self) -> None:
        """Make every collective fail now, here and on all peers; safe from any thread."""
        self._is_cut = True
        self._shut(socket.SHUT_RDWR)

    def release(self) -> None:
        """Give the group up for good.

        Whatever was to be received is left alone from here on, and what was to be summed, too,
        unless the group `is_stuck`.
        """
        self.cut()
        for connection in self._connections():
            _drain(connection)
        if self._gloo is not None:
            self._drop_gloo()
        with _claiming:
            _claimed.difference_update(self._sockets)
        self._sockets = set()
        nccl, self._nccl = self._nccl, None
        if nccl is not None:
            _abort_nccl(nccl)

    def close(self) -> None:
        """Say no more; peers still get all that was sent to them."""
        self._shut(socket.SHUT_WR)

    def leave(self) -> None:
        """Give the group up once its peers have read all that was sent to them."""
        self.close()
        poll = select.poll()
        waiting = {descriptor for descriptor, _ in self._sockets}
        for descriptor in waiting:
            poll.register(descriptor, select.POLLRDHUP)
        deadline_at_s = time.monotonic() + _LEAVE_TIMEOUT_S
        while waiting and (left_s := deadline_at_s - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left_s * 1000):
                poll.unregister(descriptor)
                waiting.discard(descriptor)
        self.release()

    def _drop_gloo(self) -> None:
        """Destroy gloo's group, which waits for its collectives to fail; in vain if it is stuck."""
        last_reference = [self._gloo]
        self._gloo = None
        # Where it is stuck the thread ends with gloo's own timeout, and frees everything then.
        destruction = threading.Thread(target=last_reference.clear, daemon=True)
        destruction.start()
        destruction.join(_LET_GO_S)
        self.is_stuck = destruction.is_alive()

    def _shut(self, how: int) -> None:
        for connection in self._connections():
            with contextlib.suppress(OSError):
                connection.shutdown(how)

    def _connections(self) -> Iterator[socket.socket]:
        """Yield a copy of each connection that is still open."""
        for descriptor, inode in tuple(self._sockets):
            with contextlib.suppress(OSError):
                copy = os.dup(descriptor)
                with socket.socket(fileno=copy) as connection:
                    if os.fstat(copy).st_ino == inode:
                        yield connection


def _drain(connection: socket.socket) -> None:
    """Read what came before the cut: now nothing more can reach the memory gloo would read into."""
    with contextlib.suppress(OSError):
        while connection.recv(_DRAIN_BYTES, socket.MSG_DONTWAIT):
            pass


def _lost(error: RuntimeError) -> GroupLostError:
    # Only the text: the original's traceback would keep the group and its sockets alive.
    return GroupLostError(str(error).splitlines()[0])


def _build_gloo(rendezvous: Rendezvous) -> Any:
    gloo = cast(Any, dist).ProcessGroupGloo
    interface = rendezvous.interface or os.environ.get(_ENVIRONMENT_INTERFACE, "")
    device = gloo.create_device(interface=interface) if interface else gloo.create_default_device()
    options = gloo._Options()  # noqa: SLF001 - only it takes a device and a timeout
    options._devices = [device]  # noqa: SLF001 - as torch's own test suite does
    _set_timeout(options, rendezvous)
    store = PrefixStore("gloo", rendezvous.store)
    return gloo(store, rendezvous.rank, rendezvous.workers, options)


def _build_nccl(rendezvous: Rendezvous) -> Any:
    """Connect eagerly: a lazy first collective could deadlock with the present group's."""
    nccl = cast(Any, dist).ProcessGroupNCCL
    options = nccl.Options()
    _set_timeout(options, rendezvous)
    store = PrefixStore("nccl", rendezvous.store)
    group = nccl(store, rendezvous.rank, rendezvous.workers, options)
    group.eager_connect_single_device(rendezvous.device)
    return group


def _set_timeout(options: Any, rendezvous: Rendezvous) -> None:
    options._timeout = timedelta(seconds=rendezvous.timeout_s)  # noqa: SLF001 - it has no public name


def _abort_nccl(group: Any) -> None:
    try:
        group.abort()
    except RuntimeError as error:
        raise CannotAbortError(str(error)) from None
