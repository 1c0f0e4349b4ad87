"""The same stalls as `rescale`, through the whole system: agents, controller, journal, decision.

A node is really taken back or killed, so what is timed includes noticing it, writing it down and
deciding what to do. The advisor is the static one: on few cores it would learn that this model
does not gain from more workers, and rightly leave nodes idle.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.harness import Result
from bench.step_times import read, stall_s
from malletrain.cli.client import Client, connect
from malletrain.live.requests import Submission
from malletrain.live.state_dir import StateDir
from malletrain.live.views import JobView

REPETITIONS = 5
NODES = 4
#: Steps that must have ended before and after each event.
STEPS = 4
LIMITS_MS = {"grow 3->4": 150.0, "shrink 4->3": 25.0, "kill 1 of 4": 500.0}
SETTINGS = """
[core.advisor]
kind = "static"
[worker]
report_every_s = 0.1
"""
_PATIENCE_S = 60.0


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as directory:
        stalls = _measure(Path(directory))
    for name, limit_ms in LIMITS_MS.items():
        value_ms = statistics.median(stalls[name]) * 1e3
        yield Result(
            name=f"stall through the whole system, {name} "
            f"({min(stalls[name]) * 1e3:.0f} to {max(stalls[name]) * 1e3:.0f} ms)",
            value=value_ms,
            unit="ms",
            target=f"<= {limit_ms:g} ms",
            holds=value_ms <= limit_ms,
        )


def _measure(directory: Path) -> dict[str, list[float]]:
    stalls: dict[str, list[float]] = {name: [] for name in LIMITS_MS}
    state_dir = StateDir(directory / "state")
    config = directory / "bench.toml"
    config.write_text(SETTINGS)
    _cli(state_dir, "up", "--detach", "--nodes", str(NODES), "--config", str(config))
    try:
        with connect(state_dir) as client:
            client.submit(_submission(directory))
            _await(client, NODES)
            for _ in range(REPETITIONS):
                for name, is_abrupt in (("shrink 4->3", False), ("kill 1 of 4", True)):
                    leaver = client.job("bench").nodes[-1]
                    stalls[name].append(
                        _timed(client, directory, NODES - 1, _removal(client, leaver, is_abrupt))
                    )
                    grown = _timed(client, directory, NODES, lambda: client.add_nodes(1))
                    stalls["grow 3->4"].append(grown)
    finally:
        _cli(state_dir, "down")
    return stalls


def _removal(client: Client, node_id: str, is_abrupt: bool) -> Callable[[], None]:
    return lambda: client.remove_node(node_id, is_abrupt=is_abrupt)


def _timed(client: Client, directory: Path, nodes: int, disturb: Callable[[], None]) -> float:
    """Return the longest stall of those that train before and after the disturbance."""
    begun_s = time.monotonic()
    disturb()
    _await(client, nodes)
    marks = read(directory)
    survivors = [of for of in marks.values() if of[0].at_s < begun_s and of[-1].at_s > begun_s]
    last_s = max(of[-1].at_s for of in survivors)
    return max(stall_s(of, begun_s) for of in survivors if last_s - of[-1].at_s < 1.0)


def _await(client: Client, nodes: int) -> JobView:
    """Wait until the job trains on so many nodes, and has done some steps there."""
    job = _wait(client, lambda job: len(job.nodes) == nodes and job.activity == "training")
    enough = job.done_samples + STEPS * 64
    return _wait(client, lambda job: job.done_samples >= enough and len(job.nodes) == nodes)


def _wait(client: Client, is_so: Callable[[JobView], bool]) -> JobView:
    give_up_s = time.monotonic() + _PATIENCE_S
    while not is_so(job := client.job("bench")):
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"not within {_PATIENCE_S:g} s: {job}")
        time.sleep(0.05)
    return job


def _submission(directory: Path) -> Submission:
    root = Path(__file__).parent.parent
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    return Submission(
        name="bench",
        command=(sys.executable, str(root / "bench" / "rescale.py")),
        cwd=str(directory),
        max_nodes=NODES,
        env=tuple(env.items()),
    )


def _cli(state_dir: StateDir, *arguments: str) -> None:
    command = [sys.executable, "-m", "malletrain.cli", arguments[0]]
    subprocess.run(
        [*command, "--state-dir", str(state_dir.path), *arguments[1:]],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
