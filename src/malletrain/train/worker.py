"""What a session has beyond its training loop where its process works for an agent."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from malletrain.errors import TrainError
from malletrain.train.audit import Recorder
from malletrain.train.checkpoint import BackgroundSaver, Checkpoints, Mark
from malletrain.train.data import Plan
from malletrain.train.ending import end_process
from malletrain.train.group import Group, GroupLostError
from malletrain.train.link import AgentLink, Environment
from malletrain.train.membership import Membership
from malletrain.train.progress import Meter
from malletrain.train.revival import recall
from malletrain.train.state import TrainingState
from malletrain.train.transition import Transition
from malletrain.wire import STACK_SIGNAL, Noted, Progress, Saved, WorkDone, WorkerWarm

_logger = logging.getLogger("malletrain.train")

#: A worker that was asked to end by SIGTERM waits this long for its job to shrink without it.
_TERM_GRACE_S = 2.0
_TERM_STATUS = 128 + signal.SIGTERM
#: A member that has the last step waits this long for those that may not have it.
_END_LIMIT_S = 30.0


class Worker:
    """One member of a job: its connections, what it tells, and what it saves."""

    #: A process is one member of one job.
    _is_made = False

    def __init__(
        self,
        environment: Environment,
        state: TrainingState,
        on_leave: Callable[[], None] | None,
    ) -> None:
        if Worker._is_made:
            raise TrainError("attach() ran before: attach all that is trained together, once")
        Worker._is_made = True
        self._worker_id, self._job_id = environment.worker_id, environment.job_id
        self._state = state
        self._former_life = recall(os.environ)
        faulthandler.register(STACK_SIGNAL, all_threads=True)
        self._term_at_s: float | None = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note_term)
        self._link = AgentLink(environment, self._receive)
        self.settings = self._link.settings
        self.membership = Membership(
            self._worker_id, self._job_id, self.settings, state.device, self._link.send
        )
        directory = Path(self.settings.checkpoint_dir)
        checkpoints = Checkpoints(directory, self.settings.checkpoints_kept)
        self._saver = BackgroundSaver(checkpoints, self._tell_saved, self._note)
        self._recorder = (
            Recorder(environment.audit_dir, self._job_id, self._worker_id)
            if environment.audit_dir
            else None
        )
        self._transition = Transition(
            self._link,
            self.membership,
            state,
            checkpoints,
            self._saver,
            names=(self._worker_id, self._job_id),
            note=self._note,
            on_leave=on_leave,
            recorder=self._recorder,
        )
        #: Once training is over: this worker keeps the rank that it had.
        self._last_group: Group | None = None
        self._meter = Meter(self.settings.warmup_steps)
        self._reported_at_s = self._saved_at_s = time.monotonic()
        self._step_ended_at_s = time.perf_counter()
        self._link.start()

    @property
    def group(self) -> Group | None:
        """Where this worker has its rank; None where it has none now."""
        return self.membership.group or self._last_group

    def _receive(self, message: Any) -> None:
        self.membership.receive(message)

    # -- from group to group ----------------------------------------------------------------------

    def take_up_former_life(self) -> bool:
        """Go back to where this process was before it executed its script anew, if it did."""
        former = self._former_life
        if former is None:
            return False
        self._state.restore(former.snapshot)
        self._state.generation = former.generation
        self.membership.receive(former.announced)
        return True

    def join(self, epoch_samples: int) -> None:
        """Wait for the next group and train in it from here on."""
        self._transition.await_next(epoch_samples)
        self._switched()

    def rejoin(self, epoch_samples: int) -> None:
        """Give the present group up and wait for the next."""
        self._transition.lose()
        self.join(epoch_samples)

    def end_with_all(self, epoch_samples: int) -> bool:
        """Wait until all members have the last step; False where it goes on in another group.

        Where a member died in that step, some may not have it: then those that have give it to
        them in the next group. There is none if others found all complete and have ended, for
        which the loss of this group came too late.
        """
        group = self.membership.group
        if group is None:
            return True
        self.set_waiting(is_waiting=True)
        try:
            group.all_gather([self._state.position.step])
        except GroupLostError as error:
            _logger.warning("a member was lost in the last step: %s", error)
        else:
            return True
        self._transition.lose()
        if not self._transition.has_next_within(_END_LIMIT_S):
            self._last_group = group
            return True
        self.join(epoch_samples)
        return False

    def move(self, agreed: int, epoch_samples: int) -> None:
        """Go to another group between two steps, where that is due.

        Args:
            agreed: the generation that all members are ready to go to, 0 for none.
            epoch_samples: of the data set, for the record.
        """
        self._transition.progress_at_s = self._step_ended_at_s
        self._end_if_asked()
        if self.membership.is_revoked:
            self.rejoin(epoch_samples)
        elif agreed:
            self._transition.enter(agreed, epoch_samples)
            self._switched()

    def _switched(self) -> None:
        self._meter.switched()
        self.step_ended()

    def _note_term(self, *_: object) -> None:
        self._term_at_s = time.monotonic()

    def _end_if_asked(self) -> None:
        """End where SIGTERM came and no rescale took this worker out in time."""
        if self._term_at_s is None or time.monotonic() < self._term_at_s + _TERM_GRACE_S:
            return
        self.membership.end()
        end_process(_TERM_STATUS)

    # -- at every step ----------------------------------------------------------------------------

    def record(self, plan: Plan, group: Group) -> None:
        """Write down which samples this worker takes, where that is audited."""
        if self._recorder:
            self._recorder.take(
                self.membership.generation,
                plan.position.step,
                epoch=plan.position.epoch,
                rank=group.rank,
                workers=group.workers,
                indices=plan.indices,
            )

    def set_waiting(self, is_waiting: bool) -> None:
        """Say whether this worker waits for others: then it does not hang."""
        self._link.is_waiting = is_waiting
        if is_waiting and self.membership.has_left:
            # Now this thread does not need the interpreter, which freeing a group blocks.
            threading.Thread(target=self.membership.discard_left).start()

    def committed(self, batch_samples: int, loss: float | None, group: Group) -> None:
        """Count a step; the first worker reports and saves where that is due."""
        self._link.step = self._state.position.step
        if group.rank == 0:
            took_s = time.perf_counter() - self._step_ended_at_s
            self._meter.add(batch_samples, took_s, loss)
            if time.monotonic() >= self._reported_at_s + self.settings.report_every_s:
                self._tell_progress(group)
            self._save_if_due()

    def step_ended(self) -> None:
        """Begin to measure the next step."""
        self._step_ended_at_s = time.perf_counter()

    def _save_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s < self._saved_at_s + self.settings.checkpoint_every_s or self._saver.is_busy:
            return
        self._saved_at_s = now_s
        position = self._state.position
        mark = Mark(self.membership.generation, position.step)
        self._saver.begin(self._state.snapshot(), mark, position.samples)

    def finish(self, group: Group, *, is_complete: bool) -> None:
        """Take no part in the job's training any more.

        Of a loop that was left early (not `is_complete`) only the script's exit tells whether it
        went well.
        """
        has_group = self.membership.group is not None
        if group.rank == 0 and has_group:
            self._tell_progress(group)
        if is_complete and (group.rank == 0 or not has_group):
            # Without a group it may be the first that died.
            self._tell_done()
        self._last_group = group
        if self._recorder:
            self._recorder.end(self.membership.generation, self._state.position.step)
        # What the script does from here on takes as long as it takes.
        self._link.is_waiting = True
        self._saver.finish()
        self.membership.end()

    # -- what it tells ----------------------------------------------------------------------------

    def tell_warm(self) -> None:
        self._link.send(WorkerWarm(worker_id=self._worker_id, job_id=self._job_id))

    def _note(self, text: str) -> None:
        _logger.warning("%s", text)
        self._link.send(Noted(worker_id=self._worker_id, job_id=self._job_id, note=text))

    def _tell_saved(self, mark: Mark, samples: int, path: Path) -> None:
        self._link.send(
            Saved(
                worker_id=self._worker_id,
                job_id=self._job_id,
                generation=mark.generation,
                step=mark.step,
                samples=samples,
                path=str(path),
            )
        )

    def _tell_progress(self, group: Group) -> None:
        self._reported_at_s = time.monotonic()
        window = self._meter.take()
        position = self._state.position
        self._link.send(
            Progress(
                worker_id=self._worker_id,
                job_id=self._job_id,
                generation=self.membership.generation,
                workers=group.workers,
                step=position.step,
                epoch=position.epoch,
                samples=position.samples,
                steps=window.steps,
                samples_per_s=window.samples_per_s,
                variance=window.variance,
                loss=window.loss,
            )
        )

    def _tell_done(self) -> None:
        position = self._state.position
        self._link.send(
            WorkDone(
                worker_id=self._worker_id,
                job_id=self._job_id,
                generation=self.membership.generation,
                step=position.step,
                samples=position.samples,
            )
        )
