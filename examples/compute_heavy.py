"""A deep network whose layers share one small set of weights, on the emulated device.

Much mathematics and few gradients: it scales well. It tells two interleaved spirals apart.
"""

from __future__ import annotations

import math

import torch
from emulated_device import EmulatedDevice
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import malletrain.train as mt

SEED = 4
GLOBAL_BATCH = 128
EPOCHS = 20
WIDTH = 128
DEPTH = 32
ROWS = 1024
FLOPS_PER_ROW = 3_148_288


class DeepNet(nn.Module):
    """h <- h + tanh(W h + U x) / depth, as often as the depth says: Euler's method."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(2, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.leave = nn.Linear(WIDTH, 2)

    def forward(self, points: Tensor) -> Tensor:
        entered = self.enter(points)
        hidden = entered
        for _ in range(DEPTH):
            hidden = hidden + torch.tanh(self.layer(hidden) + entered) * (4 / DEPTH)
        return self.leave(hidden)


def make_model() -> nn.Module:
    return DeepNet()


def make_data() -> TensorDataset:
    random = torch.Generator().manual_seed(SEED)
    labels = torch.arange(ROWS) % 2
    turn = torch.rand(ROWS, generator=random).sqrt() * 2 * math.pi
    angle = turn + math.pi * labels
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / math.pi
    noise = 0.3 * torch.randn(points.shape, generator=random)
    return TensorDataset(points + noise, labels)


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    dataset = make_data()
    model = make_model()
    device = EmulatedDevice.for_model(model, FLOPS_PER_ROW)
    print(f"stated samples/s {device.rates(GLOBAL_BATCH)}")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)

    job = mt.attach(model, optimizer, global_batch=GLOBAL_BATCH, seed=SEED)
    for points, labels in job.batches(dataset, epochs=EPOCHS):
        with device.step(len(labels), job.workers):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(points), labels)
            loss.backward()
            optimizer.step()
        job.report(loss)
        if job.is_first and job.loss is not None and job.step % 4 == 0:
            print(f"samples {job.samples} loss {job.loss:.6f}")

    with torch.no_grad():
        points, labels = dataset.tensors
        print(f"final loss {functional.cross_entropy(model(points), labels):.9f}")


if __name__ == "__main__":
    main()
