"""The protocol of one job's rescales: messages and deaths in, messages and events out.

Knows no network, no clock and no process: the controller feeds it and carries out what it
returns, and so does the harness of the training library's tests. The steps are those of
`wire`. It trusts nothing to order: any worker may die, and any message come late, at any
point.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from malletrain.core.events import JobFinished, RescaleDone, RescaleFailed, WorkersLost
from malletrain.live.adoption import Journalled, adopted, differences
from malletrain.live.crew import Crew, Worker
from malletrain.live.flow import (
    FlowSettings,
    Output,
    Pending,
    Send,
    Stage,
    StartOn,
    StopNow,
    end_in_words,
    with_log,
)
from malletrain.wire import (
    AbortGroup,
    GroupFailed,
    GroupReady,
    PrepareGroup,
    Progress,
    Saved,
    Switch,
    Switched,
    WorkDone,
    WorkerExited,
    WorkerInfo,
    WorkerWarm,
)

__all__ = [
    "FlowSettings",
    "Journalled",
    "Output",
    "RescaleFlow",
    "Send",
    "StartOn",
    "StopNow",
]


#: From SIGKILL until the agent has told of a worker's end, if it ever does.
LAST_WORDS_LIMIT_S = 5.0

#: What is said of members whose end with status 0 was not that of the job.
EARLY_END = "ended with status 0 while the others trained on"


class RescaleFlow:
    """One job's workers, and the rescale under way."""

    def __init__(self, job_id: str, settings: FlowSettings) -> None:
        self.job_id = job_id
        self.generation = 0
        self._settings = settings
        self._crew = Crew()
        self._samples = 0.0
        #: All samples are trained: the script runs to its end, no rescale any more.
        self._is_work_done = False
        #: A member has ended or all samples are trained: all must have ended by then.
        self._end_deadline_at_s: float | None = None
        #: What to tell of a job whose workers had to be ended after all samples were trained.
        self._end_note = ""
        self._pending: Pending | None = None
        #: An order that came while a switch was under way, or the job was at its end.
        self._next_order: Pending | None = None
        self._group_failures = 0

    # -- what the caller asks ---------------------------------------------------------------------

    @property
    def deadline_at_s(self) -> float | None:
        """When `tick` must be called at the latest."""
        deadlines = [self._pending.deadline_at_s] if self._pending else []
        if self._end_deadline_at_s is not None:
            deadlines.append(self._end_deadline_at_s)
        return min(deadlines, default=None)

    @property
    def worker_nodes(self) -> dict[str, str]:
        """Every live worker's node."""
        return {worker_id: worker.node_id for worker_id, worker in self._crew.workers.items()}

    @property
    def members(self) -> tuple[str, ...]:
        """Workers of the running generation, in rank order."""
        return self._crew.members

    def node_of(self, worker_id: str) -> str | None:
        worker = self._crew.workers.get(worker_id)
        return worker.node_id if worker else None

    @property
    def is_at_rest(self) -> bool:
        """No worker lives and none is wanted."""
        return not self._crew.workers and self._pending is None and self._next_order is None

    def adopt(
        self, workers: Iterable[WorkerInfo], journal: Journalled, now_s: float
    ) -> list[Output]:
        """Take over what outlived the controller, and say how it differs from the journal."""
        found = adopted(tuple(workers), journal)
        self.generation = found.generation
        self._crew = found.crew
        self._samples = journal.samples
        return differences(self.job_id, found, journal, now_s)

    def repeated(self, node_id: str, listed: Collection[str]) -> list[Output]:
        """Say again what a node may have missed of the rescale under way.

        To be asked when its agent calls again, with the workers that it `listed`. Whoever has
        heard it before takes no notice.
        """
        pending = self._pending
        if pending is None:
            return []
        here = self._crew.on({node_id})
        if pending.is_stop:
            return [StopNow(tuple(here), self._settings.stop_grace_s)] if here else []
        if pending.stage is Stage.WARMING:
            cold = [w for w in self._crew.cold(pending.targets) if w in here and w not in listed]
            workers = self._crew.workers
            starts = StartOn(dict.fromkeys(cold, node_id), {w: workers[w].slot for w in cold})
            return [starts] if cold else []
        prepare = pending.prepare
        assert prepare is not None
        to = tuple(w for w in prepare.to if w in here and w not in pending.switched)
        outputs: list[Output] = [Send(replace(prepare, to=to))] if to else []
        if to and pending.stage is Stage.SWITCHING and not prepare.is_immediate:
            switch = Switch(job_id=self.job_id, generation=pending.generation, to=to)
            outputs.append(Send(switch))
        return outputs

    def reattached(self, info: WorkerInfo, now_s: float) -> list[Output]:
        """Catch up on what a worker may have said while its agent was away."""
        outputs: list[Output] = []
        if info.is_warm:
            outputs += self.worker_warm(
                WorkerWarm(worker_id=info.worker_id, job_id=self.job_id), now_s
            )
        pending = self._pending
        if (
            pending
            and pending.generation == info.generation
            and info.worker_id not in pending.switched
        ):
            switched = Switched(
                worker_id=info.worker_id,
                job_id=self.job_id,
                generation=info.generation,
                step=0,
                samples=self._samples,
                stall_s=0.0,
            )
            outputs += self.switched(switched, now_s)
        return outputs

    def order(
        self,
        generation: int,
        node_ids: Sequence[str],
        now_s: float,
        slots: Mapping[str, int] | None = None,
    ) -> list[Output]:
        """Make the job's members those nodes, in this rank order; none suspends it."""
        deadline_at_s = now_s + self._settings.attach_deadline_s
        return self._take(Pending(generation, tuple(node_ids), deadline_at_s, slots or {}), now_s)

    def stop(self, generation: int, now_s: float) -> list[Output]:
        """End every worker; the state is not wanted."""
        deadline_at_s = now_s + self._settings.switch_deadline_s
        return self._take(Pending(generation, (), deadline_at_s, is_stop=True), now_s)

    # -- what happened ----------------------------------------------------------------------------

    def worker_warm(self, message: WorkerWarm, now_s: float) -> list[Output]:
        if worker := self._crew.workers.get(message.worker_id):
            worker.is_warm = True
        pending = self._pending
        if pending and pending.stage is Stage.WARMING and self._crew.cold(pending.targets):
            return []
        return self._advance(now_s)

    def group_ready(self, message: GroupReady, now_s: float) -> list[Output]:
        if self._pending and self._pending.generation == message.generation:
            self._pending.ready.add(message.worker_id)
        return self._advance(now_s)

    def group_failed(self, message: GroupFailed, now_s: float) -> list[Output]:
        if self._pending is None or self._pending.generation != message.generation:
            return []
        return self._fail_to_connect(
            f"the process group could not be built: {message.reason}", now_s
        )

    def switched(self, message: Switched, now_s: float) -> list[Output]:
        if self._pending and self._pending.generation == message.generation:
            self._pending.switched[message.worker_id] = message
        return self._advance(now_s)

    def trained(self, message: Progress | Saved) -> None:
        """Remember how far the running generation is."""
        if message.generation == self.generation:
            self._samples = max(self._samples, message.samples)

    def work_done(self, message: WorkDone, now_s: float) -> list[Output]:
        """From here the members end by themselves; a rescale under way has no point."""
        if message.worker_id not in self._crew.workers or self._is_work_done:
            return []
        if self._pending and self._pending.is_stop:
            return []
        self._is_work_done = True
        self._end_deadline_at_s = now_s + self._settings.linger_s
        self._samples = message.samples
        if self._pending and message.worker_id in self._pending.switched:
            # It has switched already: the others' reports are on their way.
            return []
        return self._fail("the job has trained all its samples", now_s, is_group_left=True)

    def worker_exited(self, message: WorkerExited, now_s: float) -> list[Output]:
        worker = self._crew.workers.get(message.worker_id)
        if worker is None:
            return []
        if self._is_leaving(message):
            self._crew.forget({message.worker_id})
            return self._advance(now_s)
        is_member = message.worker_id in self._crew.members
        has_switched = self._pending and message.worker_id in self._pending.switched
        # Without a word that the work is done, whether it was is seen by what the others do.
        is_good_end = self._is_work_done or not self._crew.is_group_dead
        has_ended = message.status == 0 or bool(self._end_note)
        if has_ended and is_good_end and (is_member or has_switched):
            worker.has_ended_well = True
            return self._member_ended(now_s)
        if is_member:
            return self._member_died(message, now_s)
        return self._joiner_died(message, now_s)

    def nodes_lost(self, node_ids: Iterable[str], now_s: float) -> list[Output]:
        """The nodes are gone with their workers; the core knows it already."""
        lost = set(node_ids)
        gone = self._crew.on(lost)
        was_harmless = self._pending is not None and self._pending.has_switched
        is_hit = not gone.isdisjoint(self._crew.not_ended) and not (
            was_harmless and self._pending and not gone & set(self._pending.targets)
        )
        self._crew.forget(gone)
        outputs: list[Output] = []
        if is_hit:
            outputs += self._count_early_ends(now_s)
            self._crew.lost_member()
        outputs += self._shrink_orders(lost, now_s)
        if self._pending and self._pending.stage is not Stage.WARMING and gone:
            is_target_lost = bool(gone & set(self._pending.targets))
            if is_target_lost or is_hit:
                outputs += self._fail("a node was lost while the group was changed", now_s)
        return outputs + self._go_on(now_s)

    def tick(self, now_s: float) -> list[Output]:
        """Give up what has passed its deadline."""
        if self._end_deadline_at_s is not None and now_s >= self._end_deadline_at_s:
            return self._give_up_end(now_s)
        pending = self._pending
        if pending is None or now_s < pending.deadline_at_s:
            return []
        if pending.stage is Stage.WARMING and not pending.is_stop:
            return self._give_up_warming(pending, now_s)
        if pending.stage is Stage.CONNECTING:
            late = ", ".join(sorted(set(pending.targets) - pending.ready))
            limit_s = self._settings.connect_deadline_s
            return self._fail_to_connect(f"{late} did not connect within {limit_s:g} s", now_s)
        # A switch or a stop that hangs: only killing the workers frees their nodes.
        pending.deadline_at_s = now_s + self._settings.switch_deadline_s
        return [StopNow(tuple(self._crew.workers))]

    # -- orders -----------------------------------------------------------------------------------

    @property
    def _is_at_end(self) -> bool:
        return self._is_work_done or self._end_deadline_at_s is not None

    def _take(self, order: Pending, now_s: float) -> list[Output]:
        pending = self._pending
        is_switching = pending is not None and pending.stage is Stage.SWITCHING
        outputs: list[Output] = []
        superseded, self._next_order = self._next_order, None
        if superseded:
            outputs.append(self._failed(superseded, "superseded", now_s))
        if (is_switching or self._is_at_end) and not order.is_stop:
            # A switch or an end cannot be called back, only waited for (or broken by a death);
            # both have their deadline.
            self._next_order = order
            return outputs
        if pending:
            outputs += self._abort(pending)
            outputs.append(self._failed(pending, "superseded", now_s))
        if order.is_stop:
            self._forget_end()
        self._pending = order
        return outputs + self._advance(now_s)

    def _take_next(self, now_s: float) -> list[Output]:
        if self._is_at_end:
            return []
        order, self._next_order = self._next_order, None
        return self._take(order, now_s) if order else []

    def _shrink_orders(self, lost: set[str], now_s: float) -> list[Output]:
        """Take lost nodes out of what has not begun to connect."""
        outputs: list[Output] = []
        for order in filter(None, (self._next_order, self._pending)):
            if order.stage is not Stage.WARMING or not lost & set(order.node_ids):
                continue
            order.node_ids = tuple(n for n in order.node_ids if n not in lost)
            if order.node_ids:
                continue
            if order is self._pending:
                outputs += self._fail("all its nodes were lost", now_s)
            else:
                self._next_order = None
                outputs.append(self._failed(order, "all its nodes were lost", now_s))
        return outputs

    def _abort(self, pending: Pending) -> list[Output]:
        if pending.stage is not Stage.CONNECTING:
            return []
        to = tuple(w for w in self._reached_by(pending) if w in self._crew.workers)
        return [Send(AbortGroup(job_id=self.job_id, generation=pending.generation, to=to))]

    def _fail_to_connect(self, reason: str, now_s: float) -> list[Output]:
        self._group_failures += 1
        is_job_fault = self._group_failures >= self._settings.group_failures
        return self._fail(reason, now_s, is_job_fault=is_job_fault)

    def _fail(
        self,
        reason: str,
        now_s: float,
        *,
        is_job_fault: bool = False,
        is_group_left: bool = False,
    ) -> list[Output]:
        """Give the pending rescale up and end its joiners.

        `is_group_left`: whatever was asked of the present group, it goes on as it is.
        """
        pending = self._pending
        if pending is None or pending.is_stop:
            return []
        outputs = self._abort(pending)
        if pending.stage is Stage.SWITCHING and not is_group_left:
            # Some may train in the new group and some in the old: both are of no use now.
            self._crew.lost_member()
        if joiners := self._crew.dismiss_joiners():
            outputs.append(StopNow(joiners))
        self._pending = None
        outputs.append(self._failed(pending, reason, now_s, is_job_fault=is_job_fault))
        return outputs + self._take_next(now_s)

    def _failed(
        self, pending: Pending, reason: str, now_s: float, *, is_job_fault: bool = False
    ) -> RescaleFailed:
        return RescaleFailed(
            at_s=now_s,
            job_id=self.job_id,
            generation=pending.generation,
            reason=reason,
            node_ids=self._crew.nodes_of(self._crew.members),
            is_group_dead=self._crew.is_group_dead,
            is_job_fault=is_job_fault,
        )

    # -- deaths -----------------------------------------------------------------------------------

    def _is_leaving(self, message: WorkerExited) -> bool:
        """Whether the member's end belongs to the rescale under way."""
        pending = self._pending
        if pending is None or pending.stage is not Stage.SWITCHING:
            return False
        if pending.is_stop:
            return True
        is_leaver = message.worker_id not in pending.targets
        return is_leaver and (message.status == 0 or pending.has_switched)

    def _member_died(self, message: WorkerExited, now_s: float) -> list[Output]:
        node_id = self._crew.workers[message.worker_id].node_id
        outputs = self._count_early_ends(now_s)
        self._crew.forget({message.worker_id})
        self._crew.lost_member()
        outputs.append(self._lost((node_id,), end_in_words(message), now_s))
        if self._pending and self._pending.stage is not Stage.WARMING:
            outputs += self._fail(f"a member died: {message.reason}", now_s)
        else:
            outputs += self._shrink_orders({node_id}, now_s)
        return outputs + self._go_on(now_s)

    def _joiner_died(self, message: WorkerExited, now_s: float) -> list[Output]:
        is_stop = self._pending is not None and self._pending.is_stop
        self._crew.forget({message.worker_id})
        if is_stop or self._pending is None or message.worker_id not in self._pending.targets:
            return self._advance(now_s)
        overdue = self._pending.overdue
        reason = with_log(overdue, message) if overdue else end_in_words(message)
        return self._fail(reason, now_s, is_job_fault=True)

    def _lost(self, node_ids: tuple[str, ...], reason: str, now_s: float) -> WorkersLost:
        return WorkersLost(
            at_s=now_s,
            job_id=self.job_id,
            generation=self.generation,
            node_ids=node_ids,
            reason=reason,
        )

    def _go_on(self, now_s: float) -> list[Output]:
        """Do what a death may have been the last hindrance to."""
        return self._check_end(now_s) + self._take_next(now_s) + self._advance(now_s)

    # -- the end of the job -----------------------------------------------------------------------

    def _member_ended(self, now_s: float) -> list[Output]:
        if self._end_deadline_at_s is None:
            self._end_deadline_at_s = now_s + self._settings.common_end_s
        outputs: list[Output] = []
        if self._pending and self._pending.stage is not Stage.SWITCHING:
            outputs += self._fail("the job is at its end", now_s)
        return outputs + self._check_end(now_s) + self._advance(now_s)

    def _give_up_end(self, now_s: float) -> list[Output]:
        """Make an end of the job that takes too long, or take it for none."""
        if self._is_work_done:
            limit_s = self._settings.linger_s
            late = self._crew.not_ended
            self._end_deadline_at_s = now_s + limit_s
            self._end_note = (
                f"all samples are trained, but {', '.join(late)} had not ended {limit_s:g} s later "
                f"and had to be killed: let the script end (no thread that lives on), or raise "
                f"live.linger_s"
            )
            return [StopNow(late)]
        outputs = self._count_early_ends(now_s)
        if self._pending:
            outputs += self._fail(f"a worker {EARLY_END}", now_s, is_job_fault=not outputs)
        return outputs + self._go_on(now_s)

    def _count_early_ends(self, now_s: float) -> list[Output]:
        """Count those that ended with status 0 as failed: their group has gone on without them."""
        if self._is_work_done or self._end_deadline_at_s is None:
            return []
        self._forget_end()
        early = {w for w, worker in self._crew.workers.items() if worker.has_ended_well}
        members = tuple(w for w in self._crew.members if w in early)
        node_ids = self._crew.nodes_of(members)
        self._crew.forget(early)
        self._crew.lost_member()
        if not members:
            return []
        lost = self._lost(node_ids, f"worker {', '.join(members)} {EARLY_END}", now_s)
        return [lost, *self._shrink_orders(set(node_ids), now_s)]

    def _forget_end(self) -> None:
        self._is_work_done = False
        self._end_deadline_at_s = None
        self._end_note = ""

    def _check_end(self, now_s: float) -> list[Output]:
        if not self._is_at_end:
            return []
        if not self._crew.members and self._pending is None:
            # Those that had ended well were lost with their nodes: the end did not happen.
            self._forget_end()
            return self._take_next(now_s)
        if not self._crew.members or self._end_deadline_at_s is None or self._crew.not_ended:
            return []
        outputs: list[Output] = [
            self._failed(order, "the job has ended", now_s)
            for order in (self._pending, self._next_order)
            if order
        ]
        if joiners := self._crew.dismiss_joiners():
            outputs.append(StopNow(joiners))
        self._crew = Crew()
        self._pending = self._next_order = None
        finished = JobFinished(
            at_s=now_s, job_id=self.job_id, samples=self._samples, note=self._end_note
        )
        self._forget_end()
        return [*outputs, finished]

    # -- progress ---------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> list[Output]:
        """Take every step that nothing stands in the way of."""
        pending = self._pending
        if pending is None:
            return []
        if pending.is_stop:
            return self._advance_stop(pending, now_s)
        if pending.stage is Stage.WARMING:
            return self._advance_warming(pending, now_s)
        if pending.stage is Stage.CONNECTING:
            return self._advance_connecting(pending, now_s)
        return self._advance_switching(pending, now_s)

    def _advance_stop(self, pending: Pending, now_s: float) -> list[Output]:
        self._crew.forget({w for w, worker in self._crew.workers.items() if worker.has_ended_well})
        if not self._crew.workers:
            self._crew.is_group_dead = False
            return self._done(pending, now_s)
        if pending.stage is Stage.SWITCHING:
            return []
        pending.stage = Stage.SWITCHING
        return [StopNow(tuple(self._crew.workers), self._settings.stop_grace_s)]

    def _advance_warming(self, pending: Pending, now_s: float) -> list[Output]:
        outputs = self._start_missing(pending)
        if self._crew.cold(pending.targets):
            return outputs
        is_immediate = not self._crew.members or self._crew.is_group_dead
        pending.stage = Stage.CONNECTING
        pending.deadline_at_s = now_s + self._settings.connect_deadline_s
        prepare = PrepareGroup(
            job_id=self.job_id,
            generation=pending.generation,
            members=pending.targets,
            to=self._reached_by(pending),
            is_immediate=is_immediate,
        )
        pending.prepare = prepare
        outputs.append(Send(prepare))
        if is_immediate:
            self._start_switching(pending, now_s)
        return outputs + self._advance(now_s)

    def _start_missing(self, pending: Pending) -> list[Output]:
        """Start workers where there are none yet, and end those that nobody asked for."""
        present = {(worker.node_id, worker.slot): w for w, worker in self._crew.workers.items()}
        to_start: dict[str, str] = {}
        slots: dict[str, int] = {}
        targets = []
        for node_id in pending.node_ids:
            for slot in range(pending.slots.get(node_id, 1)):
                worker_id = present.get((node_id, slot))
                if worker_id is None:
                    worker_id = f"{self.job_id}.{pending.generation}.{node_id}.{slot}"
                    self._crew.workers[worker_id] = Worker(node_id, slot)
                    to_start[worker_id] = node_id
                    slots[worker_id] = slot
                targets.append(worker_id)
        pending.targets = tuple(targets)
        strays = self._crew.dismiss_joiners(wanted=targets)
        outputs: list[Output] = [StopNow(strays)] if strays else []
        if to_start:
            outputs.append(StartOn(to_start, slots))
        return outputs

    def _reached_by(self, pending: Pending) -> tuple[str, ...]:
        """Present members, then joiners: the first is the one to save a suspended job's state."""
        return tuple(dict.fromkeys((*self._crew.members, *pending.targets)))

    def _start_switching(self, pending: Pending, now_s: float) -> None:
        pending.stage = Stage.SWITCHING
        pending.deadline_at_s = now_s + self._settings.switch_deadline_s

    def _advance_connecting(self, pending: Pending, now_s: float) -> list[Output]:
        if not pending.ready.issuperset(pending.targets):
            return []
        to = self._reached_by(pending)
        self._start_switching(pending, now_s)
        switch = Switch(job_id=self.job_id, generation=pending.generation, to=to)
        return [Send(switch), *self._advance(now_s)]

    def _advance_switching(self, pending: Pending, now_s: float) -> list[Output]:
        if not pending.has_switched or any(w not in pending.targets for w in self._crew.workers):
            return []
        self._crew.members = pending.targets
        self._crew.is_group_dead = False
        self.generation = pending.generation
        return self._done(pending, now_s)

    def _done(self, pending: Pending, now_s: float) -> list[Output]:
        self._pending = None
        reports = pending.switched.values()
        starts_from = max((report.samples for report in reports), default=self._samples)
        if not self._is_work_done:
            self._samples = starts_from
        done = RescaleDone(
            at_s=now_s,
            job_id=self.job_id,
            generation=pending.generation,
            node_ids=self._crew.nodes_of(self._crew.members),
            stall_s=max((report.stall_s for report in reports), default=0.0),
            samples=starts_from,
        )
        self._group_failures = 0
        return [done, *self._check_end(now_s), *self._take_next(now_s)]

    def _give_up_warming(self, pending: Pending, now_s: float) -> list[Output]:
        """End the workers that take too long; the first to end brings its log."""
        if pending.overdue:
            return self._fail(pending.overdue, now_s, is_job_fault=True)
        cold = self._crew.cold(pending.targets)
        pending.deadline_at_s = now_s + LAST_WORDS_LIMIT_S
        pending.overdue = (
            f"{len(cold)} of {len(pending.targets)} workers were not ready "
            f"{self._settings.attach_deadline_s:g} s after their start: call "
            f"malletrain.train.attach near the top of the script and iterate over "
            f"job.batches(), or raise live.attach_deadline_s"
        )
        return [StopNow(tuple(cold))]
