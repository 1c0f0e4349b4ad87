"""The machine as its other users see it, in lines for the live view."""

from __future__ import annotations

import textwrap

from malletrain.live.views import ClusterView
from slurm_demo.others import MainJob, Others

_COLUMNS = 78


def lines(view: ClusterView, others: Others) -> list[str]:
    """Say who holds each node, and how long each main job waited."""
    holders = _holders(view, others)
    nodes = [f"{node}:{holders.get(node, '-')}" for node in others.cluster.nodes]
    jobs = [f"{number}:{_of_job(job)}" for number, job in enumerate(others.jobs, start=1)]
    return [
        *_wrapped("machine", nodes),
        *_wrapped(f"main jobs, of {len(others.arrivals)}", jobs or ["none yet"]),
    ]


def _holders(view: ClusterView, others: Others) -> dict[str, str]:
    names = {job.id: job.name for job in view.jobs}
    held = dict.fromkeys(others.reserved_nodes, "reserved")
    held |= {node.host: names.get(node.job_id or "", "pilot") for node in view.nodes}
    for number, job in enumerate(others.jobs, start=1):
        if job.is_running:
            held |= dict.fromkeys(job.hosts, f"main#{number}")
    return held


def _of_job(job: MainJob) -> str:
    size = f"{job.arrival.nodes}n"
    if job.began_at_s is None:
        return f"{size}/waits"
    return f"{size}/{job.waited_s:.1f}s" + ("*" if job.is_running else "")


def _wrapped(title: str, words: list[str]) -> list[str]:
    indent = " " * (len(title) + 2)
    return textwrap.wrap(
        f"{title}  {'  '.join(words)}",
        _COLUMNS,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
