"""A multi-layer perceptron of many parameters, on the emulated device.

Its gradients dominate: the link is busy for longer than the device, and soon no further node helps.
"""

from __future__ import annotations

import torch
from digits import load_digits
from emulated_device import EmulatedDevice
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import malletrain.train as mt

SEED = 3
GLOBAL_BATCH = 128
EPOCHS = 14
WIDTH = 384
FLOPS_PER_ROW = 1_006_080


def make_data() -> TensorDataset:
    return TensorDataset(*load_digits())


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, 10),
    )


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    dataset = make_data()
    model = make_model()
    device = EmulatedDevice.for_model(model, FLOPS_PER_ROW)
    print(f"stated samples/s {device.rates(GLOBAL_BATCH)}")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    job = mt.attach(model, optimizer, global_batch=GLOBAL_BATCH, seed=SEED)
    for pixels, labels in job.batches(dataset, epochs=EPOCHS):
        with device.step(len(labels), job.workers):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(pixels), labels)
            loss.backward()
            optimizer.step()
        job.report(loss)
        if job.is_first and job.loss is not None and job.step % 10 == 0:
            print(f"samples {job.samples} loss {job.loss:.6f}")

    with torch.no_grad():
        pixels, labels = dataset.tensors
        print(f"final loss {functional.cross_entropy(model(pixels), labels):.9f}")


if __name__ == "__main__":
    main()
