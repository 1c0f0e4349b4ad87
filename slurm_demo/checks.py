"""What must have been true of the run; each check says in one line what it found."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from demo.checks import Check
from malletrain.impact.stays import Held, Leave
from slurm_demo.others import Others

#: What our presence may add to a main job's start, in the middle and at most. GraceTime is 30 s.
_MEDIAN_ADDED_S = 1.5
_MOST_ADDED_S = 3.0
#: Of the node-seconds that others left idle. Holes last seconds here, of which importing PyTorch
#: on few cores takes several; `slurm-stream` among the benchmarks holds longer ones to more.
LEAST_TRAINING = 1 / 3


def not_delayed(others: Others, alone_s: Mapping[int, float]) -> Check:
    """Compare each main job's wait with that of as large a one on the empty machine."""
    ended = [job for job in others.jobs if job.ended_at_s is not None]
    added_s = [job.waited_s - alone_s[job.arrival.nodes] for job in ended]
    if len(ended) < len(others.arrivals):
        return Check(False, f"{len(ended)} of {len(others.arrivals)} main jobs ran to their end")
    median_s, most_s = statistics.median(added_s), max(added_s)
    return Check(
        median_s <= _MEDIAN_ADDED_S and most_s <= _MOST_ADDED_S,
        f"all {len(ended)} main jobs ran to their end; we added to their wait {median_s:.2f} s in "
        f"the middle and {most_s:.2f} s at most (they may be {_MEDIAN_ADDED_S:g} and "
        f"{_MOST_ADDED_S:g} s)",
    )


def gave_way(held: Held) -> Check:
    asked = sum(stay.leave is Leave.ASKED for stay in held.stays)
    return Check(asked > 0, f"nodes that Slurm asked back from us: {asked}")


def harvested(held: Held, others: Others) -> Check:
    """Compare training with what others left idle from the first main job to the last."""
    offered_s = (held.to_s - held.from_s) * len(others.cluster.nodes)
    idle_s = offered_s - others.node_s()
    training_s = held.node_s.training + held.node_s.profiling
    return Check(
        training_s >= LEAST_TRAINING * idle_s,
        f"of {idle_s:,.0f} node-seconds that others left idle, {training_s:,.0f} were training "
        f"({training_s / idle_s:.0%}, at least {LEAST_TRAINING:.0%} were to be)",
    )


def none_drained(reasons: str, states: Mapping[str, str]) -> Check:
    """Judge what `sinfo -R` says, and the states of all nodes at the end."""
    wrong: Sequence[str] = [f"{n} is {state}" for n, state in states.items() if state != "idle"]
    found = "; ".join(filter(None, [" ".join(reasons.split()), *wrong]))
    return Check(not found, found or f"no node was drained, all {len(states)} are idle again")
