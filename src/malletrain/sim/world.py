"""The world: lets nodes come and go and jobs train, carries out decisions, says what happened.

It knows the truth (the trace, the curves, what fails when) and tells the system what agents and
workers would. The system's orders may be overtaken by what happens: as in life, every order ends
in one event, and one of an older generation changes nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from malletrain import draws
from malletrain.core.actions import ReleaseNodes, Rescale, Stop, WakeAt
from malletrain.core.events import (
    AnyEvent,
    DecisionTaken,
    JobFinished,
    JobsForgotten,
    JobSubmitted,
    NodesJoined,
    NodesLeaving,
    NodesLost,
    RescaleDone,
    RescaleFailed,
    WokeUp,
)
from malletrain.core.model import JobSpec, Node
from malletrain.sim.agenda import Agenda
from malletrain.sim.backlog import Backlog
from malletrain.sim.courses import Courses, ExactCourses, PapersCourses, stalls_s
from malletrain.sim.measuring import Meter
from malletrain.sim.moments import Moment, moments
from malletrain.sim.policies import Policy
from malletrain.sim.recorder import Recorder
from malletrain.sim.run import Order, Run
from malletrain.sim.settings import LedgerKind, ModelIdentity, ReplayOptions
from malletrain.traces.intervals import IdleInterval
from malletrain.workloads.workload import MalleableJob, Workload

_RELEASED = "released"


class World:
    def __init__(
        self,
        intervals: Iterable[IdleInterval],
        workload: Workload,
        policy: Policy,
        options: ReplayOptions,
        agenda: Agenda,
    ) -> None:
        self._workload = workload
        self._policy = policy
        self._options = options
        self._settings = options.world
        self._agenda = agenda
        self._classes = sorted({job.job_class or job.curve for job in workload.jobs})
        self.recorder = Recorder(self._classes)
        self._courses: Courses = (
            ExactCourses(options.world, options.seed)
            if options.ledger is LedgerKind.EXACT
            else PapersCourses(options.world)
        )
        #: Jobs that are in the system, by id.
        self.runs: dict[str, Run] = {}
        self.ended: dict[str, Run] = {}
        #: Nodes we hold: since when, and since when they are wanted back.
        self._held_since_s: dict[str, float] = {}
        self._asked_at_s: dict[str, float] = {}
        #: Node -> the job that trains on it.
        self._used_by: dict[str, Run] = {}
        #: Idle again before we had given them back.
        self._returning: dict[str, IdleInterval] = {}
        self.overtime_node_s = 0.0
        self.longest_overtime_s = 0.0
        self._meter = Meter(options.world, options.seed, agenda)
        #: The newest time asked for by `WakeAt`; it replaces those before.
        self._wake_at_s = float("inf")
        #: Jobs whose end the system knows of, and that it is to forget.
        self._to_forget: list[str] = []
        #: The papers' jobs that have done their work, until the next moment.
        self._done: dict[str, Run] = {}
        self._jobs_expected_at_s = float("inf")
        self._backlog = Backlog(workload, options)
        self._moments: Iterator[Moment] = moments(intervals, options)
        self._expect_moment()
        self._expect_jobs(options.from_s)

    def pass_to(self, at_s: float) -> list[AnyEvent]:
        """Let happen what is due then, and return what the system is told of it."""
        over, self._to_forget = tuple(self._to_forget), []
        happened: list[AnyEvent] = []
        while self._agenda.next_at_s() == at_s:
            happened += self._agenda.pop()()
        forgotten = [JobsForgotten(at_s=at_s, job_ids=over)] if over else []
        return [*forgotten, *self._meter.reports(at_s), *happened]

    # -- the trace ---------------------------------------------------------------------------------

    def _expect_moment(self) -> None:
        moment = next(self._moments, None)
        if moment is not None:
            self._agenda.put(max(moment.at_s, self._options.from_s), partial(self._live, moment))

    def _live(self, moment: Moment) -> list[AnyEvent]:
        self._expect_moment()
        at_s = max(moment.at_s, self._options.from_s)
        events: list[AnyEvent] = []
        # One that was asked for before must still be given back by the first deadline.
        asked = [n for n in moment.asked if n in self._held_since_s and n not in self._asked_at_s]
        if asked:
            events.append(self._ask_back(asked, at_s))
        if lost := [node for node in moment.lost if node in self._held_since_s]:
            events += self._lose(lost, "taken without notice", at_s)
        if not self._courses.is_prompt:
            events += self._ended_before(at_s)
        if moment.joined:
            events += self._join(moment.joined, at_s)
        if not self._courses.is_prompt:
            events += self._submissions(at_s)
        return events

    def _ask_back(self, node_ids: Sequence[str], at_s: float) -> NodesLeaving:
        deadline_at_s = at_s + self._settings.grace_s
        for node_id in node_ids:
            self._asked_at_s[node_id] = at_s
        self._agenda.put(deadline_at_s, partial(self._expire, node_ids, at_s, deadline_at_s))
        return NodesLeaving(at_s=at_s, node_ids=tuple(node_ids), deadline_at_s=deadline_at_s)

    def _expire(
        self, node_ids: Sequence[str], asked_at_s: float, deadline_at_s: float
    ) -> list[AnyEvent]:
        """Take nodes that are still ours when the grace period is over."""
        left = [n for n in node_ids if self._asked_at_s.get(n) == asked_at_s]
        return self._lose(left, "the grace period is over", deadline_at_s) if left else []

    def _join(self, intervals: Sequence[IdleInterval], at_s: float) -> list[AnyEvent]:
        nodes = []
        # Those of one moment call in no order of their names.
        for interval in sorted(intervals, key=lambda i: zlib.crc32(i.node.encode())):
            if interval.node in self._held_since_s:
                self._returning[interval.node] = interval
                continue
            self._held_since_s[interval.node] = at_s
            nodes.append(
                Node(
                    id=interval.node,
                    opened_at_s=at_s,
                    group=interval.group,
                    expected_end_at_s=interval.to_s if self._settings.knows_node_ends else None,
                )
            )
        return [NodesJoined(at_s=at_s, nodes=tuple(nodes))] if nodes else []

    def _lose(self, node_ids: Sequence[str], reason: str, at_s: float) -> list[AnyEvent]:
        """Let nodes be gone; what trained on them stands still."""
        events: list[AnyEvent] = []
        lost = set(node_ids)
        hit = {self._used_by[n].job.id: self._used_by[n] for n in node_ids if n in self._used_by}
        failed: list[AnyEvent] = []
        for run in hit.values():
            events += self._meter.measured(run, at_s)
            failed += self._break(run, lost, at_s, reason)
        back = []
        for node_id in node_ids:
            since_s = self._held_since_s.pop(node_id)
            self.recorder.offered(since_s, at_s)
            if (asked_at_s := self._asked_at_s.pop(node_id, None)) is not None:
                self.overtime_node_s += at_s - asked_at_s
                self.longest_overtime_s = max(self.longest_overtime_s, at_s - asked_at_s)
            interval = self._returning.pop(node_id, None)
            if interval is not None and interval.to_s > at_s:
                back.append(interval)
        # Nobody trained on what was given back.
        were_released = reason == _RELEASED
        events.append(
            NodesLost(
                at_s=at_s, node_ids=tuple(node_ids), reason=reason, were_released=were_released
            )
        )
        return [*events, *failed, *(self._join(back, at_s) if back else ())]

    def _break(self, run: Run, lost: set[str], at_s: float, reason: str) -> list[AnyEvent]:
        """Let a job stand still for what it lost; the rescale under way ends with it."""
        run.advance(at_s)
        run.charge(self._courses.loss_charge(run), at_s)
        remaining = tuple(n for n in run.node_ids if n not in lost)
        for node_id in run.node_ids:
            if node_id in lost:
                del self._used_by[node_id]
        if self._courses.is_prompt:
            step_samples = run.samples_per_s * self._settings.step_s / 2
            kept = max(run.samples - step_samples, run.saved_samples)
            run.fall_back(kept if remaining else run.saved_samples, at_s)
        run.stand()
        run.node_ids = remaining
        run.is_broken = bool(remaining)
        order, run.order = run.order, None
        if order is None:
            return []
        failed = RescaleFailed(
            at_s=at_s,
            job_id=run.job.id,
            generation=order.generation,
            reason=reason,
            node_ids=remaining,
            is_group_dead=True,
        )
        return [failed]

    # -- jobs come and go --------------------------------------------------------------------------

    def _expect_jobs(self, now_s: float) -> None:
        at_s = self._backlog.next_at_s(len(self.runs))
        if at_s is None or not self._courses.is_prompt:
            return
        at_s = max(at_s, now_s)
        if at_s != self._jobs_expected_at_s:
            self._jobs_expected_at_s = at_s
            self._agenda.put(at_s, partial(self._submissions, at_s))

    def _submissions(self, at_s: float) -> list[AnyEvent]:
        jobs = self._backlog.take(at_s, len(self.runs))
        for job in jobs:
            self.runs[job.id] = self._run_of(job)
        self._expect_jobs(at_s)
        return [JobSubmitted(at_s=at_s, spec=self._spec(self.runs[job.id])) for job in jobs]

    def _run_of(self, job: MalleableJob) -> Run:
        every_s = self._settings.checkpoint_every_s
        phase = draws.uniform(self._options.seed, "checkpoint", job.id)
        return Run(
            job=job,
            rates=self._workload.curves[job.curve].rates(job.max_nodes).tolist(),
            recorder=self.recorder,
            class_index=self._classes.index(job.job_class or job.curve),
            checkpoint_phase_s=phase * every_s,
            checkpoint_every_s=every_s,
        )

    def _spec(self, run: Run) -> JobSpec:
        job = run.job
        is_known = self._options.identity is ModelIdentity.KNOWN
        costs_s = stalls_s(run, self._settings)
        return JobSpec(
            id=job.id,
            name=job.id,
            min_nodes=job.min_nodes,
            max_nodes=job.max_nodes,
            model_key=job.curve if is_known else job.id,
            owner=job.owner,
            work_samples=job.work_samples,
            weight=job.weight,
            deadline_at_s=job.deadline_at_s,
            stated=self._policy.stated(self._workload, job, costs_s, self._options.seed),
        )

    def _expect_end(self, run: Run) -> None:
        if (at_s := run.ends_at_s) is not None:
            self._agenda.put(at_s, partial(self._reach_end, run, run.serial, at_s))

    def _reach_end(self, run: Run, serial: int, at_s: float) -> list[AnyEvent]:
        if run.serial != serial or run.stops_at_s < at_s:
            return []
        if self._courses.is_prompt:
            return self._end(run, at_s)
        self._done[run.job.id] = run
        return []

    def _ended_before(self, at_s: float) -> list[AnyEvent]:
        """End the jobs whose work is done even after what was charged since."""
        events = []
        for run in self._done.values():
            run.advance(at_s)
            assert run.job.work_samples is not None
            if run.samples >= run.job.work_samples:
                events += self._end(run, at_s)
        self._done = {}
        return events

    def _end(self, run: Run, at_s: float) -> list[AnyEvent]:
        assert run.job.work_samples is not None
        events = self._meter.measured(run, at_s)
        run.advance(at_s)
        # Beyond its work by rounding, or, as the papers account, up to the next moment.
        run.charge(run.samples - run.job.work_samples, at_s)
        run.samples = run.job.work_samples
        run.stand()
        self._leave(run)
        self.ended[run.job.id] = self.runs.pop(run.job.id)
        self._to_forget.append(run.job.id)
        ended = JobFinished(at_s=at_s, job_id=run.job.id, samples=run.samples)
        follow = self._submissions(at_s) if self._courses.is_prompt else []
        return [*events, ended, *follow]

    def _leave(self, run: Run) -> None:
        for node_id in run.node_ids:
            del self._used_by[node_id]
        run.node_ids = ()
        run.order = None

    @property
    def is_exhausted(self) -> bool:
        """Whether no job is to come any more."""
        return self._backlog.is_exhausted

    # -- decisions ---------------------------------------------------------------------------------

    def execute(self, decision: DecisionTaken) -> None:
        """Begin with what was decided; what comes of it is on the agenda."""
        now_s = decision.at_s
        for action in decision.actions:
            match action:
                case Rescale(job_id, generation, node_ids):
                    self._rescale(self.runs[job_id], generation, node_ids, now_s)
                case Stop():
                    raise NotImplementedError("jobs in a replay are never cancelled")
                case ReleaseNodes(node_ids):
                    at_s = now_s + self._settings.decision_delay_s
                    self._agenda.put(at_s, partial(self._release, node_ids, at_s))
                case WakeAt(at_s):
                    self._wake_at_s = at_s
                    self._agenda.put(at_s, partial(self._wake, at_s))
        self._meter.pin([self.runs[job_id] for job_id in decision.pins], now_s)

    def _wake(self, at_s: float) -> list[AnyEvent]:
        return [WokeUp(at_s=at_s)] if at_s == self._wake_at_s else []

    def _release(self, node_ids: Sequence[str], at_s: float) -> list[AnyEvent]:
        held = [n for n in node_ids if n in self._asked_at_s]
        return self._lose(held, _RELEASED, at_s) if held else []

    def _rescale(self, run: Run, generation: int, node_ids: tuple[str, ...], now_s: float) -> None:
        run.advance(now_s)
        course = self._courses.of(run, node_ids, now_s)
        run.serial += 1
        run.order = Order(generation, now_s, node_ids, course.stall_s)
        run.stops_at_s = course.stops_at_s
        if course.charged_samples:
            run.charge(course.charged_samples, now_s)
        if course.stops_at_s > now_s:
            self._expect_end(run)
        self._agenda.put(
            course.done_at_s, partial(self._rescaled, run, generation, course.done_at_s)
        )

    def _rescaled(self, run: Run, generation: int, at_s: float) -> list[AnyEvent]:
        order = run.order
        if order is None or order.generation != generation:
            return []
        events = self._meter.measured(run, at_s)
        run.advance(at_s)
        before = set(run.node_ids)
        self._leave(run)
        # One that was lost meanwhile may be back, and another job's by now.
        members = tuple(
            n for n in order.node_ids if self._held_since_s.get(n, float("inf")) <= order.at_s
        )
        for node_id in members:
            self._used_by[node_id] = run
        if not members:
            run.saved_samples = run.samples
        run.go(members, generation, self._speed(members), at_s)
        self._expect_end(run)
        self._meter.expect(run, at_s)
        done = RescaleDone(
            frees_nodes=not before <= set(members),
            at_s=at_s,
            job_id=run.job.id,
            generation=generation,
            node_ids=members,
            stall_s=order.stall_s,
            samples=run.samples,
        )
        return [*events, done]

    def _speed(self, node_ids: Sequence[str]) -> float:
        """Return the speed of the slowest node."""
        share, slow = self._settings.slow_node_share, self._settings.slow_node_speed
        if share <= 0:
            return 1.0
        seed = self._options.seed
        return slow if any(draws.uniform(seed, "slow", n) < share for n in node_ids) else 1.0

    # -- the end -----------------------------------------------------------------------------------

    def finish(self, at_s: float) -> None:
        """Count everything up to the end of the replay."""
        for run in self.runs.values():
            run.advance(at_s)
        for since_s in self._held_since_s.values():
            self.recorder.offered(since_s, at_s)
