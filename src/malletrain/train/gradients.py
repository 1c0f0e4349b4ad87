"""Sum gradients over the workers while the backward pass still runs.

Hooks on the parameters collect gradients into flat buckets, each of which is all-reduced as soon
as it and all before it are full; so every rank issues the same collectives in the same order,
whatever parameters its part of the batch used. The layout follows the order of the parameters
alone, so a fresh joiner has it too. `DistributedDataParallel` rebuilds its buckets after the
first step, which no joiner can follow, and keeps a process group for life.

A rank's gradients are weighted by its share of the batch: the sum is the gradient of the mean
over the global batch, for uneven shares and micro-batches too. Besides gradients a step's last
bucket carries a ballot (see `Verdict`), the loss, and who used which parameter, so that none of
them costs a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from malletrain.errors import TrainError
from malletrain.train.group import Group, GroupLostError

#: As DistributedDataParallel's: large enough for bandwidth, small enough to overlap.
_BUCKET_BYTES = 25 * 1024 * 1024
#: The first is small, so that the exchange starts early.
_FIRST_BUCKET_BYTES = 1024 * 1024
#: Ballot, sum of losses, weight of losses; then one element a parameter: how many ranks used it.
_HEADER = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a step."""

    #: The gradients of all ranks are in place: the step counts.
    is_whole: bool
    #: Every rank's ballot bore this number; 0 if they differ.
    agreed: int = 0
    loss: float | None = None
    #: Why it is not whole.
    reason: str = ""


@dataclass(slots=True)
class _Bucket:
    flat: Tensor
    #: Indices of its parameters.
    slots: list[int] = field(default_factory=list)
    #: Buffers that are averaged with it, and their places.
    statistics: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    missing: int = 0


