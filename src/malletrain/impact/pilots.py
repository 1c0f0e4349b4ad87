"""Which jobs of the accounting are our pilots, and how they ended."""

from __future__ import annotations

import enum
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from malletrain.impact.accounting import RESOLUTION_S, BatchJob
from malletrain.impact.stays import Stay

#: Every instance's pilots are called so.
_PREFIX = "malle-"
_TASKS = re.compile(r"_\[([\d,-]+)")
#: Clocks of the scheduler's machine and of the controller's may differ so much.
CLOCKS_APART_S = 1.0


class PilotEnd(enum.Enum):
    """How a pilot ended, as the accounting has it."""

    COMPLETED = "completed"
    PREEMPTED = "preempted"
    TIMEOUT = "timeout"
    NODE_FAIL = "node failed"
    CANCELLED_BY_US = "cancelled by us"
    CANCELLED_BY_HAND = "cancelled by hand"
    #: It never called: it may have been either.
    CANCELLED = "cancelled"
    FAILED = "failed"
    #: When the accounting was written.
    RUNNING = "running"


_ENDS = {
    "COMPLETED": PilotEnd.COMPLETED,
    "PREEMPTED": PilotEnd.PREEMPTED,
    "TIMEOUT": PilotEnd.TIMEOUT,
    "DEADLINE": PilotEnd.TIMEOUT,
    "NODE_FAIL": PilotEnd.NODE_FAIL,
    "RUNNING": PilotEnd.RUNNING,
    "COMPLETING": PilotEnd.RUNNING,
}


@dataclass(frozen=True, slots=True)
class Queue:
    """The accounting, divided; by host the pilots once more."""

    pilots: tuple[BatchJob, ...]
    #: The site's own jobs; pilots of other instances are neither.
    main_jobs: tuple[BatchJob, ...]
    pilots_of: Mapping[str, Sequence[BatchJob]]

    def pilot_of(self, stay: Stay) -> BatchJob | None:
        """Return the pilot that held a node: when it was asked back, lost, or joined at least."""
        at_s = stay.asked_at_s or stay.gone_at_s or stay.joined_at_s
        pilots = self.pilots_of.get(stay.host, ())
        return next((pilot for pilot in pilots if _ran_at(pilot, at_s)), None)


def divide(jobs: Iterable[BatchJob], pilot_ids: Collection[str], names: Collection[str]) -> Queue:
    """Tell pilots from main jobs.

    Args:
        jobs: the accounting.
        pilot_ids: those that the journal knows.
        names: those under which pilots were submitted, as far as that was logged.
    """
    pilots, main_jobs = [], []
    for job in jobs:
        is_any_pilot = job.name.startswith(_PREFIX)
        if job.id in pilot_ids or job.name in names or (is_any_pilot and not names):
            pilots.append(job)
        elif not is_any_pilot:
            main_jobs.append(job)
    pilots_of: dict[str, list[BatchJob]] = defaultdict(list)
    for pilot in pilots:
        for host in pilot.hosts:
            pilots_of[host].append(pilot)
    return Queue(tuple(pilots), tuple(main_jobs), pilots_of)


def ran(job: BatchJob, from_s: float, to_s: float) -> bool:
    """Whether it had a node in the period."""
    return node_s(job, from_s, to_s) > 0


def node_s(job: BatchJob, from_s: float, to_s: float) -> float:
    """Return the node-seconds that a job had in the period."""
    if job.started_at_s is None:
        return 0.0
    ended_at_s = to_s if job.ended_at_s is None else job.ended_at_s
    return len(job.hosts) * max(0.0, min(ended_at_s, to_s) - max(job.started_at_s, from_s))


def end_of(pilot: BatchJob, pilot_id: str | None, cancelled_by_us: Collection[str]) -> PilotEnd:
    """Say how a pilot ended, and, of one that was cancelled, by whom.

    Args:
        pilot: as the accounting has it; jobcomp numbers tasks of arrays anew.
        pilot_id: its id in the journal; None where it is not known there.
        cancelled_by_us: such ids, of those that we cancelled.
    """
    state, *_ = pilot.state.split(maxsplit=1) or [""]
    if state != "CANCELLED":
        return _ENDS.get(state, PilotEnd.FAILED)
    if pilot_id in cancelled_by_us or pilot.id in cancelled_by_us:
        return PilotEnd.CANCELLED_BY_US
    return PilotEnd.CANCELLED if pilot_id is None else PilotEnd.CANCELLED_BY_HAND


def most_waiting(pilots: Sequence[BatchJob], from_s: float, to_s: float) -> int:
    """Return the most pilots that waited in the queue at once."""
    changes: Counter[float] = Counter()
    for pilot in pilots:
        left_at_s = pilot.started_at_s if pilot.hosts else pilot.ended_at_s
        submitted_at_s = pilot.submitted_at_s
        is_in = left_at_s is None or left_at_s > from_s
        if submitted_at_s is None or submitted_at_s > to_s or not is_in:
            continue
        changes[max(submitted_at_s, from_s)] += _num_tasks(pilot.id)
        if left_at_s is not None:
            changes[max(left_at_s, submitted_at_s)] -= _num_tasks(pilot.id)
    return max(itertools.accumulate(count for _, count in sorted(changes.items())), default=0)


def _ran_at(pilot: BatchJob, at_s: float) -> bool:
    if pilot.started_at_s is None:
        return False
    ended_at_s = at_s if pilot.ended_at_s is None else pilot.ended_at_s
    is_begun = pilot.started_at_s - CLOCKS_APART_S <= at_s
    return is_begun and at_s <= ended_at_s + RESOLUTION_S + CLOCKS_APART_S


def _num_tasks(job_id: str) -> int:
    """Return how many tasks a line stands for: those that still wait share one."""
    if (match := _TASKS.search(job_id)) is None:
        return 1
    ranges = [part.partition("-") for part in match[1].split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)
