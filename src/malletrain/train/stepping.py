"""Let the optimizer and its scheduler step exactly once for every whole step, and never else."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, Literal

from torch.optim import Optimizer

from malletrain.errors import TrainError

LrScaling = Literal["none", "linear", "sqrt"]
ScheduleEvery = Literal["step", "epoch"]


class _Gate(enum.Enum):
    #: Not in a training step: the optimizer is the user's own.
    FREE = enum.auto()
    #: Gradients are not complete: the user's call does nothing.
    SHUT = enum.auto()
    #: The step is whole once `before_step` says so.
    ASK = enum.auto()


class Schedule:
    """A learning-rate scheduler that the library steps, whatever the script calls.

    Raises:
        TrainError: it is no scheduler, or one that steps on a metric.
    """

    def __init__(self, scheduler: Any, every: ScheduleEvery) -> None:
        if type(scheduler).__name__ == "ReduceLROnPlateau":
            raise TrainError(
                "ReduceLROnPlateau steps on a metric of yours: pass it in state={'plateau': ...} "
                "and step it in on_epoch_end"
            )
        if not all(hasattr(scheduler, name) for name in ("step", "state_dict", "load_state_dict")):
            raise TrainError(f"scheduler is a {type(scheduler).__name__}, no scheduler")
        self._scheduler = scheduler
        self._every = every
        self._step = scheduler.step
        self.is_ours = False
        scheduler.step = self._user_step

    def committed(self, *, is_epoch_over: bool) -> None:
        """Advance after a whole step."""
        if self._every == "step" or is_epoch_over:
            self._step()

    def _user_step(self, *arguments: Any, **named: Any) -> None:
        """Ignore the user's calls within the loop, which are not one a whole step."""
        if not self.is_ours:
            self._step(*arguments, **named)

    def state_dict(self) -> dict[str, Any]:
        # Schedulers give all their attributes away, and ours with them.
        state: dict[str, Any] = dict(self._scheduler.state_dict())
        state.pop("step", None)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(state)


class SteppedOptimizer:
    """Stand between the user's `optimizer.step()` and the optimizer."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedule: Schedule | None,
        *,
        is_whole: Callable[[], bool],
        lr_scaling: LrScaling,
    ) -> None:
        self._optimizer = optimizer
        self._schedule = schedule
        self._is_whole = is_whole
        self._lr_scaling = lr_scaling
        self._gate = _Gate.FREE
        self._factor = 1.0
        self.has_stepped = False
        self._step = optimizer.step
        # Schedulers look for this mark to warn of steps that they cannot count.
        self._user_step.__func__.__dict__["_wrapped_by_lr_sched"] = True  # type: ignore[attr-defined]
        optimizer.step = self._user_step  # type: ignore[method-assign]

    def begin(self, workers: int) -> None:
        """Start a step of so many workers."""
        self._factor = _lr_factor(self._lr_scaling, workers)
        self.has_stepped = False
        if self._schedule:
            self._schedule.is_ours = True

    def shut(self) -> None:
        """Ignore the user's calls: the batch goes on with another micro-batch."""
        self._gate = _Gate.SHUT

    def ask(self) -> None:
        """Let the user's call through if the step is whole by then."""
        self._gate = _Gate.ASK

    def free(self) -> None:
        """Leave the optimizer to the user."""
        self._gate = _Gate.FREE
        if self._schedule:
            self._schedule.is_ours = False

    def step_for_user(self) -> None:
        """Step where the user's code had nothing to step for."""
        with self._scaled():
            self._step()
        self.has_stepped = True

    def committed(self, *, is_epoch_over: bool) -> None:
        """Advance the schedule after a whole step."""
        if self._schedule:
            self._schedule.committed(is_epoch_over=is_epoch_over)

    def _user_step(self, closure: Any = None, **arguments: Any) -> Any:
        if self._gate is _Gate.FREE:
            return self._step(closure, **arguments)
        if closure is not None:
            raise TrainError(
                "optimizer.step(closure) calls backward() several times a step, which cannot be "
                "made malleable: use an optimizer without a closure"
            )
        if self._gate is _Gate.SHUT or self.has_stepped or not self._is_whole():
            return None
        self.has_stepped = True
        with self._scaled():
            return self._step(**arguments)

    @contextmanager
    def _scaled(self) -> Any:
        """Step at a learning rate for the number of workers; schedules never see it."""
        if self._factor == 1.0:
            yield
            return
        groups = self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        try:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate * self._factor
            yield
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate


def _lr_factor(scaling: LrScaling, workers: int) -> float:
    if scaling == "linear":
        return float(workers)
    return math.sqrt(workers) if scaling == "sqrt" else 1.0
