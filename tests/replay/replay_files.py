"""Small traces and workloads as files, for tests of what reads them."""

from __future__ import annotations

from pathlib import Path

_ROUND_S = 600.0


def write_trace(path: Path, *, nodes: int = 8, rounds: int = 12) -> Path:
    """Write a log in which up to 32 nodes come and go every ten minutes or so."""
    rows = [
        (
            number * 11 + turn * _ROUND_S,
            f"c{number // 4}n{number}",
            (turn + 1) * _ROUND_S - 7 * number,
        )
        for number in range(nodes)
        for turn in range(rounds)
        if (number + turn) % 3
    ]
    lines = [f"{node},{from_s:g},{to_s:g}" for from_s, node, to_s in sorted(rows)]
    path.write_text("\n".join(["node,idle_from_s,idle_to_s", *lines]) + "\n")
    return path


JOBS = """
[curves]
steep = [[1, 100.0], [8, 700.0]]
flat = [[1, 900.0], [8, 1500.0]]

[[sets]]
job = "trial"
count = 4
submitted_at_s = 100.0
every_s = 60.0
scalability = "steep"
max_nodes = 8
work_samples = 2.0e5
scale_up_cost_s = 4.0
scale_down_cost_s = 2.0

[[jobs]]
job = "big"
submitted_at_s = 600.0
scalability = "flat"
max_nodes = 8
work_samples = 4.0e6
scale_up_cost_s = 4.0
scale_down_cost_s = 2.0
"""


def write_jobs(path: Path, *, more: str = "") -> Path:
    """Write five jobs; `more` is of the last one."""
    path.write_text(JOBS + more)
    return path
