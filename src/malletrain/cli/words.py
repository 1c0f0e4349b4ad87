"""Say numbers, times and states in few characters."""

from __future__ import annotations

import re
from collections.abc import Iterable

from malletrain.live.views import JobView, NodeView

#: For what is not known yet.
NO_FIGURE = "\N{EN DASH}"
_NUMBER = re.compile(r"[0-9]+")
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def in_order(nodes: Iterable[NodeView]) -> list[NodeView]:
    """Sort nodes by group, then by id, numbers by their value: node-2 before node-10."""
    return sorted(nodes, key=lambda node: (_natural(node.group), _natural(node.id)))


def _natural(name: str) -> list[tuple[str, int]]:
    numbers = [int(number) for number in _NUMBER.findall(name)]
    return list(zip(_NUMBER.split(name), [*numbers, -1], strict=True))


def compact(number: float) -> str:
    """Write a number with three significant digits and a unit prefix: 950, 1.2k, 45k, 1.2M."""
    for scale, prefix in _SCALES:
        if abs(number) >= 0.9995 * scale:
            return f"{_three_digits(number / scale)}{prefix}"
    return _three_digits(number)


def _three_digits(number: float) -> str:
    if abs(number) >= 99.95 or number == int(number):
        return f"{number:.0f}"
    return f"{number:.1f}" if abs(number) >= 9.995 else f"{number:.2f}"


def duration(seconds: float) -> str:
    """Write a duration in its two largest units: 0.4s, 12s, 3m12s, 2h05m, 3d04h."""
    if seconds < 9.95:
        return f"{seconds:.0f}s" if seconds == int(seconds) else f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def loss(value: float | None) -> str:
    """Write a loss in at most 8 characters."""
    if value is None:
        return "-"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e6 else f"{value:.2e}"


def ago(seconds: float) -> str:
    return f"{duration(float(round(max(seconds, 0.0))))} ago"


def headline(text: str) -> str:
    """Return the first line, with nothing in it that a terminal would obey."""
    first, *_ = text.splitlines() or [""]
    return "".join(letter if letter.isprintable() else "?" for letter in first)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def status(job: JobView) -> str:
    """Return one word for what a job does: its activity while it lives, how it ended after."""
    if job.activity in ("over", "stopping"):
        return job.phase if job.activity == "over" else job.activity
    if job.activity == "waiting" and job.phase == "suspended":
        return job.phase
    if job.activity == "training" and job.pinned_nodes is not None:
        return "profiling"
    return job.activity


def rate(job: JobView) -> str:
    """Write samples/s; a job that trains has some, also before it first says how many."""
    return (
        NO_FIGURE
        if not job.samples_per_s and job.activity == "training"
        else compact(job.samples_per_s)
    )


def progress(job: JobView) -> str:
    """Write the samples done, of how many, and the percentage where the total is known."""
    if not job.work_samples:
        return compact(job.done_samples)
    share = min(job.done_samples / job.work_samples, 1.0)
    return f"{compact(job.done_samples)}/{compact(job.work_samples)} {share:4.0%}"


def rescales(job: JobView) -> str:
    """Write rescales up, down, and members lost."""
    return f"{job.scale_ups}/{job.scale_downs}/{job.losses}"


def node_counts(job: JobView) -> str:
    """Write the nodes it has, and those of the rescale under way."""
    if job.target_nodes is None:
        return f"{len(job.nodes)}"
    return f"{len(job.nodes)}→{len(job.target_nodes)}"
