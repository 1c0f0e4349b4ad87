"""How fast the journal grows: 100 jobs on 400 nodes that come and go, in virtual time.

The core, the pool of progress reports and the journal are the real ones; what agents would say is
made up. Nodes stay for a time drawn as published ones do (log-normal, median 475 s, mean 1,192 s)
and come back after ten minutes on average; every job reports progress twice a second, as is the
default, and saves a checkpoint each minute. After some minutes in which jobs start and are
measured, the growth of the file is taken over the next. The reference journals every report.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from bench.harness import Result
from malletrain.allocate.exact import ExactAllocator
from malletrain.config import LiveSettings, WorkerDefaults
from malletrain.core.actions import ReleaseNodes, Rescale
from malletrain.core.apply import apply
from malletrain.core.decide import decide_now, has_news
from malletrain.core.events import (
    AnyEvent,
    CheckpointSaved,
    JobSubmitted,
    NodesJoined,
    NodesLeaving,
    NodesLost,
    ProgressReported,
    RescaleDone,
    WokeUp,
)
from malletrain.core.model import Cluster, Job, JobSpec, Node
from malletrain.live.inbox import Entry, merged
from malletrain.live.progress import ProgressPool
from malletrain.live.store import SqliteStore

JOBS = 100
NODES = 400
SETTLING_S = 300.0
MEASURED_S = 400.0
_STAY_MEDIAN_S, _STAY_MEAN_S = 475.0, 1192.0
_AWAY_MEAN_S = 600.0
_GRACE_S = 30.0
_RESCALE_S = 3.0
_DAY_S = 86_400.0
_LIVE = LiveSettings()
_TICK_S = WorkerDefaults().report_every_s
_CHECKPOINT_S = WorkerDefaults().checkpoint_every_s


class Site:
    """What happens by itself, and the controller's answer to it."""

    def __init__(self, store: SqliteStore, journal_every_s: float) -> None:
        self._store = store
        self._pool = ProgressPool(journal_every_s, min(journal_every_s, _LIVE.progress_decide_s))
        self._draw = random.Random(11)  # noqa: S311 - when nodes come and go is no secret
        self._allocator = ExactAllocator()
        self.cluster = Cluster()
        self.now_s = 0.0
        self._serials = count()
        #: (when, serial, event)
        self._coming: list[tuple[float, int, AnyEvent]] = []
        self._decided_at_s = 0.0
        for number in range(JOBS):
            name = f"job{number}"
            spec = JobSpec(id=f"j{number}", name=name, min_nodes=1, max_nodes=16, model_key=name)
            self._expect(0.0, JobSubmitted(at_s=0.0, spec=spec))
        for number in range(NODES):
            self._bring(f"node{number:04}", self._draw.random() * 60.0)

    def run_until(self, end_s: float) -> None:
        while self.now_s < end_s:
            self.now_s += _TICK_S
            events = self._happening()
            entries = self._pool.sift(merged(map(Entry, events)), self.cluster, self.now_s)
            news = [entry.event for entry in entries]
            self._take(news)
            is_quiet = all(isinstance(e, ProgressReported | CheckpointSaved) for e in news)
            due_at_s = self._decided_at_s + _LIVE.progress_decide_s
            if news and (not is_quiet or self.now_s >= due_at_s):
                self._decide()

    def _happening(self) -> list[AnyEvent]:
        events: list[AnyEvent] = []
        while self._coming and self._coming[0][0] <= self.now_s:
            event = heapq.heappop(self._coming)[2]
            events.append(event)
            if isinstance(event, NodesLost):
                away_s = self._draw.expovariate(1 / _AWAY_MEAN_S)
                self._bring(event.node_ids[0], self.now_s + away_s)
        for number, job in enumerate(self.cluster.jobs.values()):
            if job.node_ids and not job.is_broken:
                events.append(self._report(job))
                if (self.now_s + number) % _CHECKPOINT_S < _TICK_S:
                    saved = CheckpointSaved(
                        at_s=self.now_s, job_id=job.spec.id, samples=job.done_samples
                    )
                    events.append(saved)
        return events

    def _report(self, job: Job) -> ProgressReported:
        nodes = len(job.node_ids)
        rate = 1000.0 * nodes**0.85 * self._draw.gauss(1.0, 0.03)
        return ProgressReported(
            at_s=self.now_s + self._draw.random() * 1e-3,
            job_id=job.spec.id,
            generation=job.running_generation,
            nodes=nodes,
            samples=job.done_samples + rate * _TICK_S,
            steps=5,
            samples_per_s=rate,
            variance=(0.05 * rate) ** 2 * self._draw.random(),
            loss=self._draw.random(),
        )

    def _bring(self, node_id: str, at_s: float) -> None:
        spread = math.sqrt(2 * math.log(_STAY_MEAN_S / _STAY_MEDIAN_S))
        until_s = at_s + self._draw.lognormvariate(math.log(_STAY_MEDIAN_S), spread)
        node = Node(node_id, opened_at_s=at_s, group=node_id[:6])
        self._expect(at_s, NodesJoined(at_s=at_s, nodes=(node,)))
        deadline_at_s = until_s + _GRACE_S
        leaving = NodesLeaving(at_s=until_s, node_ids=(node_id,), deadline_at_s=deadline_at_s)
        self._expect(until_s, leaving)

    def _expect(self, at_s: float, event: AnyEvent) -> None:
        heapq.heappush(self._coming, (at_s, next(self._serials), event))

    def _take(self, events: list[AnyEvent]) -> None:
        if events:
            self._store.append(events)
        for event in events:
            self.cluster = apply(self.cluster, event)

    def _decide(self) -> None:
        self._decided_at_s = self.now_s
        self.cluster = apply(self.cluster, WokeUp(at_s=self.now_s))
        decision = decide_now(self.cluster, self._allocator)
        if not has_news(self.cluster, decision):
            return
        self._take([decision])
        for action in decision.actions:
            if isinstance(action, ReleaseNodes):
                for node_id in action.node_ids:
                    lost = NodesLost(at_s=self.now_s, node_ids=(node_id,), reason="it left")
                    self._expect(self.now_s, lost)
            elif isinstance(action, Rescale):
                self._expect(self.now_s + _RESCALE_S, self._done(action))

    def _done(self, order: Rescale) -> RescaleDone:
        return RescaleDone(
            at_s=self.now_s + _RESCALE_S,
            job_id=order.job_id,
            generation=order.generation,
            node_ids=order.node_ids,
            stall_s=0.05,
            samples=self.cluster.jobs[order.job_id].done_samples,
        )


