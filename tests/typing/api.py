"""What users write must type-check as it stands: `./run check` does, nothing here is run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import Dataset, TensorDataset

import malletrain.train as mt
from malletrain.train import Session


class Averaged:
    """A user's own object that is kept with the training state."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None: ...


def train(model: torch.nn.Module, dataset: Dataset[tuple[torch.Tensor, ...]]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job: Session = mt.attach(
        model,
        optimizer,
        global_batch=256,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, step_size=10),
        schedule_every="epoch",
        state={"averaged": Averaged()},
        seed=1,
        micro_batch=32,
        loss_reduction="sum",
        batch_scaling="scaled",
        lr_scaling="sqrt",
        on_leave=lambda: None,
    )
    for inputs, targets in job.batches(
        dataset,
        epochs=3,
        shuffle=False,
        collate_fn=None,
        num_workers=2,
        on_epoch_end=print,
    ):
        optimizer.zero_grad()
        loss: torch.Tensor = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        job.report(loss)
        job.report(0.5)
    loss_at_end: float | None = job.loss
    counts: tuple[int, int, int, int, int] = (
        job.rank,
        job.workers,
        job.step,
        job.epoch,
        job.samples,
    )
    if job.is_first:
        print(loss_at_end, counts)
        torch.save(model.state_dict(), Path("model.pt"))


train(torch.nn.Linear(1, 1), TensorDataset(torch.zeros(1, 1), torch.zeros(1, 1)))
