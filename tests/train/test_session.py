"""What a script may do, and what it is told where it may not; in this process, alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset, TensorDataset

import malletrain.train as mt
from malletrain.errors import TrainError

Pair = tuple[nn.Module, torch.optim.Optimizer]


@pytest.fixture
def pair() -> Pair:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def data(samples: int = 10) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 3, generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.randint(0, 2, (samples,), generator=generator))


def train(pair: Pair, *, epochs: int = 2, **options: Any) -> mt.Session:
    model, optimizer = pair
    reduction = options.get("loss_reduction", "mean")
    job = mt.attach(model, optimizer, **{"global_batch": 4, **options})
    for x, y in job.batches(data(), epochs=epochs):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y, reduction=reduction)
        loss.backward()
        optimizer.step()
        job.report(loss)
    return job


def parameters(pair: Pair) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in pair[0].parameters()]


def copy_of(pair: Pair) -> Pair:
    model = nn.Linear(3, 2).double()
    model.load_state_dict(pair[0].state_dict())
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def test_alone_it_counts_steps_samples_and_epochs(pair: Pair) -> None:
    job = train(pair)
    # 4 + 4 + 2 rows an epoch.
    assert (job.step, job.samples, job.epoch) == (6, 20, 2)
    assert (job.rank, job.workers, job.is_first) == (0, 1, True)
    assert job.loss is not None


def test_micro_batches_add_up_to_the_batch(pair: Pair) -> None:
    other = copy_of(pair)
    assert train(pair, micro_batch=3).step == train(other).step
    torch.testing.assert_close(parameters(pair), parameters(other), rtol=0, atol=1e-14)


def test_a_summed_loss_gives_the_gradient_of_the_sum(pair: Pair) -> None:
    other = copy_of(pair)
    train(pair, micro_batch=2, loss_reduction="sum")
    train(other, loss_reduction="sum")
    torch.testing.assert_close(parameters(pair), parameters(other), rtol=0, atol=1e-13)


def test_the_schedule_advances_once_a_step_whatever_the_script_calls(pair: Pair) -> None:
    model, optimizer = pair
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    job = mt.attach(model, optimizer, global_batch=5, scheduler=scheduler, micro_batch=2)
    for x, y in job.batches(data(), epochs=1):
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    assert job.step == 2
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**2)


def test_the_schedule_can_advance_by_epochs(pair: Pair) -> None:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(pair[1], 0.5)
    train(pair, scheduler=scheduler, schedule_every="epoch")
    assert pair[1].param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**2)


def test_the_optimizer_is_the_scripts_own_again_afterwards(pair: Pair) -> None:
    train(pair)
    before = parameters(pair)
    model, optimizer = pair
    model(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    optimizer.step()
    assert not parameters(pair)[0].equal(before[0])


def test_a_batch_that_is_skipped_changes_nothing_but_counts(pair: Pair) -> None:
    model, optimizer = pair
    before = parameters(pair)
    job = mt.attach(model, optimizer, global_batch=5)
    for _ in job.batches(data(), epochs=1):
        pass
    assert job.samples == 10
    torch.testing.assert_close(parameters(pair), before, rtol=0, atol=0)


def test_a_loop_left_by_break_counts_its_last_step(pair: Pair) -> None:
    model, optimizer = pair
    job = mt.attach(model, optimizer, global_batch=5)
    for x, y in job.batches(data()):
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if job.step == 2:
            break
    assert job.step == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch": 0}, "at least 1"),
        ({"micro_batch": 0}, "at least 1"),
        ({"lr_scaling": "linear"}, "batch_scaling='scaled'"),
        ({"scheduler": object()}, "no scheduler"),
        ({"state": {"scheduler": nn.Linear(1, 1)}}, "name it otherwise"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    pair: Pair, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrainError, match=message):
        train(pair, **options)


def test_a_scheduler_that_steps_on_a_metric_is_refused(pair: Pair) -> None:
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(pair[1])
    with pytest.raises(TrainError, match="on_epoch_end"):
        train(pair, scheduler=scheduler)


def test_a_second_backward_is_refused(pair: Pair) -> None:
    model, optimizer = pair
    job = mt.attach(model, optimizer, global_batch=5)
    batches = job.batches(data(), epochs=1)
    x, _ = next(batches)
    model(x).sum().backward()
    with pytest.raises(TrainError, match="call backward\\(\\) once"):
        model(x).sum().backward()


def test_a_closure_is_refused(pair: Pair) -> None:
    model, optimizer = pair
    job = mt.attach(model, optimizer, global_batch=5)
    batches = job.batches(data(), epochs=1)
    next(batches)
    with pytest.raises(TrainError, match="closure"):
        optimizer.step(lambda: torch.zeros(1))


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    job = mt.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), global_batch=5)
    batches = job.batches(data(), epochs=1)
    next(batches)
    with pytest.raises(TrainError, match="sparse=False"):
        model(torch.tensor([1])).sum().backward()


def test_there_is_one_training_loop(pair: Pair) -> None:
    job = train(pair)
    with pytest.raises(TrainError, match="one training loop"):
        job.batches(data())


def test_a_data_set_of_unknown_size_is_refused(pair: Pair) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1

    job = mt.attach(*pair, global_batch=5)
    with pytest.raises(TypeError, match="known size"):
        job.batches(Stream())


def test_a_worker_without_its_variables_is_told(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLETRAIN_AGENT_SOCKET", "/nowhere")
    with pytest.raises(TrainError, match="MALLETRAIN_WORKER_ID is not"):
        mt.attach(*pair, global_batch=5)


def test_an_empty_data_set_is_refused(pair: Pair) -> None:
    job = mt.attach(*pair, global_batch=4)
    with pytest.raises(TrainError, match="the data set is empty"):
        job.batches(data(0))