def _measure(journal_every_s: float) -> tuple[float, float, int]:
    """Return the growth in bytes and in events a day, and the bytes of one kept state."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.sqlite")
        store = SqliteStore(path)
        site = Site(store, journal_every_s)
        site.run_until(SETTLING_S)
        before, events_before = _file_bytes(path), store.seq
        site.run_until(SETTLING_S + MEASURED_S)
        after, events_after = _file_bytes(path), store.seq
        store.snapshot(site.cluster)
        state_bytes = _file_bytes(path) - after
        store.close()
    days = MEASURED_S / _DAY_S
    return (after - before) / days, (events_after - events_before) / days, state_bytes


def _file_bytes(path: Path) -> int:
    """The size of the database, with what is in its write-ahead log only."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    return int(pages * page_bytes)


def run() -> Iterator[Result]:
    every_bytes, every_events, _ = _measure(0.0)
    day_bytes, day_events, state_bytes = _measure(_LIVE.progress_journal_s)
    title = f"{JOBS} jobs on {NODES} nodes"
    reference = "every report journalled"
    yield Result(
        f"{title}: journal a day",
        day_bytes / 1e6,
        "MB",
        reference=reference,
        reference_value=every_bytes / 1e6,
    )
    yield Result(
        f"{title}: events a day",
        day_events,
        "events",
        reference=reference,
        reference_value=every_events,
    )
    yield Result(f"{title}: one kept state", state_bytes / 1e6, "MB")