class Reducer:
    """The gradient exchange of one model; lives across rescales."""

    def __init__(self, model: nn.Module, on_wait: Callable[[bool], None]) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if not self._parameters:
            raise TrainError(f"{type(model).__name__} has no parameter that requires a gradient")
        self._on_wait = on_wait
        self._statistics = _running_statistics(model)
        self._lay_out()
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(slot))
            for slot, parameter in enumerate(self._parameters)
        ]
        self._used = [False] * len(self._parameters)
        self._group: Group | None = None
        #: The group that the last step was lost with.
        self._lost_group: Group | None = None
        self._ballot = 0
        self._loss = (0.0, 0.0)
        self._own_share = 0.0
        self._weight = 1.0
        self._is_open = False
        self._is_last_part = False
        self._is_only_part = False
        self._is_in_backward = False
        self._next_bucket = 0
        self._pending: list[Any] = []
        #: Why the group was lost in this step.
        self._failure = ""
        self._verdict: Verdict | None = None

    # -- one step, from the session ---------------------------------------------------------------

    def begin_step(
        self, group: Group, ballot: int, own_share: float, loss: tuple[Any, float]
    ) -> None:
        """Forget the last step.

        Args:
            group: with whom to sum.
            ballot: the generation this worker is ready to switch to, 0 for none.
            own_share: this rank's part of the step's samples.
            loss: sum and weight of the losses reported since they were last sent.
        """
        if self._lost_group is not None and self._lost_group.is_stuck:
            # What gloo may still write into must not carry gradients again.
            self._lay_out()
        self._lost_group = None
        self._group, self._ballot, self._own_share, self._loss = group, ballot, own_share, loss
        self._used = [False] * len(self._parameters)
        self._next_bucket = 0
        self._pending = []
        self._failure = ""
        self._verdict = None
        for bucket in self._buckets:
            bucket.missing = len(bucket.slots)

    def begin_part(self, weight: float, *, is_first: bool = True, is_last: bool = True) -> None:
        """Open the next micro-batch, whose gradients count with this weight."""
        self._weight = weight
        self._is_only_part = is_first and is_last
        self._is_last_part = is_last
        self._is_open = True
        self._is_in_backward = False
        self._drop_gradients()

    def finish(self) -> Verdict:
        """Return what came of the step; sum what is not summed yet."""
        if self._verdict is None:
            self._complete()
        assert self._verdict is not None
        self._is_open = False
        return self._verdict

    @property
    def is_whole(self) -> bool:
        """The step's sums are complete."""
        return self._verdict is not None and self._verdict.is_whole

    @property
    def is_untouched(self) -> bool:
        """No gradient was computed on this rank in this step."""
        return not any(self._used)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _lay_out(self) -> None:
        layout = _Layout(self._parameters, self._statistics)
        self._buckets, self._views, self._control = layout.buckets, layout.views, layout.control
        self._bucket_of = {slot: b for b in self._buckets for slot in b.slots}

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    # -- within backward --------------------------------------------------------------------------

    def _hook(self, slot: int) -> Callable[[Tensor], None]:
        return lambda parameter: self._collect(slot, parameter)

    def _collect(self, slot: int, parameter: Tensor) -> None:
        if not self._is_open:
            return
        if self._verdict is not None:
            raise TrainError(
                "backward() ran twice for one batch: add the losses up and call backward() once"
            )
        if not self._is_in_backward:
            self._is_in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(  # noqa: SLF001 - as DistributedDataParallel does: nothing public runs at the end of backward
                self._backward_ended
            )
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            raise TrainError("sparse gradients cannot be exchanged: use Embedding(sparse=False)")
        if self._is_plain:
            self._used[slot] = True
            return
        self._add(slot, gradient)
        parameter.grad = None
        if self._is_last_part:
            bucket = self._bucket_of[slot]
            bucket.missing -= 1
            if not bucket.missing:
                self._launch_full()

    @property
    def _is_plain(self) -> bool:
        """One worker with its batch in one piece: the gradient is right as it is."""
        is_alone = self._group is not None and self._group.workers == 1
        return is_alone and self._is_only_part and self._weight == 1.0

    def _add(self, slot: int, gradient: Tensor) -> None:
        if self._used[slot]:
            self._views[slot].add_(gradient, alpha=self._weight)
        else:
            torch.mul(gradient, self._weight, out=self._views[slot])
            self._used[slot] = True

    def _launch_full(self) -> None:
        while self._next_bucket < len(self._buckets) - 1:
            if self._buckets[self._next_bucket].missing:
                return
            self._launch()

    def _launch(self) -> None:
        """All-reduce the next bucket, unless the group is lost already."""
        bucket = self._buckets[self._next_bucket]
        self._next_bucket += 1
        if self._group is None:
            return
        for slot in bucket.slots:
            if not self._used[slot]:
                self._views[slot].zero_()
        for statistic, place in bucket.statistics:
            torch.mul(statistic, self._own_share, out=place)
        if self._next_bucket == len(self._buckets):
            self._fill_control()
        if self._group.workers == 1:
            return
        try:
            self._pending.append(self._group.all_reduce(bucket.flat))
        except GroupLostError as error:
            self._lose(error)

    def _fill_control(self) -> None:
        control = self._control
        if all(self._used):
            control[_HEADER:].fill_(1.0)
        else:
            control[_HEADER:].copy_(torch.tensor(self._used))
        control[0], control[1], control[2] = self._ballot, self._loss[0], self._loss[1]

    def _backward_ended(self) -> None:
        if self._is_last_part and self._verdict is None:
            self._complete()

    def _complete(self) -> None:
        """Wait for the sums and put them in place."""
        if self._is_plain:
            loss_sum, loss_weight = self._loss
            loss = float(loss_sum) / loss_weight if loss_weight else None
            self._verdict = Verdict(is_whole=True, agreed=self._ballot, loss=loss)
            return
        while self._next_bucket < len(self._buckets):
            self._launch()
        self._on_wait(True)
        try:
            if self._group is not None:
                self._group.wait(self._pending)
        except GroupLostError as error:
            self._lose(error)
        finally:
            self._on_wait(False)
        self._pending = []
        if self._failure:
            # Something finite for what the user's code does with gradients before its step.
            self._show_gradients(range(len(self._parameters)))
            self._verdict = Verdict(is_whole=False, reason=self._failure)
        else:
            self._verdict = self._settle()

    def _lose(self, error: GroupLostError) -> None:
        """Let the backward pass run to its end without exchange; it raises nothing there."""
        self._failure = self._failure or str(error)
        self._pending = []
        self._lost_group, self._group = self._group, None

    def _settle(self) -> Verdict:
        assert self._group is not None
        workers = self._group.workers
        self._group = None
        numbers = self._control.tolist()
        # What no rank used keeps no gradient: momentum and weight decay must not act on it.
        self._show_gradients(s for s, count in enumerate(numbers[_HEADER:]) if count > 0)
        for bucket in self._buckets:
            for statistic, place in bucket.statistics:
                statistic.copy_(place)
        ballots, loss_sum, loss_weight = numbers[:_HEADER]
        is_agreed = self._ballot and ballots == workers * self._ballot
        return Verdict(
            is_whole=True,
            agreed=self._ballot if is_agreed else 0,
            loss=loss_sum / loss_weight if loss_weight else None,
        )

    def _show_gradients(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._parameters[slot].grad = self._views[slot]


class _Layout:
    """Where each gradient goes: the same on every rank and in every generation."""

    def __init__(self, parameters: Sequence[Tensor], statistics: Sequence[Tensor]) -> None:
        self.buckets: list[_Bucket] = []
        self.views: list[Tensor] = [torch.empty(0)] * len(parameters)
        groups = self._grouped(parameters)
        spare = self._statistics_homes(groups, parameters, statistics)
        for index, slots in enumerate(groups):
            is_last = index == len(groups) - 1
            extra = spare.get(index, [])
            carries = is_last and _can_carry_control(parameters[slots[0]])
            self._add_bucket(parameters, slots, extra, carries)
        last = groups[-1]
        if not _can_carry_control(parameters[last[0]]):
            flat = torch.zeros(_HEADER + len(parameters), dtype=torch.float64)
            self.buckets.append(_Bucket(flat))
        self.control = self.buckets[-1].flat[-(_HEADER + len(parameters)) :]

    @staticmethod
    def _grouped(parameters: Sequence[Tensor]) -> list[list[int]]:
        """Bucket the parameters, the last used first, by type and device."""
        groups: list[list[int]] = []
        is_open: dict[tuple[Any, Any], tuple[list[int], int]] = {}
        for slot in reversed(range(len(parameters))):
            parameter = parameters[slot]
            key = (parameter.dtype, parameter.device)
            group, size = is_open.get(key, ([], 0))
            if not group:
                groups.append(group)
            group.append(slot)
            size += parameter.nbytes
            limit = _FIRST_BUCKET_BYTES if group is groups[0] else _BUCKET_BYTES
            is_open[key] = ([], 0) if size >= limit else (group, size)
        return groups

    @staticmethod
    def _statistics_homes(
        groups: list[list[int]], parameters: Sequence[Tensor], statistics: Sequence[Tensor]
    ) -> dict[int, list[Tensor]]:
        """Send each buffer along with the last bucket of its type and device."""
        homes: dict[int, list[Tensor]] = {}
        last = {(parameters[g[0]].dtype, parameters[g[0]].device): i for i, g in enumerate(groups)}
        for statistic in statistics:
            home = last.get((statistic.dtype, statistic.device))
            if home is not None:
                homes.setdefault(home, []).append(statistic)
        return homes

    def _add_bucket(
        self, parameters: Sequence[Tensor], slots: list[int], extra: list[Tensor], carries: bool
    ) -> None:
        first = parameters[slots[0]]
        sizes = [parameters[slot].numel() for slot in slots]
        extra_sizes = [tensor.numel() for tensor in extra]
        control = _HEADER + len(parameters) if carries else 0
        flat = torch.zeros(
            sum(sizes) + sum(extra_sizes) + control, dtype=first.dtype, device=first.device
        )
        bucket = _Bucket(flat, slots)
        pieces = flat[: flat.numel() - control].split([*sizes, *extra_sizes])
        for slot, piece in zip(slots, pieces, strict=False):
            self.views[slot] = piece.view(parameters[slot].shape)
        for tensor, piece in zip(extra, pieces[len(slots) :], strict=True):
            bucket.statistics.append((tensor, piece.view(tensor.shape)))
        self.buckets.append(bucket)


def _can_carry_control(parameter: Tensor) -> bool:
    # Half precision would round the ballot; on a GPU decisions must not wait for a stream.
    return parameter.dtype in (torch.float32, torch.float64) and parameter.device.type == "cpu"


def _running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the batch-norm statistics, which are averaged so that all ranks keep the same."""
    found = []
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):  # noqa: SLF001 - the common base of all batch norms
            found += [b for b in (module.running_mean, module.running_var) if b is not None]
    return found
