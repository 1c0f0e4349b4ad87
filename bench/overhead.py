"""What a step costs more with the library than with plain `DistributedDataParallel`, 2 workers.

Both train the same model in the same two processes, in short turns, so that whatever else the
machine does falls on both alike.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Result
from malletrain.testing import LocalJob, WarmParent

#: Many and short: a burst of other work then falls on few of them, or on both halves of one.
TURNS = 120
STEPS_A_TURN = 4
LIMIT = 0.02


def run() -> Iterator[Result]:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as directory, WarmParent() as parent:
        command = [sys.executable, __file__]
        paths = {"PYTHONPATH": str(Path(__file__).parent.parent)}
        # As in production, but for checkpoints, whose cost depends on how often one wants them.
        settings = {"checkpoint_every_s": 3600.0}
        with LocalJob(
            command, Path(directory), parent, settings=settings, environment=paths
        ) as job:
            job.wait_rescaled(job.order(["a", "b"]))
            job.wait_ended(timeout_s=300.0)
        turns = _read(Path(directory))
    ratios = [ours_s / plain_s for ours_s, plain_s in turns]
    overhead = statistics.median(ratios) - 1
    low, high = _interval(ratios)
    yield Result(
        name=f"step, 2 workers (overhead {overhead:+.1%}, {low:+.1%} to {high:+.1%})",
        value=statistics.median(ours_s for ours_s, _ in turns) * 1e3,
        unit="ms",
        target=f"overhead <= {LIMIT:.0%}",
        holds=overhead <= LIMIT,
        reference="DistributedDataParallel",
        reference_value=statistics.median(plain_s for _, plain_s in turns) * 1e3,
    )


def _read(directory: Path) -> list[tuple[float, float]]:
    """Return every turn's seconds a step, ours and plain, of the slower worker."""
    files = [path.read_text().splitlines() for path in sorted(directory.glob("*.turns"))]
    turns = []
    for lines in zip(*files, strict=True):
        pairs = [tuple(map(float, line.split())) for line in lines]
        turns.append((max(p[0] for p in pairs), max(p[1] for p in pairs)))
    return turns


def _interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95% interval of the median, by ranks."""
    ordered = sorted(ratios)
    count = len(ordered)
    reach = round(0.98 * count**0.5)
    low, high = max(0, count // 2 - reach), min(count - 1, count // 2 + reach)
    return ordered[low] - 1, ordered[high] - 1


# -- the worker -----------------------------------------------------------------------------------


def train() -> None:
    import torch  # noqa: PLC0415 - only workers need it
    import torch.distributed as dist  # noqa: PLC0415 - only workers need it
    from torch.nn import functional  # noqa: PLC0415 - only workers need it
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415 - only workers need it

    import malletrain.train as mt  # noqa: PLC0415 - only workers need it, it imports torch
    from bench.wide_model import (  # noqa: PLC0415 - only workers need it, it imports torch
        GLOBAL_BATCH,
        make_data,
        make_model,
        make_optimizer,
    )

    torch.set_num_threads(1)
    data = make_data()
    x_all, y_all = data.tensors
    order = torch.randperm(len(x_all))

    model = make_model()
    optimizer = make_optimizer(model)
    job = mt.attach(model, optimizer, global_batch=GLOBAL_BATCH)

    def start_plain() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        address = f"file://{Path.cwd()}/ddp-store"
        dist.init_process_group("gloo", init_method=address, rank=job.rank, world_size=2)
        plain = make_model()
        return DistributedDataParallel(plain), make_optimizer(plain)

    def plain_turn() -> float:
        began_at_s = time.perf_counter()
        for step in range(STEPS_A_TURN):
            rows = order[step * GLOBAL_BATCH : (step + 1) * GLOBAL_BATCH].chunk(2)[job.rank]
            plain_optimizer.zero_grad()
            functional.cross_entropy(plain(x_all[rows]), y_all[rows]).backward()
            plain_optimizer.step()
        return (time.perf_counter() - began_at_s) / STEPS_A_TURN

    turns = []
    began_at_s, steps = 0.0, 0
    plain = plain_optimizer = None
    for x, y in job.batches(data):
        if steps == STEPS_A_TURN:
            ours_s = (time.perf_counter() - began_at_s) / STEPS_A_TURN
            if plain is None:
                plain, plain_optimizer = start_plain()
                plain_turn()
            turns.append((ours_s, plain_turn()))
            if len(turns) > TURNS:
                break
            steps = -1
        if steps == 0:
            began_at_s = time.perf_counter()
        steps += 1
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        job.report(loss)
    # The first turn still warms up.
    lines = [f"{ours_s} {plain_s}\n" for ours_s, plain_s in turns[1:]]
    Path(f"{os.getpid()}.turns").write_text("".join(lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
