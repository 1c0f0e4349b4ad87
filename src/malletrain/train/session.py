"""What a training script sees: `attach`, and the `Session` whose batches it trains on."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from malletrain.errors import TrainError
from malletrain.train.audit import Recorder
from malletrain.train.checkpoint import BackgroundSaver, Checkpoints, Mark
from malletrain.train.data import Course, Plan, Position, mix, seed_all
from malletrain.train.ending import end_process
from malletrain.train.feed import AheadFeed, Feed, Fetcher
from malletrain.train.gradients import Reducer, Verdict
from malletrain.train.group import Group
from malletrain.train.link import AgentLink, Environment
from malletrain.train.membership import Membership
from malletrain.train.progress import Meter
from malletrain.train.revival import FormerLife, recall
from malletrain.train.state import Stateful, TrainingState
from malletrain.train.stepping import (
    LrScaling,
    Schedule,
    ScheduleEvery,
    SteppedOptimizer,
)
from malletrain.train.transition import Transition
from malletrain.train.undo import BufferKeeper
from malletrain.wire import STACK_SIGNAL, Noted, Progress, Saved, WorkDone, WorkerWarm

_logger = logging.getLogger("malletrain.train")

BatchScaling = Literal["fixed", "scaled"]
LossReduction = Literal["mean", "sum"]

#: A worker that was asked to end by SIGTERM waits this long for its job to shrink without it.
_TERM_GRACE_S = 2.0
_TERM_STATUS = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class _Options:
    global_batch: int
    batch_scaling: BatchScaling
    loss_reduction: LossReduction
    micro_batch: int | None
    seed: int

    def batch_of(self, workers: int) -> int:
        return self.global_batch * (workers if self.batch_scaling == "scaled" else 1)


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    global_batch: int,
    scheduler: Any = None,
    schedule_every: ScheduleEvery = "step",
    state: Mapping[str, Stateful] | None = None,
    seed: int = 0,
    micro_batch: int | None = None,
    loss_reduction: LossReduction = "mean",
    batch_scaling: BatchScaling = "fixed",
    lr_scaling: LrScaling = "none",
    on_leave: Callable[[], None] | None = None,
) -> Session:
    """Make this script's training malleable.

    Call it once, when model, optimizer and scheduler exist and the model is on its device. Under
    an agent the process becomes a worker of its job; started by hand it trains alone, with the
    same arithmetic.

    Args:
        model: the plain module; not wrapped by `DistributedDataParallel`.
        optimizer: any that needs no closure.
        global_batch: samples of a step on all workers together.
        scheduler: is stepped by the library; calls of its `step` within the loop do nothing.
        schedule_every: whole step or epoch.
        state: your own objects with `state_dict` and `load_state_dict`, to be kept with the
            training state under these names: an averaged model, a gradient scaler, counters.
        seed: of the order of samples; all random generators are seeded from it, the step and the
            rank at every step.
        micro_batch: at most so many samples a forward pass; larger shares are accumulated, and
            the loop's body runs once for each part. Gradient scalers do not work with it.
        loss_reduction: whether your loss is the mean over the batch it is given, or the sum. The
            gradients are those of the mean, or sum, over the global batch.
        batch_scaling: "scaled" makes `global_batch` the batch of one worker, and n workers take
            n times as much; the result of the training then depends on the nodes it had.
        lr_scaling: with "scaled", multiply the learning rate by the number of workers or its
            square root.
        on_leave: is called before this worker ends because its job goes on without it.

    Batch-norm statistics are averaged over the workers at every step. They and dropout masks
    depend on how the batch is divided; everything else of the arithmetic does not, up to
    rounding.

    Raises:
        TrainError: something here cannot be made malleable; the message says what to change.
    """
    if global_batch < 1:
        raise TrainError(f"global_batch is {global_batch}: at least 1 is needed")
    if micro_batch is not None and micro_batch < 1:
        raise TrainError(f"micro_batch is {micro_batch}: at least 1 is needed, or None")
    if lr_scaling != "none" and batch_scaling != "scaled":
        raise TrainError("lr_scaling needs batch_scaling='scaled': the global batch is fixed")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise TrainError("attach the plain model: it takes the place of DistributedDataParallel")
    if "scheduler" in (state or {}):
        raise TrainError("state has a 'scheduler': pass it as scheduler=, or name it otherwise")
    options = _Options(global_batch, batch_scaling, loss_reduction, micro_batch, seed)
    schedule = None if scheduler is None else Schedule(scheduler, schedule_every)
    training_state = TrainingState(model, optimizer, schedule, state or {})
    environment = Environment.read(os.environ)
    worker = _Worker(environment, training_state, on_leave) if environment else None
    return Session(
        options,
        model,
        training_state,
        worker,
        lambda is_whole: SteppedOptimizer(
            optimizer,
            schedule,
            is_whole=is_whole,
            lr_scaling=lr_scaling,
        ),
    )


class _Worker:
    """The parts that only a worker under an agent has."""

    def __init__(
        self,
        environment: Environment,
        state: TrainingState,
        on_leave: Callable[[], None] | None,
    ) -> None:
        self.worker_id, self.job_id = environment.worker_id, environment.job_id
        self.former_life = recall(os.environ)
        faulthandler.register(STACK_SIGNAL, all_threads=True)
        self._term_at_s: float | None = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note_term)
        self.link = AgentLink(environment, self._receive)
        self.settings = self.link.settings
        self.membership = Membership(
            self.worker_id, self.job_id, self.settings, state.device, self.link.send
        )
        directory = Path(self.settings.checkpoint_dir)
        checkpoints = Checkpoints(directory, self.settings.checkpoints_kept)
        self.saver = BackgroundSaver(checkpoints, self._tell_saved, self.note)
        self.recorder = (
            Recorder(environment.audit_dir, self.job_id, self.worker_id)
            if environment.audit_dir
            else None
        )
        self.transition = Transition(
            self.link,
            self.membership,
            state,
            checkpoints,
            self.saver,
            names=(self.worker_id, self.job_id),
            note=self.note,
            on_leave=on_leave,
            recorder=self.recorder,
        )
        self.link.start()

    def _receive(self, message: Any) -> None:
        self.membership.receive(message)

    def note(self, text: str) -> None:
        _logger.warning("%s", text)
        self.link.send(Noted(worker_id=self.worker_id, job_id=self.job_id, note=text))

    def _tell_saved(self, mark: Mark, samples: int, path: Path) -> None:
        self.link.send(
            Saved(
                worker_id=self.worker_id,
                job_id=self.job_id,
                generation=mark.generation,
                step=mark.step,
                samples=samples,
                path=str(path),
            )
        )

    def _note_term(self, *_: object) -> None:
        self._term_at_s = time.monotonic()

    def end_if_asked(self) -> None:
        """End where SIGTERM came and no rescale took this worker out in time."""
        if self._term_at_s is None or time.monotonic() < self._term_at_s + _TERM_GRACE_S:
            return
        self.membership.end()
        end_process(_TERM_STATUS)


class Session:
    """A script's part in its job. Made by `attach`."""

    def __init__(
        self,
        options: _Options,
        model: nn.Module,
        state: TrainingState,
        worker: _Worker | None,
        wrap: Callable[[Callable[[], bool]], SteppedOptimizer],
    ) -> None:
        self._options = options
        self._state = state
        self._worker = worker
        self._reducer = Reducer(model, self._set_waiting)
        self._optimizer = wrap(self._is_step_whole)
        self._buffers = BufferKeeper(model)
        self._alone = Group()
        self._meter = Meter(worker.settings.warmup_steps if worker else 0)
        self._course: Course | None = None
        self._on_epoch_end: Callable[[int], None] | None = None
        self._own_part_samples = 0
        #: Sum and weight of the reported losses that were not sent yet.
        self._reported: tuple[Any, float] = (0.0, 0.0)
        self._loss: float | None = None
        self._reported_at_s = self._saved_at_s = time.monotonic()
        self._step_ended_at_s = time.perf_counter()

    # -- for the script ---------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Of this worker in the present group; it may change at every step."""
        return self._group.rank

    @property
    def workers(self) -> int:
        """Size of the present group; it may change at every step."""
        return self._group.workers

    @property
    def is_first(self) -> bool:
        """Exactly one worker is: let it print, and write what the script itself keeps."""
        return self.rank == 0

    @property
    def step(self) -> int:
        """Whole steps so far."""
        return self._state.position.step

    @property
    def epoch(self) -> int:
        return self._state.position.epoch

    @property
    def samples(self) -> int:
        """Samples consumed by all workers so far."""
        return self._state.position.samples

    @property
    def loss(self) -> float | None:
        """The mean over all workers of the losses last reported and exchanged."""
        return self._loss

    def report(self, loss: Tensor | float) -> None:
        """Show this batch's loss to the system; costs no message of its own."""
        value = loss.detach() if isinstance(loss, Tensor) else loss
        weight = self._own_part_samples
        factor = weight if self._options.loss_reduction == "mean" else 1
        total, total_weight = self._reported
        self._reported = (total + value * factor, total_weight + weight)

    def batches(
        self,
        dataset: Dataset[Any],
        *,
        epochs: int | None = None,
        shuffle: bool = True,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        on_epoch_end: Callable[[int], None] | None = None,
    ) -> Iterator[Any]:
        """Hand out this worker's part of every batch; asking for the next ends the step.

        The loop's body is an ordinary step: forward, backward, `optimizer.step()`. It runs once
        for each micro-batch, and again where a step was lost with a worker. A resumed job goes on
        where it was, so `epochs` counts from the job's beginning.

        Args:
            dataset: of known size, read by index.
            epochs: None to train until the job's work is done, or the loop is left.
            shuffle: in a new order every epoch.
            collate_fn: makes a batch of a list of samples; default: as `DataLoader`.
            num_workers: processes that fetch batches ahead; 0 fetches in this one.
            on_epoch_end: called with the epoch's number on every worker that took part in its
                last step; all hold the same parameters.
        """
        if self._course is not None:
            raise TrainError("batches() ran before: a job has one training loop")
        fetcher = Fetcher(dataset, collate_fn, self._options.seed)
        work_samples = self._worker.settings.work_samples if self._worker else None
        self._course = Course(
            epoch_samples=fetcher.samples,
            seed=self._options.seed,
            batch_of=self._options.batch_of,
            is_shuffled=shuffle,
            micro_batch=self._options.micro_batch,
            epochs=epochs,
            work_samples=work_samples,
        )
        self._on_epoch_end = on_epoch_end
        feed = AheadFeed(fetcher, self._course, num_workers) if num_workers else Feed(fetcher)
        return self._train(self._course, fetcher, feed)

    # -- the loop ---------------------------------------------------------------------------------

    @property
    def _group(self) -> Group:
        group = self._worker.membership.group if self._worker else None
        return group or self._alone

    def _train(self, course: Course, fetcher: Fetcher, feed: Feed) -> Iterator[Any]:
        is_complete = False
        plan = None
        try:
            if self._worker:
                if self._worker.former_life:
                    self._go_on(self._worker, self._worker.former_life)
                else:
                    yield from self._warm_up(course, fetcher, self._worker)
                self._worker.transition.await_next(course.epoch_samples)
                self._switched()
            while not course.is_over(self._state.position):
                plan = course.plan(self._state.position, self.rank, self.workers)
                self._begin(plan)
                yield from self._hand_out(plan, feed)
                self._end(plan, course, self._reducer.finish())
            is_complete = True
        finally:
            feed.close()
            if plan is not None and not is_complete and self._reducer.is_whole:
                # The loop was left after a step: it counts.
                self._state.position = plan.position.after(plan.batch_samples, fetcher.samples)
            self._finish(is_complete=is_complete)

    def _go_on(self, worker: _Worker, former: FormerLife) -> None:
        """Take up where this process was before it executed its script anew."""
        self._state.restore(former.snapshot)
        self._state.generation = former.generation
        worker.membership.receive(former.announced)

    def _warm_up(self, course: Course, fetcher: Fetcher, worker: _Worker) -> Iterator[Any]:
        """Train a few steps whose effect is undone: what is slow at first is over then."""
        before = self._state.snapshot()
        indices = course.sample_indices()
        for _ in range(worker.settings.solo_steps):
            self._optimizer.begin(1)
            self._optimizer.ask()
            self._reducer.begin_step(self._alone, 0, 1.0, (0.0, 0.0))
            self._reducer.begin_part(1.0)
            yield fetcher.fetch(Position(), 0, indices)
            self._reducer.finish()
        self._reported = (0.0, 0.0)
        self._state.restore(before)
        worker.link.send(WorkerWarm(worker_id=worker.worker_id, job_id=worker.job_id))

    def _begin(self, plan: Plan) -> None:
        group = self._group
        ballot = 0
        if self._worker:
            ballot = self._worker.membership.ballot()
            self._record(plan, self._worker, group)
        if group.workers > 1:
            self._buffers.keep()
        self._optimizer.begin(group.workers)
        own_share = plan.own_samples / plan.batch_samples
        self._reducer.begin_step(group, ballot, own_share, self._reported)
        self._reported = (0.0, 0.0)
        if not plan.parts:
            self._optimizer.ask()
            self._reducer.begin_part(0.0)

    def _record(self, plan: Plan, worker: _Worker, group: Group) -> None:
        if worker.recorder:
            worker.recorder.take(
                worker.membership.generation,
                plan.position.step,
                epoch=plan.position.epoch,
                rank=group.rank,
                workers=group.workers,
                indices=plan.indices,
            )

    def _hand_out(self, plan: Plan, feed: Feed) -> Iterator[Any]:
        last = len(plan.parts) - 1
        is_mean = self._options.loss_reduction == "mean"
        rank, workers = self.rank, self.workers
        for part, batch in enumerate(feed.batches(plan, rank, workers)):
            self._own_part_samples = len(plan.parts[part])
            weight = self._own_part_samples / plan.batch_samples if is_mean else 1.0
            if part == last:
                self._optimizer.ask()
            else:
                self._optimizer.shut()
            self._reducer.begin_part(weight, is_first=part == 0, is_last=part == last)
            seed_all(mix(self._options.seed, plan.position.step, part, rank))
            yield batch

    def _is_step_whole(self) -> bool:
        return self._reducer.finish().is_whole

    def _end(self, plan: Plan, course: Course, verdict: Verdict) -> None:
        """Commit the step, or undo it; go to another group where that is due."""
        if not verdict.is_whole:
            self._lost(verdict, course)
            return
        if self._reducer.is_untouched and not self._optimizer.has_stepped:
            # No part of this batch was ours, but its gradients are.
            self._optimizer.step_for_user()
        before = self._state.position
        after = before.after(plan.batch_samples, course.epoch_samples)
        self._state.position = after
        is_epoch_over = after.epoch > before.epoch
        self._optimizer.committed(is_epoch_over=is_epoch_over)
        self._loss = verdict.loss if verdict.loss is not None else self._loss
        if self._worker:
            self._count(plan, verdict, self._worker)
        if is_epoch_over and self._on_epoch_end:
            self._on_epoch_end(before.epoch)
        self._step_ended_at_s = time.perf_counter()
        if self._worker and not course.is_over(after):
            self._move(course, verdict, self._worker)

    def _lost(self, verdict: Verdict, course: Course) -> None:
        assert self._worker is not None
        _logger.warning("step %d is done again: %s", self.step, verdict.reason)
        self._buffers.restore()
        self._reported = (0.0, 0.0)
        self._rejoin(course, self._worker)

    def _rejoin(self, course: Course, worker: _Worker) -> None:
        worker.transition.lose()
        worker.transition.await_next(course.epoch_samples)
        self._switched()

    def _count(self, plan: Plan, verdict: Verdict, worker: _Worker) -> None:
        worker.link.step = self.step
        if self.is_first:
            took_s = time.perf_counter() - self._step_ended_at_s
            self._meter.add(plan.batch_samples, took_s, verdict.loss)
            self._tell_progress(worker)
            self._save_if_due(worker)

    def _move(self, course: Course, verdict: Verdict, worker: _Worker) -> None:
        worker.transition.progress_at_s = self._step_ended_at_s
        worker.end_if_asked()
        if worker.membership.is_revoked:
            self._rejoin(course, worker)
        elif verdict.agreed:
            worker.transition.enter(verdict.agreed, course.epoch_samples)
            self._switched()

    def _switched(self) -> None:
        self._meter.switched()
        self._step_ended_at_s = time.perf_counter()

    def _tell_progress(self, worker: _Worker, *, is_last: bool = False) -> None:
        now_s = time.monotonic()
        if not is_last and now_s < self._reported_at_s + worker.settings.report_every_s:
            return
        self._reported_at_s = now_s
        window = self._meter.take()
        worker.link.send(
            Progress(
                worker_id=worker.worker_id,
                job_id=worker.job_id,
                generation=worker.membership.generation,
                workers=self.workers,
                step=self.step,
                epoch=self.epoch,
                samples=self.samples,
                steps=window.steps,
                samples_per_s=window.samples_per_s,
                variance=window.variance,
                loss=window.loss,
            )
        )

    def _save_if_due(self, worker: _Worker) -> None:
        now_s = time.monotonic()
        if now_s < self._saved_at_s + worker.settings.checkpoint_every_s or worker.saver.is_busy:
            return
        self._saved_at_s = now_s
        mark = Mark(worker.membership.generation, self.step)
        worker.saver.begin(self._state.snapshot(), mark, self.samples)

    def _set_waiting(self, is_waiting: bool) -> None:
        if self._worker:
            self._worker.link.is_waiting = is_waiting
            if is_waiting and self._worker.membership.has_left:
                # Now this thread does not need the interpreter, which freeing a group blocks.
                threading.Thread(target=self._worker.membership.discard_left).start()

    # -- the end ----------------------------------------------------------------------------------

    def _finish(self, *, is_complete: bool) -> None:
        self._optimizer.free()
        self._reducer.close()
        worker = self._worker
        if worker is None:
            return
        if self.is_first and worker.membership.group is not None:
            self._tell_progress(worker, is_last=True)
            if is_complete:
                # Of a loop that was left early only the script's exit tells whether it went well.
                self._tell_done(worker)
        if worker.recorder:
            worker.recorder.end(worker.membership.generation, self.step)
        # What the script does from here on takes as long as it takes.
        worker.link.is_waiting = True
        worker.saver.finish()
        worker.membership.end()

    def _tell_done(self, worker: _Worker) -> None:
        worker.link.send(
            WorkDone(
                worker_id=worker.worker_id,
                job_id=worker.job_id,
                generation=worker.membership.generation,
                step=self.step,
                samples=self.samples,
            )
        )
