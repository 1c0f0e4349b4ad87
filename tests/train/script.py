"""A training script as users write it; what varies comes as JSON in its first argument."""

from __future__ import annotations

import itertools
import json
import math
import os
import resource
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import malletrain.train as mt
from malletrain.train import worker
from malletrain.train.gradients import Reducer
from malletrain.train.group import CannotAbortError, Group, GroupLostError
from malletrain.train.membership import Membership
from malletrain.train.revival import REVIVED_ENV

FEATURES = 12
CLASSES = 4


@dataclass(frozen=True)
class Config:
    #: Where it leaves its final state, and finds the file `hurry`.
    directory: str = ""
    model: str = "plain"
    optimizer: str = "sgd"
    schedule: bool = False
    samples: int = 203
    batch: int = 16
    epochs: int = 10
    micro_batch: int | None = None
    batch_scaling: str = "fixed"
    lr_scaling: str = "none"
    learning_rate: float = 0.02
    children: int = 0
    #: "cuda" takes the GPU of the worker's node's letter.
    device: str = "cpu"
    #: What a step takes at least, until the file `hurry` appears.
    step_s: float = 0.0
    #: Groups refuse to be given up in the worker's first life, as NCCL's may.
    cannot_abort: bool = False
    #: Once the file `full` appears, files take no more than this; 0 for any size.
    file_limit_bytes: int = 0
    #: "step": in the job's last step the worker on node b takes its group for lost, and c dies
    #: once it has the sums. "end": b does so when all have that step, and will wait for nobody.
    #: "after": b dies after the loop.
    last_fault: str = ""
    #: Leave the loop after so many steps.
    leave_after: int | None = None

    @property
    def command(self) -> list[str]:
        return [sys.executable, __file__, json.dumps(asdict(self))]

    def hurry(self) -> None:
        Path(self.directory, "hurry").touch()

    def fill_up(self) -> None:
        Path(self.directory, "full").touch()


class Branches(nn.Module):
    """Which of its parts a batch uses depends on the batch; one is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(FEATURES, CLASSES)
        self.right = nn.Linear(FEATURES, CLASSES)
        self.never = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        is_left = x[:, 0] > 0
        out = x.new_zeros(len(x), CLASSES)
        if is_left.any():
            out = out + self.left(x) * is_left[:, None]
        if not is_left.all():
            out = out + self.right(x) * ~is_left[:, None]
        return out


class Counter:
    """A thing of the user's own that must survive."""

    def __init__(self) -> None:
        self.epochs = 0
        self.seen = torch.zeros(1)

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs, self.seen = state["epochs"], state["seen"]


def make_data(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.randint(0, CLASSES, (samples,), generator=generator))


class Items(Dataset[tuple[Tensor, Tensor]]):
    """The same, without the short cut for tensors."""

    def __init__(self, tensors: TensorDataset) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self._tensors[index]


def make_model(kind: str) -> nn.Module:
    if kind == "branches":
        return Branches()
    if kind == "wide":
        return nn.Linear(FEATURES, 4000)
    norm = nn.BatchNorm1d(32) if kind == "norm" else nn.Identity()
    dropout = nn.Dropout(0.2) if kind == "norm" else nn.Identity()
    return nn.Sequential(nn.Linear(FEATURES, 32), norm, nn.Tanh(), dropout, nn.Linear(32, CLASSES))


def make_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    rate = config.learning_rate
    if config.optimizer == "adam":
        return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=0.01)


def train(config: Config) -> dict[str, Any]:
    torch.manual_seed(3)
    device = torch.device(config.device)
    if config.device == "cuda":
        device = torch.device("cuda", ord(_node()) - ord("a"))
        torch.cuda.set_device(device)
    model = make_model(config.model).double().to(device)
    optimizer = make_optimizer(config, model)
    scheduler = (
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
        if config.schedule
        else None
    )
    dataset: Dataset[Any] = make_data(config.samples)
    counter = Counter()

    def count(epoch: int) -> None:
        if config.last_fault == "step" and epoch == config.epochs - 1 and _node() == "c":
            os.kill(os.getpid(), signal.SIGKILL)
        counter.epochs += 1
        counter.seen += epoch

    job = mt.attach(
        model,
        optimizer,
        global_batch=config.batch,
        scheduler=scheduler,
        state={"counter": counter},
        micro_batch=config.micro_batch,
        batch_scaling=config.batch_scaling,
        lr_scaling=config.lr_scaling,
    )
    for x, y in job.batches(
        Items(dataset) if config.children else dataset,
        epochs=config.epochs,
        num_workers=config.children,
        on_epoch_end=count,
    ):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        job.report(loss)
        if config.file_limit_bytes and Path(config.directory, "full").exists():
            # Python ignores SIGXFSZ: writing fails as on a full disk.
            resource.setrlimit(resource.RLIMIT_FSIZE, (config.file_limit_bytes,) * 2)
        if config.step_s and not Path(config.directory, "hurry").exists():
            time.sleep(config.step_s)
        if config.leave_after is not None and job.step + 1 >= config.leave_after:
            break
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "learning_rate": optimizer.param_groups[0]["lr"],
        "epochs": counter.epochs,
        "seen": float(counter.seen),
        "step": job.step,
        "samples": job.samples,
        "loss": job.loss,
        "rank": job.rank,
        "initial": make_initial(config),
    }


def _node() -> str:
    # The last but one part of the worker's id.
    return os.environ.get("MALLETRAIN_WORKER_ID", "job.1.alone.0").split(".")[-2]


def make_initial(config: Config) -> dict[str, Tensor]:
    torch.manual_seed(3)
    return make_model(config.model).double().state_dict()


def lose_last_step(config: Config) -> None:
    """Make the group fail under this worker when the others have all sums of the last step."""
    steps = config.epochs * math.ceil(config.samples / config.batch)
    begin_step, wait = Reducer.begin_step, Group.wait
    begun = itertools.count(1)

    def count(reducer: Reducer, group: Group, *rest: Any) -> None:
        # Those before the first group are for warming up.
        reducer.is_last = group.workers > 1 and next(begun) == steps
        begin_step(reducer, group, *rest)
        group.is_failing = reducer.is_last

    def fail(group: Group, pending: Any) -> None:
        wait(group, pending)
        if group.is_failing:
            raise GroupLostError("as if it had come too late")

    Group.is_failing = False
    Reducer.begin_step, Group.wait = count, fail


def lose_end() -> None:
    """Make the group fail under this worker when the others know that all have the last step."""
    all_gather = Group.all_gather

    def fail(group: Group, numbers: list[int]) -> list[list[int]]:
        gathered = all_gather(group, numbers)
        if len(numbers) == 1:
            raise GroupLostError("as if it had come too late")
        return gathered

    Group.all_gather = fail
    worker._END_LIMIT_S = 0.0


def refuse(_: Membership) -> None:
    raise CannotAbortError("stuck")


def main() -> None:
    config = Config(**json.loads(sys.argv[1]))
    if config.cannot_abort and REVIVED_ENV not in os.environ:
        Membership.lose = refuse
    if config.last_fault == "step" and _node() == "b":
        lose_last_step(config)
    elif config.last_fault == "end" and _node() == "b":
        lose_end()
    torch.set_num_threads(1)
    result = train(config)
    if config.last_fault == "after" and _node() == "b":
        os.kill(os.getpid(), signal.SIGKILL)
    torch.save(result, Path(config.directory, f"{os.environ['MALLETRAIN_WORKER_ID']}.pt"))


if __name__ == "__main__":
    main()
