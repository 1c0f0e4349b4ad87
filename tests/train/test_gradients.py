from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from malletrain.train.gradients import Reducer
from malletrain.train.group import Group, GroupLostError


class Twins(Group):
    """Two ranks that do the same, until it is lost at a collective of that number."""

    def __init__(self, lost_at: int | None = None, *, while_waiting: bool = False) -> None:
        super().__init__(0, 2)
        self.sizes: list[int] = []
        self._lost_at = lost_at
        self._while_waiting = while_waiting

    def all_reduce(self, tensor: Tensor) -> Any:
        if self._lost_at == len(self.sizes) and not self._while_waiting:
            raise GroupLostError("cut")
        self.sizes.append(tensor.numel())
        tensor.mul_(2)

    def wait(self, pending: Any) -> None:
        if self._while_waiting and self._lost_at in range(len(pending)):
            raise GroupLostError("cut")


def make_model() -> nn.Module:
    torch.manual_seed(0)
    # Large enough for several buckets.
    return nn.Sequential(*[nn.Linear(600, 600) for _ in range(20)])


def step(reducer: Reducer, model: nn.Module, group: Group, ballot: int = 0) -> None:
    reducer.begin_step(group, ballot, 0.5, (3.0, 2.0))
    reducer.begin_part(0.5)
    model(torch.ones(2, 600)).sum().backward()


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_equal_shares_sum_to_the_gradient_of_the_batch() -> None:
    model, group = make_model(), Twins()
    model(torch.ones(2, 600)).sum().backward()
    expected = gradients(model)
    reducer = Reducer(model, lambda _: None)
    step(reducer, model, group, ballot=4)
    torch.testing.assert_close(gradients(model), expected)
    verdict = reducer.finish()
    assert verdict.is_whole
    assert verdict.agreed == 4
    assert verdict.loss == 1.5
    assert len(group.sizes) > 1


@pytest.mark.parametrize("while_waiting", [False, True])
@pytest.mark.parametrize("lost_at", [0, 1])
def test_a_loss_within_backward_raises_nothing_there(lost_at: int, while_waiting: bool) -> None:
    model = make_model()
    reducer = Reducer(model, lambda _: None)
    step(reducer, model, Twins(lost_at, while_waiting=while_waiting))
    verdict = reducer.finish()
    assert not verdict.is_whole
    assert verdict.reason == "cut"
    assert all(gradient.isfinite().all() for gradient in gradients(model))
    # The next attempt starts afresh.
    step(reducer, model, Twins())
    assert reducer.finish().is_whole


@pytest.mark.parametrize("is_stuck", [True, False])
def test_what_a_lost_group_still_writes_reaches_no_gradient(is_stuck: bool) -> None:
    model, lost = make_model(), Twins(1, while_waiting=True)
    reducer = Reducer(model, lambda _: None)
    step(reducer, model, lost)
    reducer.finish()
    flats = [bucket.flat for bucket in reducer._buckets]
    lost.is_stuck = is_stuck
    step(reducer, model, Twins())
    expected = gradients(model)
    if is_stuck:
        for flat in flats:
            flat.fill_(torch.nan)
    else:
        # Gloo is done with them.
        assert all(
            bucket.flat is flat for bucket, flat in zip(reducer._buckets, flats, strict=True)
        )
    torch.testing.assert_close(gradients(model), expected, rtol=0, atol=0)
    assert reducer.finish().is_whole


def test_ballots_that_differ_agree_on_nothing() -> None:
    model = make_model()
    reducer = Reducer(model, lambda _: None)

    class Other(Twins):
        def all_reduce(self, tensor: Tensor) -> Any:
            super().all_reduce(tensor)
            # The other rank voted for nothing.
            reducer._control[0] = 4.0

    step(reducer, model, Other(), ballot=4)
    assert reducer.finish().agreed == 0


def test_half_precision_carries_the_ballot_apart() -> None:
    model = make_model().bfloat16()
    reducer = Reducer(model, lambda _: None)
    group = Twins()
    reducer.begin_step(group, 1001, 0.5, (0.0, 0.0))
    reducer.begin_part(0.5)
    model(torch.ones(2, 600, dtype=torch.bfloat16)).sum().backward()
    assert reducer.finish().agreed == 1001
