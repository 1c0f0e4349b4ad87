"""The model that the training benchmarks share: ten million parameters, gradients dominate."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

WIDTH = 1500
GLOBAL_BATCH = 64


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(1000, WIDTH),
        nn.ReLU(),
        *[layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())],
        nn.Linear(WIDTH, 10),
    )


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4096, 1000, generator=generator)
    return TensorDataset(x, torch.randint(0, 10, (4096,), generator=generator))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
