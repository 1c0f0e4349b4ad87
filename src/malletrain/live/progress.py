"""Reports of progress, put together before they are journalled.

They are by far the most of what happens, and each says little that the one before did not. So the
reports of one job in one generation are pooled for a while. Nothing is lost by it: the pool has
the number, mean and variance of all steps, and goes to the journal ahead of anything else that
concerns its job, so that every other event finds the state as if each report had been journalled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from malletrain.core.events import AnyEvent, NodesLost, ProgressReported
from malletrain.core.model import Cluster
from malletrain.live.inbox import Entry


def pooled(before: ProgressReported, after: ProgressReported) -> ProgressReported:
    """Make two reports one that has the steps of both.

    Mean and variance by Chan's update, as `core.scalability` merges windows: in which order
    windows are merged makes no difference.
    """
    one, two = _usable(before), _usable(after)
    steps = one.steps + two.steps
    share = two.steps / steps if steps else 1.0
    shift = two.samples_per_s - one.samples_per_s
    variance = (1 - share) * one.variance + share * two.variance + share * (1 - share) * shift**2
    return replace(
        two,
        samples=max(one.samples, two.samples),
        steps=steps,
        samples_per_s=one.samples_per_s + share * shift,
        variance=variance,
        loss=one.loss if two.loss is None else two.loss,
    )


def _usable(report: ProgressReported) -> ProgressReported:
    """Leave out a window that is no measurement: it must not spoil the others."""
    if report.steps > 0 and 0 < report.samples_per_s < math.inf:
        return report
    return replace(report, steps=0, samples_per_s=0.0, variance=0.0)


_Kind = tuple[str, int, int]


def _kind(report: ProgressReported) -> _Kind:
    """Reports of one kind can be pooled."""
    return report.job_id, report.generation, report.nodes


def with_progress_pooled(entries: Iterable[Entry]) -> list[Entry]:
    """Put reports that are alike where the first is, for times when nothing can be written."""
    kept: list[Entry] = []
    places: dict[_Kind, int] = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, ProgressReported):
            place = places.setdefault(_kind(event), len(kept))
            if place < len(kept):
                earlier = kept[place].event
                assert isinstance(earlier, ProgressReported)
                kept[place] = Entry(pooled(earlier, event))
                continue
        kept.append(entry)
    return kept


@dataclass(slots=True)
class _Written:
    """What the journal has of a job's newest generation."""

    generation: int
    at_s: float
    #: A measurement was among it.
    has_measured: bool


class ProgressPool:
    """Holds reports back until they are due, or something else happens to their job."""

    def __init__(self, journal_every_s: float, pinned_every_s: float) -> None:
        self._journal_every_s = journal_every_s
        #: A job that is held at a scale to be measured shall not wait for what was measured.
        self._pinned_every_s = pinned_every_s
        self._held: dict[str, ProgressReported] = {}
        self._written: dict[str, _Written] = {}

    def sift(self, entries: Iterable[Entry], cluster: Cluster, now_s: float) -> list[Entry]:
        """Return what is to be journalled now, in order; keep the rest."""
        result: list[Entry] = []
        for entry in entries:
            event = entry.event
            if isinstance(event, ProgressReported):
                result += self._take(event, cluster, now_s)
            else:
                result += self._released(self._concerned(event, cluster), now_s)
                result.append(entry)
        due = [j for j in self._held if now_s >= self._due_at_s(j, cluster)]
        return result + self._released(due, now_s)

    def due_at_s(self, cluster: Cluster) -> float | None:
        """When `sift` has something to return even if nothing happens."""
        return min((self._due_at_s(job_id, cluster) for job_id in self._held), default=None)

    def forget(self, job_id: str) -> None:
        """Nothing will be reported of the job any more."""
        self._held.pop(job_id, None)
        self._written.pop(job_id, None)

    def _take(self, report: ProgressReported, cluster: Cluster, now_s: float) -> list[Entry]:
        job_id = report.job_id
        held = self._held.get(job_id)
        result: list[Entry] = []
        if held and _kind(held) == _kind(report):
            report = pooled(held, report)
        elif held:
            result = self._released([job_id], now_s)
        self._held[job_id] = report
        written = self._written.get(job_id)
        is_first = written is None or written.generation != report.generation
        # How fast a new scale is, the allocator wants to know at once.
        is_first_measured = written and report.steps and not written.has_measured
        # Those of jobs of one model stay in their order, as far as they need not wait.
        if is_first or is_first_measured or now_s >= self._due_at_s(job_id, cluster):
            result += self._released([job_id], now_s)
        return result

    def _released(self, job_ids: Iterable[str], now_s: float) -> list[Entry]:
        entries = []
        for job_id in job_ids:
            report = self._held.pop(job_id)
            before = self._written.get(job_id)
            has_measured = report.steps > 0
            if before and before.generation == report.generation:
                has_measured = has_measured or before.has_measured
            self._written[job_id] = _Written(report.generation, now_s, has_measured)
            entries.append(Entry(report))
        return entries

    def _concerned(self, event: AnyEvent, cluster: Cluster) -> list[str]:
        """Jobs of which something is held and to which this happens."""
        if isinstance(event, NodesLost):
            jobs = [cluster.jobs[j] for j in self._held if j in cluster.jobs]
            lost = set(event.node_ids)
            return [job.spec.id for job in jobs if not lost.isdisjoint(job.held_node_ids)]
        job_id = getattr(event, "job_id", None)
        return [job_id] if job_id in self._held else []

    def _due_at_s(self, job_id: str, cluster: Cluster) -> float:
        job = cluster.jobs.get(job_id)
        is_pinned = job is not None and job.pin is not None
        every_s = self._pinned_every_s if is_pinned else self._journal_every_s
        return self._written[job_id].at_s + every_s
