"""What our presence adds to the start of a main job, on a one-machine Slurm with eight nodes."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Result
from bench.harvesting import Site, settings_text
from malletrain.devcluster import Settings

NODES = 8
RUNS = 20
_GRACES_S = (0, 10, 30)
#: Nodes of the main job -> the most that it may wait longer in the middle.
_MEDIAN_LIMITS_S = {1: 0.5, NODES: 1.5}
_LIMIT_S = 3.0
#: Long enough for any run.
_EPOCHS = 100_000


def run() -> Iterator[Result]:
    for grace_s in _GRACES_S:
        with tempfile.TemporaryDirectory(prefix="mt-") as directory:
            yield from _measure(Path(directory), grace_s)


def _measure(directory: Path, grace_s: int) -> Iterator[Result]:
    with Site(directory, Settings(nodes=NODES, grace_s=grace_s)) as site:
        alone = {nodes: [_start(site, nodes) for _ in range(RUNS)] for nodes in _MEDIAN_LIMITS_S}
        site.up(settings_text(grace_s))
        site.submit("harvest", NODES, _EPOCHS)
        for nodes, limit_s in _MEDIAN_LIMITS_S.items():
            with_us = []
            for _ in range(RUNS):
                site.wait_training(NODES)
                with_us.append(site.main_job(nodes).wait_s)
            yield from _results(grace_s, nodes, limit_s, alone[nodes], with_us)


def _start(site: Site, nodes: int) -> float:
    site.cluster.wait_until_idle()
    return site.main_job(nodes).wait_s


def _results(
    grace_s: int, nodes: int, limit_s: float, alone: list[float], with_us: list[float]
) -> Iterator[Result]:
    empty_s = statistics.median(alone)
    added = [wait_s - empty_s for wait_s in with_us]
    what = f"grace {grace_s} s, a main job of {nodes}, added to its start"
    yield Result(
        f"{what}, median of {len(added)} (waits {min(with_us):.2f} to {max(with_us):.2f} s)",
        statistics.median(added),
        "s",
        f"<= {limit_s:g} s",
        statistics.median(added) <= limit_s,
        "its wait on the empty cluster",
        empty_s,
    )
    yield Result(f"{what}, most", max(added), "s", f"<= {_LIMIT_S:g} s", max(added) <= _LIMIT_S)
