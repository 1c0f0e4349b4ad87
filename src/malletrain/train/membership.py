"""Which group this worker trains in, and which it goes to next.

Messages from the controller arrive on the link's thread and only note what is wanted; groups are
built in a thread of their own; the training thread alone goes from one group to the next, at a
step boundary. Everything here holds for the newest generation: what concerns an older one is
forgotten or ignored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from malletrain.train.group import Group, Rendezvous
from malletrain.train.store import Answers, ChannelStore
from malletrain.wire import (
    AbortGroup,
    GroupFailed,
    GroupReady,
    Message,
    PrepareGroup,
    StoreValue,
    Switch,
    WorkerSettings,
)

#: Within this time of one another all whose group is stuck have told so. A new process image takes
#: several times as long.
_SAME_PLIGHT_S = 1.0
#: Rendezvous key that says the leaving members have saved the state.
_HANDOVER_KEY = "handover"


@dataclass(slots=True)
class NextGroup:
    """A generation that was announced."""

    #: What announced it.
    announced: PrepareGroup
    is_member: bool
    #: To switch is allowed: all targets are connected, or there is nobody to agree with.
    may_switch: bool
    #: No present member is among its members: the state goes over through a checkpoint.
    is_handover: bool
    #: This worker saves the state for those to come.
    is_saver: bool
    group: Group | None = None
    store: ChannelStore | None = field(default=None, repr=False)

    @property
    def generation(self) -> int:
        return self.announced.generation

    @property
    def members(self) -> tuple[str, ...]:
        return self.announced.members

    @property
    def is_immediate(self) -> bool:
        """Its whole reason is that the present group is dead, or there is none."""
        return self.announced.is_immediate

    @property
    def is_ready(self) -> bool:
        return self.may_switch and (self.group is not None or not self.is_member)


class Membership:
    """This worker's place in its job's generations."""

    def __init__(
        self,
        worker_id: str,
        job_id: str,
        settings: WorkerSettings,
        device: torch.device,
        send: Callable[[Any], None],
    ) -> None:
        self._worker_id = worker_id
        self._job_id = job_id
        self._settings = settings
        self._device = device
        self._send: Callable[[Message], None] = send
        self._answers = Answers()
        self._changed = threading.Condition()
        self._generation = 0
        self._group: Group | None = None
        self._store: ChannelStore | None = None
        #: Of the present generation.
        self._members: tuple[str, ...] = ()
        #: The group before the present one, until all have come over.
        self._left: Group | None = None
        self._next: NextGroup | None = None
        self._is_over = False
        #: Groups are to be built by the next process image.
        self._is_image_over = False

    # -- the link's thread ------------------------------------------------------------------------

    def receive(self, message: Any) -> None:
        if isinstance(message, StoreValue):
            self._answers.arrived(message)
        elif isinstance(message, PrepareGroup):
            self._prepare(message)
        elif isinstance(message, Switch):
            self._allow(message)
        elif isinstance(message, AbortGroup):
            self._abort(message)

    def _prepare(self, message: PrepareGroup) -> None:
        with self._changed:
            newest = self._next.generation if self._next else self._generation
            if message.generation <= newest or self._is_over:
                return
            self._forget_next()
            rank = _rank(self._worker_id, message.members)
            is_handover = not message.is_immediate and not self._stays_one(message.members)
            self._next = NextGroup(
                announced=message,
                is_member=rank is not None,
                may_switch=message.is_immediate,
                is_handover=is_handover and bool(message.members),
                # Present members come first in `to`.
                is_saver=(is_handover or not message.members)
                and message.to[:1] == (self._worker_id,),
            )
            if message.is_immediate:
                self._revoke()
            if rank is not None and not self._is_image_over:
                threading.Thread(
                    target=self._build,
                    args=(self._next, rank),
                    name=f"malletrain-group-{message.generation}",
                    daemon=True,
                ).start()
            self._changed.notify_all()

    def _stays_one(self, members: tuple[str, ...]) -> bool:
        """Whether a present member is among the next; as far as a joiner knows there is none."""
        return not set(self._members).isdisjoint(members)

    def _revoke(self) -> None:
        # Whatever the training thread waits for in the present generation will not come.
        if self._group is not None:
            self._group.cut()
        if self._store is not None:
            self._store.close()

    def _allow(self, message: Switch) -> None:
        with self._changed:
            if self._next and self._next.generation == message.generation:
                self._next.may_switch = True
                self._changed.notify_all()

    def _abort(self, message: AbortGroup) -> None:
        with self._changed:
            if self._next and self._next.generation == message.generation:
                self._forget_next()

    def _forget_next(self) -> None:
        forgotten, self._next = self._next, None
        if forgotten and forgotten.store:
            forgotten.store.close()
        if forgotten and forgotten.group:
            forgotten.group.release()

    # -- the thread that builds -------------------------------------------------------------------

    def _build(self, target: NextGroup, rank: int) -> None:
        target.store = self._open_store(target.generation)
        rendezvous = Rendezvous(
            store=target.store,
            rank=rank,
            workers=len(target.members),
            device=self._device,
            timeout_s=self._settings.collective_timeout_s,
            interface=self._settings.interface,
        )
        try:
            group = Group.build(rendezvous)
        except RuntimeError as error:
            with self._changed:
                is_wanted = self._next is target
            if is_wanted:
                self._tell_failure(target.generation, str(error).splitlines()[0])
            return
        with self._changed:
            if self._next is not target:
                group.release()
                return
            target.group = group
            self._changed.notify_all()
        self._send(
            GroupReady(worker_id=self._worker_id, job_id=self._job_id, generation=target.generation)
        )

    def _open_store(self, generation: int) -> ChannelStore:
        timeout_s = self._settings.collective_timeout_s
        return ChannelStore(self._job_id, generation, self._send, self._answers, timeout_s)

    def _tell_failure(self, generation: int, reason: str) -> None:
        self._send(
            GroupFailed(
                worker_id=self._worker_id,
                job_id=self._job_id,
                generation=generation,
                reason=reason,
            )
        )

    # -- the training thread ----------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def group(self) -> Group | None:
        """The present group; None where it is lost or there was none yet."""
        return self._group

    def ballot(self) -> int:
        """Return the generation this worker is ready to go to with its group, 0 for none."""
        with self._changed:
            return self._next.generation if self._next and self._next.is_ready else 0

    @property
    def is_revoked(self) -> bool:
        """The controller has given the present group up."""
        with self._changed:
            return self._next is not None and self._next.is_immediate

    def await_another_life(self) -> PrepareGroup:
        """Build nothing more in this process image; wait for what the next image is to build.

        Addresses that this image has published are of no use to the next, so a group in the
        making is given up, and the controller announces another.
        """
        with self._changed:
            self._is_image_over = True
            begun = self._next
            if begun is not None and begun.is_member:
                self._forget_next()
        if begun is not None and begun.is_member:
            self._tell_failure(begun.generation, "starting over in a new process image")
        with self._changed:
            # Another survivor may fail this generation as this one failed the last, and what is
            # announced then must not come while the script starts anew.
            newest = self._generation
            while self._changed.wait_for(
                partial(self._is_revoked_by_newer, newest),
                None if newest == self._generation else _SAME_PLIGHT_S,
            ):
                assert self._next is not None
                announced = self._next.announced
                newest = announced.generation
            return announced

    def _is_revoked_by_newer(self, generation: int) -> bool:
        return self.is_revoked and self._next is not None and self._next.generation > generation

    def lose(self) -> None:
        """Give the present group up, so that the others notice, too.

        Raises:
            CannotAbortError: it does not go.
        """
        self.discard_left()
        with self._changed:
            group, self._group = self._group, None
        if group is not None:
            group.release()

    def close_left(self) -> None:
        """Close the group before the present one to its members: everyone has come over."""
        if self._left is not None:
            self._left.close()

    @property
    def has_left(self) -> bool:
        """There is a group to discard."""
        return self._left is not None

    def discard_left(self) -> None:
        """Free the group before the present one, which takes some 10 ms: gloo's threads end."""
        with self._changed:
            left, self._left = self._left, None
        if left is not None:
            left.release()

    def await_next(self) -> NextGroup:
        """Wait until there is a generation to go to, and make it the present one."""
        self.discard_left()
        with self._changed:
            self._changed.wait_for(self._is_next_ready)
            return self._enter()

    def has_next_within(self, limit_s: float) -> bool:
        """Wait so long for a generation to go to."""
        with self._changed:
            return self._changed.wait_for(self._is_next_ready, limit_s)

    def _is_next_ready(self) -> bool:
        return self._next is not None and self._next.is_ready

    def enter(self, generation: int) -> NextGroup | None:
        """Make the agreed generation the present one; None if it was forgotten meanwhile."""
        self.discard_left()
        with self._changed:
            if self._next is None or self._next.generation != generation:
                return None
            return self._enter()

    def _enter(self) -> NextGroup:
        target, self._next = self._next, None
        assert target is not None
        if target.is_member:
            # A member may still read the last sums of the old group: it is closed later.
            self._left, self._group = self._group, target.group
            self._store, self._members = target.store, target.members
            self._generation = target.generation
        return target

    def hand_over(self, generation: int) -> None:
        """Tell the members of a generation, who wait for it, that the state is saved."""
        self._open_store(generation).set(_HANDOVER_KEY, b"saved")

    def await_handover(self) -> bool:
        """Wait until those who leave have saved the state; False if nobody did."""
        assert self._store is not None
        try:
            self._store.wait([_HANDOVER_KEY])
        except RuntimeError:
            return False
        return True

    def end(self) -> None:
        """Take no part in generations any more; peers still get all that was sent to them."""
        self.discard_left()
        with self._changed:
            self._is_over = True
            self._forget_next()
            group, self._group = self._group, None
        if group is not None:
            group.leave()


def _rank(worker_id: str, members: tuple[str, ...]) -> int | None:
    return members.index(worker_id) if worker_id in members else None
