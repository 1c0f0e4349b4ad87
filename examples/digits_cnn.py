"""A small convolutional network on scikit-learn's digits, on the emulated device.

Its steps are short and its gradients small: what limits it is the latency of the link.
"""

from __future__ import annotations

import torch
from digits import load_digits
from emulated_device import EmulatedDevice
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import malletrain.train as mt

SEED = 1
GLOBAL_BATCH = 128
EPOCHS = 48
FLOPS_PER_ROW = 476_160


def make_data() -> TensorDataset:
    pixels, labels = load_digits()
    return TensorDataset(pixels.view(-1, 1, 8, 8), labels)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, kernel_size=3, padding=1),
        nn.GELU(),
        nn.Conv2d(8, 16, kernel_size=3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
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
    for images, labels in job.batches(dataset, epochs=EPOCHS):
        with device.step(len(labels), job.workers):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        job.report(loss)
        if job.is_first and job.loss is not None and job.step % 10 == 0:
            print(f"samples {job.samples} loss {job.loss:.6f}")

    with torch.no_grad():
        images, labels = dataset.tensors
        print(f"final loss {functional.cross_entropy(model(images), labels):.9f}")


if __name__ == "__main__":
    main()
