"""What a replay's page and table tell of each policy, over its seeds; nothing is drawn here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from malletrain.report.gains import Gain, gain
from malletrain.sim.results import JobResult, NodeSeconds, PolicyResult, ReplayResult

#: Uses of a node-second offered, as fields of `NodeSeconds`: what they are called, and mean.
USES = {
    "training": ("training", "steps that were kept"),
    "profiling": ("profiling", "steps that were kept, at a scale chosen in order to learn"),
    "rescaling": ("rescaling", "starting, growing, shrinking, and standing still meanwhile"),
    "preempted": ("lost", "steps that had to be done again after nodes were taken"),
    "idle": ("idle", "held by no job"),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A policy over its seeds: means, except where it is said."""

    policy: str
    #: By seed.
    runs: tuple[PolicyResult, ...]
    #: Dedicated nodes, each training one job alone, that would have done the same work in the
    #: trace's time. Policies are compared by this: a sample of one model is not one of another.
    dedicated_nodes: float
    node_s: NodeSeconds
    #: None where a job had not ended with one of the seeds.
    makespan_s: float | None
    #: A node that the main scheduler took back was held so long; None if it took none.
    mean_overtime_s: float | None
    #: What the main policy, the first, gains over this; None for itself, or without common seeds.
    work_gain: Gain | None
    samples_gain: Gain | None
    #: How much longer this one's makespan is than the main policy's.
    makespan_excess: Gain | None

    def mean(self, figure: Callable[[PolicyResult], float]) -> float:
        return statistics.fmean(map(figure, self.runs))

    @property
    def first_run(self) -> PolicyResult:
        """The one that is drawn: a mean over seeds would look calmer than any of them."""
        return self.runs[0]

    @property
    def samples(self) -> float:
        return self.mean(lambda run: run.done_samples)

    @property
    def redone_samples(self) -> float:
        return self.mean(lambda run: run.redone_samples)

    @property
    def scale_ups(self) -> float:
        return self.mean(lambda run: run.scale_ups)

    @property
    def scale_downs(self) -> float:
        return self.mean(lambda run: run.scale_downs)

    @property
    def losses(self) -> float:
        return self.mean(lambda run: run.losses)

    @property
    def finished(self) -> float:
        return self.mean(lambda run: run.jobs_finished)

    @property
    def jobs(self) -> float:
        return self.mean(lambda run: run.jobs_finished + run.jobs_unfinished)

    @property
    def kept_node_s(self) -> float:
        """Node-seconds of training that was kept, whatever the scale was chosen for."""
        return self.node_s.training + self.node_s.profiling

    @property
    def longest_overtime_s(self) -> float:
        """Of all seeds."""
        return max(run.longest_overtime_s for run in self.runs)

    def share(self, use: str) -> float:
        """Return the share of the node-seconds offered that went to one of `USES`."""
        node_s: float = getattr(self.node_s, use)
        return node_s / self.node_s.offered if self.node_s.offered else 0.0


@dataclass(frozen=True, slots=True)
class ClassOutcome:
    """The jobs of one class in one run."""

    job_class: str
    jobs: int
    finished: int
    done_samples: float
    used_node_s: float
    #: From submission to completion, of those that finished; None without any.
    median_completion_s: float | None


def outcomes(result: ReplayResult) -> tuple[Outcome, ...]:
    """Gather the policies in the order in which they were asked for: the first is the main one."""
    by_policy: dict[str, list[PolicyResult]] = {}
    for run in result.policies:
        by_policy.setdefault(run.policy, []).append(run)
    ordered = [sorted(runs, key=lambda run: run.seed) for runs in by_policy.values()]
    return tuple(_outcome(result, runs, ordered[0]) for runs in ordered)


def _outcome(
    result: ReplayResult, runs: Sequence[PolicyResult], main: Sequence[PolicyResult]
) -> Outcome:
    spans = [run.makespan_s for run in runs if run.makespan_s is not None]
    taken_back = sum(nodes * moments for nodes, moments in result.trace.leave_sizes)
    overtime_node_s = statistics.fmean(run.overtime_node_s for run in runs)
    return Outcome(
        policy=runs[0].policy,
        runs=tuple(runs),
        dedicated_nodes=statistics.fmean(
            run.done_one_node_s / run.length_s if run.length_s else 0.0 for run in runs
        ),
        node_s=NodeSeconds(
            **{
                name: statistics.fmean(getattr(run.node_s, name) for run in runs)
                for name in NodeSeconds.__struct_fields__
            }
        ),
        makespan_s=statistics.fmean(spans) if len(spans) == len(runs) else None,
        mean_overtime_s=overtime_node_s / taken_back if taken_back else None,
        work_gain=_gain(main, runs, lambda run: run.done_one_node_s),
        samples_gain=_gain(main, runs, lambda run: run.done_samples),
        makespan_excess=_gain(runs, main, lambda run: run.makespan_s),
    )


def _gain(
    these: Sequence[PolicyResult],
    those: Sequence[PolicyResult],
    figure: Callable[[PolicyResult], float | None],
) -> Gain | None:
    """Return what these gain over those, of the seeds that both have for the same time."""
    if these[0].policy == those[0].policy:
        return None
    theirs = {(run.seed, run.length_s): figure(run) for run in those}
    ours = {(run.seed, run.length_s): figure(run) for run in these}
    pairs = [(figure_, theirs[key]) for key, figure_ in ours.items() if key in theirs]
    known = [(mine, other) for mine, other in pairs if mine is not None and other is not None]
    if not known or len(known) < len(pairs):
        return None
    return gain([mine for mine, _ in known], [other for _, other in known])


def classes(run: PolicyResult) -> tuple[ClassOutcome, ...]:
    """Gather the jobs by class, those that used most node-seconds first."""
    by_class: dict[str, list[JobResult]] = {}
    for job in run.jobs:
        by_class.setdefault(job.job_class, []).append(job)
    gathered = [_class_outcome(name, jobs) for name, jobs in by_class.items()]
    return tuple(sorted(gathered, key=lambda outcome: -outcome.used_node_s))


def _class_outcome(name: str, jobs: Sequence[JobResult]) -> ClassOutcome:
    times_s = [time_s for job in jobs if (time_s := completion_s(job)) is not None]
    return ClassOutcome(
        job_class=name,
        jobs=len(jobs),
        finished=len(times_s),
        done_samples=sum(job.done_samples for job in jobs),
        used_node_s=sum(job.used_node_s for job in jobs),
        median_completion_s=statistics.median(times_s) if times_s else None,
    )


def completion_s(job: JobResult) -> float | None:
    """Return the time from a job's submission to its completion; None if it had not ended."""
    return None if job.finished_at_s is None else job.finished_at_s - job.submitted_at_s
