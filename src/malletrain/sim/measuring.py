"""What jobs report of their speed, and when: agents' reports at the cost of a few events."""

from __future__ import annotations

import heapq
from collections.abc import Collection
from functools import partial
from itertools import count

from malletrain import draws
from malletrain.core.events import AnyEvent, ProgressReported
from malletrain.core.scalability import MEMORY_STEPS
from malletrain.sim.agenda import Agenda
from malletrain.sim.run import Run
from malletrain.sim.settings import WorldSettings

_HOUR_S = 3600.0


class Meter:
    """Lets jobs report when something else happens, or after a while; held ones at once."""

    def __init__(self, settings: WorldSettings, seed: int, agenda: Agenda) -> None:
        self._settings = settings
        self._seed = seed
        self._agenda = agenda
        #: (due, serial, run, the run's serial then): measurements that will be worth a report.
        self._to_measure: list[tuple[float, int, Run, int]] = []
        self._serials = count()
        self._tick_at_s = float("inf")
        #: Jobs that are held at a scale to be measured.
        self._pinned: set[str] = set()

    def pin(self, runs: Collection[Run], now_s: float) -> None:
        """Let these jobs, and no others, report as soon as they can."""
        self._pinned = {run.job.id for run in runs}
        for run in runs:
            if run.order is None and run.node_ids and run.measurements == 0:
                self._tick_by(max(run.steady_from_s + self._settings.measure_after_s, now_s))

    def expect(self, run: Run, now_s: float) -> None:
        """Have a job measured that trains at a new scale from now on."""
        if not run.node_ids:
            return
        due_at_s = now_s + self._settings.measure_after_s
        self._measure_at(run, due_at_s)
        if run.job.id in self._pinned:
            self._tick_by(due_at_s)

    def _measure_at(self, run: Run, due_at_s: float) -> None:
        heapq.heappush(self._to_measure, (due_at_s, next(self._serials), run, run.serial))
        self._tick_by(due_at_s + self._settings.report_every_s)

    def _tick_by(self, at_s: float) -> None:
        if at_s < self._tick_at_s:
            self._tick_at_s = at_s
            self._agenda.put(at_s, partial(self._tick, at_s))

    def _tick(self, at_s: float) -> list[AnyEvent]:
        if at_s != self._tick_at_s:
            return []
        self._tick_at_s = float("inf")
        events = self.reports(at_s)
        if self._to_measure:
            self._tick_by(self._to_measure[0][0] + self._settings.report_every_s)
        return events

    def reports(self, now_s: float) -> list[AnyEvent]:
        """Return the reports that are worth making now."""
        events: list[AnyEvent] = []
        while self._to_measure and self._to_measure[0][0] <= now_s:
            _, _, run, serial = heapq.heappop(self._to_measure)
            if run.serial != serial or run.order is not None:
                continue
            events += self.measured(run, now_s)
            sat_s = now_s - run.steady_from_s
            # Each report doubles what is known; then it only tells how far the job is.
            is_enough = run.measured_steps >= MEMORY_STEPS
            self._measure_at(run, now_s + (_HOUR_S if is_enough else min(sat_s, _HOUR_S)))
        return events

    def measured(self, run: Run, now_s: float) -> list[AnyEvent]:
        """Return the report of the time since the last one; a stretch too short is none."""
        until_s = min(now_s, run.stops_at_s)
        if until_s - run.steady_from_s < self._settings.measure_after_s:
            return []
        steps = int((until_s - run.measured_to_s) / self._settings.step_s)
        if steps <= 0:
            return []
        run.advance(now_s)
        run.measurements += 1
        run.measured_to_s = until_s
        run.measured_steps += steps
        noise = self._settings.step_noise
        key = ("steps", run.job.id, run.generation, run.measurements)
        error = draws.normal(self._seed, *key) * noise / steps**0.5
        report = ProgressReported(
            at_s=now_s,
            job_id=run.job.id,
            generation=run.generation,
            nodes=len(run.node_ids),
            samples=run.samples,
            steps=steps,
            samples_per_s=run.samples_per_s * max(1.0 + error, 0.01),
            variance=(noise * run.samples_per_s) ** 2,
        )
        return [report]
