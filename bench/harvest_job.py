"""A job for harvested nodes: real mathematics on a small model, on the emulated device.

The environment says for how long it goes on (HARVEST_EPOCHS), where the emulated device's module
lies (PYTHONPATH), and where each step is to be written down, if anywhere (HARVEST_STEPS).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from emulated_device import EmulatedDevice
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import malletrain.train as mt

SEED = 3
GLOBAL_BATCH = 64
ROWS = 4096
WIDTH = 32
#: As stated to the emulated device: a step of one node takes 0.8 s.
FLOPS_PER_ROW = 3_125_000


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    points = torch.randn(ROWS, WIDTH)
    dataset = TensorDataset(points, (points.sum(dim=1) > 0).long())
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))
    device = EmulatedDevice.for_model(model, FLOPS_PER_ROW)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps_path = Path(os.environ.get("HARVEST_STEPS", os.devnull))
    job = mt.attach(model, optimizer, global_batch=GLOBAL_BATCH, seed=SEED)
    for rows, labels in job.batches(dataset, epochs=int(os.environ["HARVEST_EPOCHS"])):
        with device.step(len(labels), job.workers):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(rows), labels)
            loss.backward()
            optimizer.step()
        job.report(loss)
        if job.is_first:
            with steps_path.open("a") as steps:
                steps.write(f"{time.time()} {job.samples}\n")


if __name__ == "__main__":
    main()
