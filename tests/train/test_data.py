from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from malletrain.train.data import Course, Position, mix, seed_all
from malletrain.train.feed import Fetcher


@given(
    epoch_samples=st.integers(1, 60),
    batch=st.integers(1, 20),
    micro_batch=st.none() | st.integers(1, 5),
    workers=st.lists(st.integers(1, 6), min_size=1),
    is_shuffled=st.booleans(),
)
def test_every_sample_is_consumed_once_an_epoch_whatever_the_number_of_workers(
    epoch_samples: int,
    batch: int,
    micro_batch: int | None,
    workers: list[int],
    is_shuffled: bool,
) -> None:
    course = Course(
        epoch_samples,
        3,
        lambda _: batch,
        is_shuffled=is_shuffled,
        micro_batch=micro_batch,
        epochs=2,
    )
    consumed: dict[int, Counter[int]] = {0: Counter(), 1: Counter()}
    position = Position()
    while not course.is_over(position):
        count = workers[position.step % len(workers)]
        plans = [course.plan(position, rank, count) for rank in range(count)]
        assert sum(plan.own_samples for plan in plans) == plans[0].batch_samples <= batch
        for plan in plans:
            consumed[position.epoch].update(plan.indices)
            assert all(0 < len(part) <= (micro_batch or batch) for part in plan.parts)
        position = position.after(plans[0].batch_samples, epoch_samples)
    assert consumed == {epoch: Counter(range(epoch_samples)) for epoch in (0, 1)}
    assert position.samples == 2 * epoch_samples


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def indices(seed: int, epoch: int) -> list[int]:
        course = Course(50, seed, lambda _: 50)
        return course.plan(Position(epoch=epoch), 0, 1).indices

    assert indices(1, 0) == indices(1, 0)
    assert len({tuple(indices(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_seeding_makes_draws_repeatable() -> None:
    seed_all(mix(7, 1))
    first = torch.rand(3)
    seed_all(mix(7, 2))
    assert not torch.rand(3).equal(first)
    seed_all(mix(7, 1))
    assert torch.rand(3).equal(first)


def test_tensors_are_fetched_as_their_items_would_be() -> None:
    tensors = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))
    rows = torch.tensor([7, 2, 5])
    short = Fetcher(tensors, None, 0).fetch(Position(), 0, rows)
    items = Fetcher(tensors, lambda found: found, 0).fetch(Position(), 0, rows)
    for column in (0, 1):
        assert short[column].equal(torch.stack([item[column] for item in items]))
