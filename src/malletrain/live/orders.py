"""What users may ask of a controller: checked, then recorded as events."""

from __future__ import annotations

import math
import re
from itertools import count

from malletrain.batch.base import BatchSystem
from malletrain.core.events import AnyEvent, JobCancelled, JobResumed, JobSubmitted, JobSuspended
from malletrain.core.explain import explain
from malletrain.core.model import Job, JobSpec, Launch, Phase
from malletrain.errors import ConflictError, UsageError
from malletrain.live.controller import Controller
from malletrain.live.requests import MAX_WEIGHT, MIN_WEIGHT, Explanation, Submission, Submitted

#: A bound on what is computed for one job; far above any machine's nodes.
MAX_NODES = 100_000
MAX_NAME = 100

_JOB_ID = re.compile(r"j[0-9]+")


class Orders:
    def __init__(self, controller: Controller, batch: BatchSystem) -> None:
        self._controller = controller
        self._batch = batch
        self._numbers = count(1)

    async def submit(self, submission: Submission) -> Submitted:
        """Take a job in.

        Raises:
            UsageError: no job can be like this; the message says what to change.
            JournalWriteError: the journal takes nothing now.
        """
        _check(submission)
        warnings = self._warnings(submission)
        job_id = self._new_id()
        spec = JobSpec(
            id=job_id,
            name=submission.name,
            min_nodes=submission.min_nodes,
            max_nodes=submission.max_nodes,
            model_key=submission.model_key or submission.name,
            owner=submission.owner,
            work_samples=submission.samples,
            weight=submission.weight,
            deadline_at_s=submission.deadline_at_s,
            launch=Launch(submission.command, submission.cwd, submission.env),
        )
        await self._controller.record(JobSubmitted(at_s=self._controller.now_s, spec=spec))
        return Submitted(job_id=job_id, warnings=warnings)

    async def cancel(self, key: str) -> None:
        """End the job; its state is not saved.

        Raises:
            UnknownJobError, ConflictError, JournalWriteError: it was not done.
        """
        job = self._living(key)
        await self._record(JobCancelled(at_s=self._controller.now_s, job_id=job.spec.id))

    async def suspend(self, key: str) -> None:
        """Have the job save its state and hold no node until it is resumed."""
        job = self._living(key)
        if job.phase is Phase.SUSPENDED:
            raise ConflictError(f"{job.spec.name} is suspended already")
        await self._record(JobSuspended(at_s=self._controller.now_s, job_id=job.spec.id))

    async def resume(self, key: str) -> None:
        job = self._living(key)
        if job.phase is not Phase.SUSPENDED:
            raise ConflictError(f"{job.spec.name} is not suspended, so it cannot be resumed")
        await self._record(JobResumed(at_s=self._controller.now_s, job_id=job.spec.id))

    def explain(self, key: str) -> Explanation:
        controller = self._controller
        job_id = controller.find(key).spec.id
        text = explain(controller.cluster, job_id, controller.allocator)
        return Explanation(text=text)

    async def add_nodes(self, wanted: int) -> None:
        """Ask the batch system for nodes."""
        if not 1 <= wanted <= MAX_NODES:
            raise UsageError(f"count is {wanted}: it must be from 1 to {MAX_NODES}")
        await self._batch.add_nodes(wanted)

    async def remove_node(self, node_id: str, *, is_abrupt: bool) -> None:
        """Have the batch system take a node back."""
        if node_id not in self._controller.cluster.nodes:
            raise ConflictError(f"there is no node {node_id}: see `malletrain nodes`")
        await self._batch.remove_node(node_id, is_abrupt=is_abrupt)

    async def _record(self, event: AnyEvent) -> None:
        await self._controller.record(event)

    def _living(self, key: str) -> Job:
        job = self._controller.find(key)
        if job.is_over:
            raise ConflictError(f"{job.spec.name} ({job.spec.id}) is {job.phase.value} already")
        return job

    def _new_id(self) -> str:
        jobs = self._controller.cluster.jobs
        return next(job_id for n in self._numbers if (job_id := f"j{n}") not in jobs)

    def _warnings(self, submission: Submission) -> tuple[str, ...]:
        warnings = []
        most = self._batch.max_nodes
        if most is not None and submission.min_nodes > most:
            raise UsageError(
                f"min_nodes is {submission.min_nodes}, but the batch system never gives more "
                f"than {most} nodes: the job could not start; lower it"
            )
        if most is not None and submission.max_nodes > most:
            warnings.append(
                f"max_nodes is {submission.max_nodes}, but the batch system never gives more "
                f"than {most} nodes: the job will have at most {most}"
            )
        deadline_at_s = submission.deadline_at_s
        if deadline_at_s is not None and deadline_at_s <= self._controller.now_s:
            warnings.append("the deadline has passed already")
        return tuple(warnings)


def _check(submission: Submission) -> None:
    name = submission.name
    is_plain = 0 < len(name) <= MAX_NAME and name.isprintable() and "/" not in name
    if not is_plain or name in (".", "..") or _JOB_ID.fullmatch(name):
        raise UsageError(
            f"the name {name[:MAX_NAME]!r} cannot be: give 1 to {MAX_NAME} printable characters, "
            f"no slash, no mere dots, and not what looks like a job's id"
        )
    if submission.min_nodes < 1:
        raise UsageError(f"min_nodes is {submission.min_nodes}: a job needs at least 1 node")
    if submission.max_nodes < submission.min_nodes:
        raise UsageError(
            f"max_nodes is {submission.max_nodes}, below min_nodes {submission.min_nodes}: raise "
            f"one or lower the other"
        )
    if submission.max_nodes > MAX_NODES:
        raise UsageError(f"max_nodes is {submission.max_nodes}: the limit is {MAX_NODES}")
    if not MIN_WEIGHT <= submission.weight <= MAX_WEIGHT:
        raise UsageError(
            f"weight is {submission.weight:g}: give {MIN_WEIGHT:g} to {MAX_WEIGHT:g}; 1 is usual"
        )
    if submission.samples is not None and not 0 < submission.samples < math.inf:
        raise UsageError(f"samples is {submission.samples:g}: it must be above 0")
    _check_launch(submission)


def _check_launch(submission: Submission) -> None:
    command = submission.command
    if not command or not command[0]:
        raise UsageError("command is empty: name the program and its arguments")
    if not submission.cwd.startswith("/"):
        raise UsageError(f"cwd is {submission.cwd!r}: it must be an absolute path")
    texts = (*command, submission.cwd, *(text for pair in submission.env for text in pair))
    if any("\0" in text for text in texts):
        raise UsageError("command, cwd and env must not contain NUL characters")
    for name, _ in submission.env:
        if not name or "=" in name:
            raise UsageError(f"env has the name {name!r}: it must be there, without `=`")
