"""Replay: events, state, decisions and their consequences, in virtual time.

The same core as the live controller's: `apply` and `decide` are called in the same order, on the
same occasions (`core.pace`). What differs is who says what happened: here it is the `World`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO

import msgspec
from msgspec.structs import replace

from malletrain.allocate import allocator
from malletrain.allocate.remembering import Remembering
from malletrain.core import metrics
from malletrain.core.apply import apply
from malletrain.core.decide import decide_now, has_news
from malletrain.core.events import (
    AnyEvent,
    Configured,
    JobFinished,
    JobsForgotten,
    ProgressReported,
)
from malletrain.core.model import Cluster
from malletrain.core.pace import Pace
from malletrain.core.settings import CoreSettings
from malletrain.errors import InvariantError
from malletrain.sim.agenda import Agenda
from malletrain.sim.outcome import Account, checked_totals, compared_curves, job_result
from malletrain.sim.policies import Policy
from malletrain.sim.results import PolicyResult
from malletrain.sim.settings import ReplayOptions
from malletrain.sim.world import World
from malletrain.traces.intervals import IdleInterval
from malletrain.workloads.workload import Workload

#: Decisions at one point in time after which it is clear that they never settle.
_MOST_ROUNDS = 1000
_PROGRESS_EVERY_STEPS = 200


class Interrupted(Exception):  # noqa: N818 - nothing is wrong
    """Raised by the progress callback to stop early; what there is, is kept."""


class Replay:
    """One policy's replay of one workload on one trace."""

    def __init__(
        self,
        intervals: Iterable[IdleInterval],
        workload: Workload,
        policy: Policy,
        options: ReplayOptions,
        *,
        length_s: float,
        journal: BinaryIO | None = None,
    ) -> None:
        """Take intervals sorted by their start, of a trace of this length.

        `journal` gets every decision, a line of JSON each.
        """
        self._workload = workload
        self._policy = policy
        self._options = options
        self._end_s = length_s if options.until_s is None else min(options.until_s, length_s)
        self._now_s = options.from_s
        self._agenda = Agenda()
        self.world = World(intervals, workload, policy, options, self._agenda)
        self._allocator = Remembering(allocator(policy.allocator))
        self.cluster = Cluster(now_s=options.from_s)
        self._pace = Pace(options.progress_decide_s)
        self._journal = journal
        self._digest = hashlib.sha256()
        self._num_events = 0
        self._num_decisions = 0
        self._rounds = 0
        self._ended: list[Account] = []
        self._apply(Configured(at_s=self._now_s, settings=core_settings(options, policy)))

    def run(self, on_progress: Callable[[float, float], None] | None = None) -> PolicyResult:
        """Replay up to the end of the trace; `on_progress` is told the time reached and the end.

        Raises:
            InvariantError: the ledger does not add up: a bug of ours.
        """
        steps = 0
        while (at_s := self._next_at_s()) is not None and at_s < self._end_s:
            self._step(at_s)
            steps += 1
            if on_progress and steps % _PROGRESS_EVERY_STEPS == 0:
                try:
                    on_progress(at_s, self._end_s)
                except Interrupted:
                    self._end_s = at_s
                    break
        return self._result()

    def _next_at_s(self) -> float | None:
        at_s = self._agenda.next_at_s()
        if not self._pace.is_owed:
            return at_s
        return self._pace.due_at_s if at_s is None else min(at_s, self._pace.due_at_s)

    def _step(self, at_s: float) -> None:
        self._rounds = self._rounds + 1 if at_s == self._now_s else 0
        if self._rounds > _MOST_ROUNDS:
            raise InvariantError(f"decisions at {at_s} s never settle")
        if at_s < self._now_s:
            raise InvariantError(f"something is to happen at {at_s} s, before {self._now_s} s")
        self._now_s = at_s
        events = self.world.pass_to(at_s) if self._agenda.next_at_s() == at_s else []
        for event in events:
            self._apply(event)
        if self._pace.is_due(events, at_s):
            self._decide(events)

    def _apply(self, event: AnyEvent) -> None:
        self.cluster = apply(self.cluster, event)
        self._num_events += not isinstance(event, ProgressReported | JobsForgotten)
        if isinstance(event, JobFinished):
            entry = self.cluster.ledger.jobs[event.job_id]
            self._ended.append(Account(self.world.ended[event.job_id], entry, event.at_s))

    def _decide(self, events: Sequence[AnyEvent]) -> None:
        self._pace.decided(self._now_s)
        # Nothing need have happened just now where a decision was owed.
        self.cluster = replace(self.cluster, now_s=self._now_s)
        decision = decide_now(self.cluster, self._allocator, events)
        if not has_news(self.cluster, decision):
            return
        self._num_decisions += 1
        line = msgspec.json.encode(decision) + b"\n"
        self._digest.update(line)
        if self._journal:
            self._journal.write(line)
        self.cluster = apply(self.cluster, decision)
        self.world.execute(decision)

    def _result(self) -> PolicyResult:
        end_s = self._end_s
        self.world.finish(end_s)
        self.cluster = replace(self.cluster, now_s=max(end_s, self.cluster.now_s))
        present = [
            Account(run, metrics.job_ledger(self.cluster, job_id), None)
            for job_id, run in self.world.runs.items()
        ]
        accounts = [*self._ended, *present]
        jobs = tuple(map(job_result, accounts))
        submitted = [job.submitted_at_s for job in self._workload.jobs]
        ends = [account.finished_at_s for account in self._ended if account.finished_at_s]
        is_done = not present and self.world.is_exhausted and bool(ends)
        return PolicyResult(
            policy=self._policy.name,
            seed=self._options.seed,
            length_s=end_s - self._options.from_s,
            done_samples=sum(job.done_samples for job in jobs),
            done_one_node_s=sum(a.run.samples / a.run.rates[1] for a in accounts),
            makespan_s=max(ends) - max(min(submitted), self._options.from_s) if is_done else None,
            events=self._num_events,
            decisions=self._num_decisions,
            jobs_finished=len(self._ended),
            jobs_unfinished=len(present),
            node_s=checked_totals(self.cluster, self.world, accounts),
            overtime_node_s=self.world.overtime_node_s,
            longest_overtime_s=self.world.longest_overtime_s,
            redone_samples=sum(account.run.redone_samples for account in accounts),
            scale_ups=sum(job.scale_ups for job in jobs),
            scale_downs=sum(job.scale_downs for job in jobs),
            losses=sum(job.losses for job in jobs),
            series=self.world.recorder.series(self._options.from_s, end_s),
            jobs=jobs,
            curves=compared_curves(
                self.cluster,
                self._workload,
                [account.run for account in accounts],
                self._options.identity,
            ),
            journal_sha256=self._digest.hexdigest(),
        )


def core_settings(options: ReplayOptions, policy: Policy) -> CoreSettings:
    """Return the settings with the policy's advisor."""
    advisor = replace(options.core.advisor, kind=policy.advisor)
    return replace(options.core, advisor=advisor)
