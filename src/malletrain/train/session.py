"""What a training script sees: `attach`, and the `Session` whose batches it trains on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from malletrain.errors import TrainError
from malletrain.train.data import Course, Plan, Position, mix, seed_all
from malletrain.train.feed import AheadFeed, Feed, Fetcher
from malletrain.train.gradients import Reducer, Verdict
from malletrain.train.group import Group
from malletrain.train.link import Environment
from malletrain.train.state import Stateful, TrainingState
from malletrain.train.stepping import (
    LrScaling,
    Schedule,
    ScheduleEvery,
    SteppedOptimizer,
)
from malletrain.train.undo import BufferKeeper
from malletrain.train.worker import Worker

_logger = logging.getLogger("malletrain.train")

BatchScaling = Literal["fixed", "scaled"]
LossReduction = Literal["mean", "sum"]


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
    worker = Worker(environment, training_state, on_leave) if environment else None
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


class Session:
    """A script's part in its job. Made by `attach`."""

    def __init__(
        self,
        options: _Options,
        model: nn.Module,
        state: TrainingState,
        worker: Worker | None,
        wrap: Callable[[Callable[[], bool]], SteppedOptimizer],
    ) -> None:
        self._options = options
        self._state = state
        self._worker = worker
        self._reducer = Reducer(model, self._set_waiting)
        self._optimizer = wrap(self._is_step_whole)
        self._buffers = BufferKeeper(model)
        self._alone = Group()
        self._course: Course | None = None
        self._on_epoch_end: Callable[[int], None] | None = None
        self._own_part_samples = 0
        #: Sum and weight of the reported losses that were not sent yet.
        self._reported: tuple[Any, float] = (0.0, 0.0)
        self._loss: float | None = None

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
        """Exactly one worker of a group is: let it print, and write what the script itself keeps.

        A worker without a group is not: before the loop, and while it warms up.
        """
        group = self._worker.group if self._worker else self._alone
        return group is not None and group.rank == 0

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
        """Show this batch's loss to the system; costs no message of its own.

        What is reported while a worker warms up counts for nothing.
        """
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
        if not fetcher.samples:
            raise TrainError("the data set is empty: see what the script loads, and from where")
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
        return (self._worker.group if self._worker else None) or self._alone

    def _train(self, course: Course, fetcher: Fetcher, feed: Feed) -> Iterator[Any]:
        is_complete = False
        plan = None
        try:
            if self._worker:
                if not self._worker.take_up_former_life():
                    yield from self._warm_up(course, fetcher, self._worker)
                self._worker.join(course.epoch_samples)
            while not self._is_over(course):
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

    def _is_over(self, course: Course) -> bool:
        if not course.is_over(self._state.position):
            return False
        # In another group the newest state may be an older one.
        return self._worker is None or (
            self._worker.end_with_all(course.epoch_samples) or self._is_over(course)
        )

    def _warm_up(self, course: Course, fetcher: Fetcher, worker: Worker) -> Iterator[Any]:
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
        worker.tell_warm()

    def _begin(self, plan: Plan) -> None:
        group = self._group
        ballot = 0
        if self._worker:
            ballot = self._worker.membership.ballot()
            self._worker.record(plan, group)
        if group.workers > 1:
            self._buffers.keep()
        self._optimizer.begin(group.workers)
        own_share = plan.own_samples / plan.batch_samples
        self._reducer.begin_step(group, ballot, own_share, self._reported)
        self._reported = (0.0, 0.0)
        if not plan.parts:
            self._optimizer.ask()
            self._reducer.begin_part(0.0)

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
            self._worker.committed(plan.batch_samples, verdict.loss, self._group)
        if is_epoch_over and self._on_epoch_end:
            self._on_epoch_end(before.epoch)
        if self._worker:
            self._worker.step_ended()
            if not course.is_over(after):
                self._worker.move(verdict.agreed, course.epoch_samples)

    def _lost(self, verdict: Verdict, course: Course) -> None:
        assert self._worker is not None
        _logger.warning("step %d is done again: %s", self.step, verdict.reason)
        self._buffers.restore()
        self._reported = (0.0, 0.0)
        self._worker.rejoin(course.epoch_samples)

    def _set_waiting(self, is_waiting: bool) -> None:
        if self._worker:
            self._worker.set_waiting(is_waiting)

    # -- the end ----------------------------------------------------------------------------------

    def _finish(self, *, is_complete: bool) -> None:
        self._optimizer.free()
        self._reducer.close()
        if self._worker:
            self._worker.finish(self._group, is_complete=is_complete)
