"""The same training under torchrun: DistributedDataParallel, restarted from a checkpoint."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from bench.step_times import StepLog
from bench.wide_model import GLOBAL_BATCH, make_data, make_model, make_optimizer

SAVE_EVERY = 10


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    plain = make_model()
    optimizer = make_optimizer(plain)
    # Never synced: it stays in memory, the best that it can have.
    checkpoint = directory / "checkpoint.pt"
    step = load(checkpoint, plain, optimizer)
    model = DistributedDataParallel(plain)
    x, y = make_data().tensors
    log = StepLog(directory)
    while True:
        log.begin(step)
        rows = torch.arange(rank * GLOBAL_BATCH // workers, (rank + 1) * GLOBAL_BATCH // workers)
        rows = (rows + step * GLOBAL_BATCH) % len(x)
        optimizer.zero_grad()
        functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        step += 1
        if step % SAVE_EVERY == 0 and rank == 0:
            save(checkpoint, plain, optimizer, step)


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    if not path.exists():
        return 0
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    aside = path.with_suffix(f".{os.getpid()}")
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, aside
    )
    aside.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
