"""The jobs that wait outside: when each comes in."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from malletrain.errors import UsageError
from malletrain.sim.settings import ReplayOptions
from malletrain.workloads.workload import MalleableJob, Workload


class Backlog:
    """Gives out jobs in order of submission, as far as there is room for them in parallel."""

    def __init__(self, workload: Workload, options: ReplayOptions) -> None:
        """Take the workload's jobs.

        Raises:
            UsageError: jobs without end of number would all come at once.
        """
        if options.repeat and options.max_parallel is None:
            raise UsageError(
                "a list that repeats needs a limit on jobs in parallel: --max-parallel"
            )
        if options.repeat and options.endless:
            raise UsageError("jobs that never end leave no room to repeat: endless or repeat")
        self._jobs = workload.jobs
        self._max_parallel = options.max_parallel
        self._repeats = options.repeat
        self._is_endless = options.endless
        self._given = 0

    def take(self, now_s: float, present: int) -> Sequence[MalleableJob]:
        """Return the jobs that come in now, where so many are in the system already."""
        taken: list[MalleableJob] = []
        while self._has_room(present + len(taken)) and self._next_at_s() <= now_s:
            round_, index = divmod(self._given, len(self._jobs))
            job = self._jobs[index]
            if round_:
                job = replace(job, id=f"{job.id}#{round_ + 1}", submitted_at_s=now_s)
            if self._is_endless:
                job = replace(job, work_samples=None)
            taken.append(job)
            self._given += 1
        return taken

    def next_at_s(self, present: int) -> float | None:
        """When `take` has something to return, if no job ends before; None: not before that."""
        return self._next_at_s() if self._has_room(present) else None

    def _has_room(self, present: int) -> bool:
        is_full = self._max_parallel is not None and present >= self._max_parallel
        return not self.is_exhausted and not is_full

    @property
    def is_exhausted(self) -> bool:
        return self._given >= len(self._jobs) and not self._repeats

    def _next_at_s(self) -> float:
        """When the next job was submitted; those of a repeated list wait from the start."""
        return self._jobs[self._given].submitted_at_s if self._given < len(self._jobs) else 0.0
