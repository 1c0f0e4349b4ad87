"""A small multi-layer perceptron on scikit-learn's digits, as fast as this machine goes.

No emulated device: what the system learns of its scaling is what this machine's cores give.
"""

from __future__ import annotations

import torch
from digits import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import malletrain.train as mt

SEED = 2
GLOBAL_BATCH = 128
EPOCHS = 1000


def make_data() -> TensorDataset:
    return TensorDataset(*load_digits())


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    dataset = make_data()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)

    job = mt.attach(model, optimizer, global_batch=GLOBAL_BATCH, seed=SEED)
    for pixels, labels in job.batches(dataset, epochs=EPOCHS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(pixels), labels)
        loss.backward()
        optimizer.step()
        job.report(loss)
        if job.is_first and job.loss is not None and job.step % 200 == 0:
            print(f"samples {job.samples} loss {job.loss:.6f}")

    with torch.no_grad():
        pixels, labels = dataset.tensors
        print(f"final loss {functional.cross_entropy(model(pixels), labels):.9f}")


if __name__ == "__main__":
    main()
