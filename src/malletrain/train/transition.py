"""Go from one generation's group to the next, or leave the job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Protocol

from malletrain.train.audit import Recorder
from malletrain.train.checkpoint import BackgroundSaver, Checkpoints, Mark
from malletrain.train.ending import end_process
from malletrain.train.group import CannotAbortError, Group, GroupLostError
from malletrain.train.link import AgentLink
from malletrain.train.membership import Membership, NextGroup
from malletrain.train.revival import revive
from malletrain.train.state import TrainingState
from malletrain.wire import Switched


class Leave(Protocol):
    def __call__(self) -> None: ...


class Transition:
    """Carry the training state across a change of group."""

    def __init__(
        self,
        link: AgentLink,
        membership: Membership,
        state: TrainingState,
        checkpoints: Checkpoints,
        saver: BackgroundSaver,
        *,
        names: tuple[str, str],
        note: Callable[[str], None],
        on_leave: Leave | None,
        recorder: Recorder | None,
    ) -> None:
        self._link = link
        self._membership = membership
        self._state = state
        self._checkpoints = checkpoints
        self._saver = saver
        self._worker_id, self._job_id = names
        self._note = note
        self._on_leave = on_leave
        self._recorder = recorder
        #: The start of the time without progress.
        self.progress_at_s = time.perf_counter()

    def lose(self) -> None:
        """Give the present group up; where it does not go, in a new process image."""
        try:
            self._membership.lose()
        except CannotAbortError as error:
            self._note(f"starting over in a new process image: {error}")
            self._link.is_waiting = True
            # What is announced while the script starts anew is lost, so this one must not be.
            revive(self._state, self._membership.await_another_life())

    def await_next(self, epoch_samples: int) -> None:
        """Wait for the next generation, and train in it from here on."""
        self._link.is_waiting = True
        self._go(self._membership.await_next(), epoch_samples)

    def has_next_within(self, limit_s: float) -> bool:
        """Wait so long for a generation to go to."""
        self._link.is_waiting = True
        return self._membership.has_next_within(limit_s)

    def enter(self, generation: int, epoch_samples: int) -> None:
        """Go to the generation that all present members agreed on."""
        target = self._membership.enter(generation)
        self._link.is_waiting = True
        self._go(target or self._membership.await_next(), epoch_samples)

    def _go(self, target: NextGroup, epoch_samples: int) -> None:
        had_state = self._state.generation >= 0
        while True:
            if target.group is None:
                self._leave(target)
                return
            # Outside of an except clause, whose traceback would keep the lost group's connections.
            with contextlib.suppress(GroupLostError):
                self._join(target, target.group)
                break
            self.lose()
            target = self._membership.await_next()
        self._state.generation = target.generation
        self._link.is_waiting = False
        self._tell(target, epoch_samples, had_state=had_state)

    def _join(self, target: NextGroup, group: Group) -> None:
        """Agree on the newest state and give it to all."""
        own = [self._state.generation, self._state.position.step]
        marks = group.all_gather(own)
        self._membership.close_left()
        newest = max(marks)
        source = marks.index(newest)
        if newest[0] < 0 and group.rank == source:
            self._load_durable(target)
        is_shared = all(mark[0] >= 0 and mark[1] == newest[1] for mark in marks)
        if not is_shared and group.workers > 1:
            self._state.share(group, source)

    def _load_durable(self, target: NextGroup) -> None:
        if target.is_handover and not self._membership.await_handover():
            self._note("the workers that left did not save the job's state")
        snapshot = self._checkpoints.load(self._note)
        if snapshot is not None:
            self._state.restore(snapshot)

    def _tell(self, target: NextGroup, epoch_samples: int, *, had_state: bool) -> None:
        now_s = time.perf_counter()
        position = self._state.position
        self._link.step = position.step
        if self._recorder:
            workers = len(target.members)
            self._recorder.start(target.generation, position.step, workers, epoch_samples)
        self._link.send(
            Switched(
                worker_id=self._worker_id,
                job_id=self._job_id,
                generation=target.generation,
                step=position.step,
                samples=position.samples,
                stall_s=now_s - self.progress_at_s if had_state else 0.0,
            )
        )
        self.progress_at_s = now_s

    def _leave(self, target: NextGroup) -> None:
        """End this process: the job goes on without it, or is suspended."""
        if target.is_saver and self._state.generation >= 0:
            self._saver.finish()
            position = self._state.position
            # Of the generation it was trained in: the suspended one trains nothing.
            mark = Mark(self._state.generation, position.step)
            self._saver.save(self._state.snapshot(), mark, position.samples)
        if target.is_saver and target.is_handover:
            # Even where saving failed: then there is nothing newer to wait for.
            self._membership.hand_over(target.generation)
        if self._on_leave:
            self._on_leave()
        self._membership.end()
        end_process(0)
