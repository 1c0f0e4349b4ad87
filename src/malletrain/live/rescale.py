"""The protocol of one job's rescales: messages and deaths in, messages and events out.

Knows no network, no clock and no process: the controller feeds it and carries out what it
returns, and so does the harness of the training library's tests. The steps are those of
`live.wire`. It trusts nothing to order: any worker may die, and any message come late, at any
point.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.core.events import (
    AnyEvent,
    JobFinished,
    RescaleDone,
    RescaleFailed,
    WorkersLost,
)
from malletrain.live.wire import (
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


@dataclass(frozen=True, slots=True)
class StartOn:
    """Start these workers (id -> node); the caller knows how the job is launched."""

    workers: dict[str, str]
    #: Worker id -> which of its node's workers it is.
    slots: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopNow:
    """End these workers, by SIGTERM first where there is a grace period."""

    worker_ids: tuple[str, ...]
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Send:
    """Pass the message to the agents of the workers in its `to`."""

    message: PrepareGroup | Switch | AbortGroup


Output = StartOn | StopNow | Send | AnyEvent


@dataclass(frozen=True, slots=True)
class FlowSettings:
    #: A started worker must have attached and be warm by then.
    attach_deadline_s: float = 120.0
    #: Prepared groups must be connected by then.
    connect_deadline_s: float = 30.0
    #: All members must have switched and leavers have gone by then; the same for a common end.
    switch_deadline_s: float = 120.0
    #: What a cancelled job's workers have between SIGTERM and SIGKILL.
    stop_grace_s: float = 5.0
    #: Failures to connect a group in a row, after which the job itself is to blame.
    group_failures: int = 3


@dataclass(slots=True)
class _Worker:
    node_id: str
    slot: int = 0
    is_warm: bool = False
    has_ended_well: bool = False


class _Stage(enum.Enum):
    WARMING = "warming"
    CONNECTING = "connecting"
    SWITCHING = "switching"


@dataclass(slots=True)
class _Pending:
    """The rescale under way."""

    generation: int
    node_ids: tuple[str, ...]
    deadline_at_s: float
    #: Workers a node, 1 where not named.
    slots: Mapping[str, int] = field(default_factory=dict)
    is_stop: bool = False
    stage: _Stage = _Stage.WARMING
    targets: tuple[str, ...] = ()
    ready: set[str] = field(default_factory=set)
    switched: dict[str, Switched] = field(default_factory=dict)

    @property
    def has_switched(self) -> bool:
        return self.stage is _Stage.SWITCHING and self.switched.keys() >= set(self.targets)


@dataclass(frozen=True, slots=True)
class Journalled:
    """What the journal knows of a job's workers, for a controller that comes back."""

    #: The running generation and its nodes, in rank order.
    generation: int
    node_ids: tuple[str, ...]
    #: The rescale that was under way, if there was one.
    asked_generation: int | None
    asked_node_ids: tuple[str, ...]
    #: Workers a node, 1 where not named.
    slots: Mapping[str, int]
    samples: float
    #: A member had died: the others stand still.
    is_broken: bool = False


class RescaleFlow:
    """One job's workers, and the rescale under way."""

    def __init__(self, job_id: str, settings: FlowSettings) -> None:
        self.job_id = job_id
        self.generation = 0
        self._settings = settings
        self._workers: dict[str, _Worker] = {}
        #: Workers of the running generation, in rank order.
        self._members: tuple[str, ...] = ()
        #: A member died: the others stand still until the next generation.
        self._is_group_dead = False
        self._samples = 0.0
        #: All samples are trained: the script runs to its end, no rescale any more.
        self._is_work_done = False
        #: A member has ended: the others must have by then.
        self._end_deadline_at_s: float | None = None
        self._pending: _Pending | None = None
        #: An order that came while a switch was under way, or the job was at its end.
        self._next_order: _Pending | None = None
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
        return {worker_id: worker.node_id for worker_id, worker in self._workers.items()}

    @property
    def members(self) -> tuple[str, ...]:
        """Workers of the running generation, in rank order."""
        return self._members

    def node_of(self, worker_id: str) -> str | None:
        worker = self._workers.get(worker_id)
        return worker.node_id if worker else None

    @property
    def is_at_rest(self) -> bool:
        """No worker lives and none is wanted."""
        return not self._workers and self._pending is None and self._next_order is None

    def adopt(
        self, workers: Iterable[WorkerInfo], journal: Journalled, now_s: float
    ) -> list[Output]:
        """Take over what outlived the controller, and say how it differs from the journal.

        Workers that never got into a group are ended: their rescale cannot be finished, and the
        next decision makes a new one. So are those on nodes that are not the job's any more.
        """
        infos = list(workers)
        trained = [info.generation for info in infos]
        self.generation = max(trained, default=0) or journal.generation
        self._samples = journal.samples
        has_switched = self.generation == journal.asked_generation and any(trained)
        expected = journal.asked_node_ids if has_switched else journal.node_ids
        rank = {node_id: index for index, node_id in enumerate(expected)}
        group = [info for info in infos if info.generation == self.generation]
        newest = [info for info in group if info.node_id in rank]
        newest.sort(key=lambda info: (rank[info.node_id], info.slot))
        self._members = tuple(info.worker_id for info in newest)
        self._workers = {
            info.worker_id: _Worker(info.node_id, info.slot, is_warm=True) for info in newest
        }
        present = {(info.node_id, info.slot) for info in newest}
        missing = tuple(
            node_id
            for node_id in expected
            if any((node_id, slot) not in present for slot in range(journal.slots.get(node_id, 1)))
        )
        was_broken = journal.is_broken and not has_switched
        is_torn = bool(missing) or was_broken or len(group) > len(newest)
        self._is_group_dead = bool(newest) and is_torn
        strays = tuple(info.worker_id for info in infos if info.worker_id not in self._workers)
        outputs: list[Output] = [StopNow(strays)] if strays else []
        if journal.asked_generation is not None:
            outputs += self._settle_asked(journal, has_switched, now_s)
        if missing:
            outputs.append(
                WorkersLost(
                    at_s=now_s,
                    job_id=self.job_id,
                    generation=self.generation,
                    node_ids=missing,
                    reason=f"workers on {', '.join(missing)} ended while the controller was away",
                )
            )
        return outputs

    def _settle_asked(self, journal: Journalled, has_switched: bool, now_s: float) -> list[Output]:
        """Say what became of the rescale that was under way when the controller died."""
        generation = journal.asked_generation
        assert generation is not None
        has_stopped = not journal.asked_node_ids and not self._workers
        if has_switched or has_stopped:
            return [
                RescaleDone(
                    at_s=now_s,
                    job_id=self.job_id,
                    generation=generation,
                    node_ids=journal.asked_node_ids,
                    stall_s=0.0,
                    samples=self._samples,
                )
            ]
        abort = AbortGroup(job_id=self.job_id, generation=generation, to=self._members)
        failed = RescaleFailed(
            at_s=now_s,
            job_id=self.job_id,
            generation=generation,
            reason="the controller was restarted",
            node_ids=self._nodes_of(self._members),
            is_group_dead=self._is_group_dead,
        )
        return [Send(abort), failed] if self._members else [failed]

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
        return self._take(_Pending(generation, tuple(node_ids), deadline_at_s, slots or {}), now_s)

    def stop(self, generation: int, now_s: float) -> list[Output]:
        """End every worker; the state is not wanted."""
        deadline_at_s = now_s + self._settings.switch_deadline_s
        return self._take(_Pending(generation, (), deadline_at_s, is_stop=True), now_s)

    # -- what happened ----------------------------------------------------------------------------

    def worker_warm(self, message: WorkerWarm, now_s: float) -> list[Output]:
        if worker := self._workers.get(message.worker_id):
            worker.is_warm = True
        pending = self._pending
        if pending and pending.stage is _Stage.WARMING and self._is_cold(pending):
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
        if message.worker_id not in self._workers or self._is_work_done:
            return []
        self._is_work_done = True
        self._samples = message.samples
        if self._pending and message.worker_id in self._pending.switched:
            # It has switched already: the others' reports are on their way.
            return []
        return self._fail("the job has trained all its samples", now_s, is_group_left=True)

    def worker_exited(self, message: WorkerExited, now_s: float) -> list[Output]:
        worker = self._workers.get(message.worker_id)
        if worker is None:
            return []
        if self._is_leaving(message):
            self._forget({message.worker_id})
            return self._advance(now_s)
        is_member = message.worker_id in self._members
        has_switched = self._pending and message.worker_id in self._pending.switched
        is_good_end = self._is_work_done or not self._is_group_dead
        if message.status == 0 and is_good_end and (is_member or has_switched):
            worker.has_ended_well = True
            return self._member_ended(now_s)
        if is_member:
            return self._member_died(message, now_s)
        return self._joiner_died(message, now_s)

    def nodes_lost(self, node_ids: Iterable[str], now_s: float) -> list[Output]:
        """The nodes are gone with their workers; the core knows it already."""
        lost = set(node_ids)
        gone = {w for w, worker in self._workers.items() if worker.node_id in lost}
        was_harmless = self._pending is not None and self._pending.has_switched
        hit = {w for w in gone & set(self._members) if not self._workers[w].has_ended_well}
        is_hit = bool(hit) and not (
            was_harmless and self._pending and not gone & set(self._pending.targets)
        )
        self._forget(gone)
        if is_hit:
            self._is_group_dead = bool(self._members)
        outputs = self._shrink_orders(lost, now_s)
        if self._pending and self._pending.stage is not _Stage.WARMING and gone:
            is_target_lost = bool(gone & set(self._pending.targets))
            if is_target_lost or is_hit:
                outputs += self._fail("a node was lost while the group was changed", now_s)
        return outputs + self._check_end(now_s) + self._advance(now_s)

    def tick(self, now_s: float) -> list[Output]:
        """Give up what has passed its deadline."""
        if self._end_deadline_at_s is not None and now_s >= self._end_deadline_at_s:
            self._end_deadline_at_s = now_s + self._settings.switch_deadline_s
            return [StopNow(self._not_ended())]
        pending = self._pending
        if pending is None or now_s < pending.deadline_at_s:
            return []
        if pending.stage is _Stage.WARMING and not pending.is_stop:
            return self._fail(self._attach_failure(pending), now_s, is_job_fault=True)
        if pending.stage is _Stage.CONNECTING:
            late = ", ".join(sorted(set(pending.targets) - pending.ready))
            limit_s = self._settings.connect_deadline_s
            return self._fail_to_connect(f"{late} did not connect within {limit_s:g} s", now_s)
        # A switch or a stop that hangs: only killing the workers frees their nodes.
        pending.deadline_at_s = now_s + self._settings.switch_deadline_s
        return [StopNow(tuple(self._workers))]

    # -- orders -----------------------------------------------------------------------------------

    @property
    def _is_at_end(self) -> bool:
        return self._is_work_done or self._end_deadline_at_s is not None

    def _take(self, order: _Pending, now_s: float) -> list[Output]:
        pending = self._pending
        is_switching = pending is not None and pending.stage is _Stage.SWITCHING
        outputs: list[Output] = []
        superseded, self._next_order = self._next_order, None
        if superseded:
            outputs.append(self._failed(superseded, "superseded", now_s))
        if (is_switching or self._is_at_end) and not order.is_stop:
            # A switch or an end cannot be called back, only waited for (or broken by a death).
            self._next_order = order
            return outputs
        if pending:
            outputs += self._abort(pending)
            outputs.append(self._failed(pending, "superseded", now_s))
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
            if order.stage is not _Stage.WARMING or not lost & set(order.node_ids):
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

    def _abort(self, pending: _Pending) -> list[Output]:
        if pending.stage is not _Stage.CONNECTING:
            return []
        to = tuple(w for w in self._reached_by(pending) if w in self._workers)
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
        if pending.stage is _Stage.SWITCHING and not is_group_left:
            # Some may train in the new group and some in the old: both are of no use now.
            self._is_group_dead = bool(self._members)
        joiners = tuple(w for w in self._workers if w not in self._members)
        self._forget(set(joiners))
        if joiners:
            outputs.append(StopNow(joiners))
        self._pending = None
        outputs.append(self._failed(pending, reason, now_s, is_job_fault=is_job_fault))
        return outputs + self._take_next(now_s)

    def _failed(
        self, pending: _Pending, reason: str, now_s: float, *, is_job_fault: bool = False
    ) -> RescaleFailed:
        return RescaleFailed(
            at_s=now_s,
            job_id=self.job_id,
            generation=pending.generation,
            reason=reason,
            node_ids=self._nodes_of(self._members),
            is_group_dead=self._is_group_dead,
            is_job_fault=is_job_fault,
        )

    # -- deaths -----------------------------------------------------------------------------------

    def _is_leaving(self, message: WorkerExited) -> bool:
        """Whether the member's end belongs to the rescale under way."""
        pending = self._pending
        if pending is None or pending.stage is not _Stage.SWITCHING:
            return False
        if pending.is_stop:
            return True
        is_leaver = message.worker_id not in pending.targets
        return is_leaver and (message.status == 0 or pending.has_switched)

    def _member_died(self, message: WorkerExited, now_s: float) -> list[Output]:
        node_id = self._workers[message.worker_id].node_id
        self._forget({message.worker_id})
        self._is_group_dead = bool(self._members)
        outputs: list[Output] = [
            WorkersLost(
                at_s=now_s,
                job_id=self.job_id,
                generation=self.generation,
                node_ids=(node_id,),
                reason=_in_words(message),
            )
        ]
        if self._pending and self._pending.stage is not _Stage.WARMING:
            outputs += self._fail(f"a member died: {message.reason}", now_s)
        else:
            outputs += self._shrink_orders({node_id}, now_s)
        return outputs + self._check_end(now_s) + self._advance(now_s)

    def _member_ended(self, now_s: float) -> list[Output]:
        if self._end_deadline_at_s is None:
            self._end_deadline_at_s = now_s + self._settings.switch_deadline_s
        outputs: list[Output] = []
        if self._pending and self._pending.stage is not _Stage.SWITCHING:
            outputs += self._fail("the job is at its end", now_s)
        return outputs + self._check_end(now_s) + self._advance(now_s)

    def _joiner_died(self, message: WorkerExited, now_s: float) -> list[Output]:
        is_stop = self._pending is not None and self._pending.is_stop
        self._forget({message.worker_id})
        if is_stop or self._pending is None or message.worker_id not in self._pending.targets:
            return self._advance(now_s)
        return self._fail(_in_words(message), now_s, is_job_fault=True)

    def _check_end(self, now_s: float) -> list[Output]:
        if not self._is_at_end:
            return []
        if not self._members and self._pending is None:
            # Those that had ended well were lost with their nodes: the end did not happen.
            self._end_deadline_at_s = None
            self._is_work_done = False
            return self._take_next(now_s)
        if not self._members or self._end_deadline_at_s is None or self._not_ended():
            return []
        outputs: list[Output] = [
            self._failed(order, "the job has ended", now_s)
            for order in (self._pending, self._next_order)
            if order
        ]
        joiners = tuple(w for w in self._workers if w not in self._members)
        if joiners:
            outputs.append(StopNow(joiners))
        self._workers.clear()
        self._members = ()
        self._pending = self._next_order = self._end_deadline_at_s = None
        self._is_work_done = self._is_group_dead = False
        outputs.append(JobFinished(at_s=now_s, job_id=self.job_id, samples=self._samples))
        return outputs

    def _not_ended(self) -> tuple[str, ...]:
        return tuple(w for w in self._members if not self._workers[w].has_ended_well)

    def _forget(self, worker_ids: set[str]) -> None:
        for worker_id in worker_ids:
            del self._workers[worker_id]
        self._members = tuple(w for w in self._members if w not in worker_ids)

    # -- progress ---------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> list[Output]:
        """Take every step that nothing stands in the way of."""
        pending = self._pending
        if pending is None:
            return []
        if pending.is_stop:
            return self._advance_stop(pending, now_s)
        if pending.stage is _Stage.WARMING:
            return self._advance_warming(pending, now_s)
        if pending.stage is _Stage.CONNECTING:
            return self._advance_connecting(pending, now_s)
        return self._advance_switching(pending, now_s)

    def _advance_stop(self, pending: _Pending, now_s: float) -> list[Output]:
        self._forget({w for w, worker in self._workers.items() if worker.has_ended_well})
        if not self._workers:
            self._is_group_dead = False
            return self._done(pending, now_s)
        if pending.stage is _Stage.SWITCHING:
            return []
        pending.stage = _Stage.SWITCHING
        return [StopNow(tuple(self._workers), self._settings.stop_grace_s)]

    def _advance_warming(self, pending: _Pending, now_s: float) -> list[Output]:
        outputs = self._start_missing(pending)
        if self._is_cold(pending):
            return outputs
        is_immediate = not self._members or self._is_group_dead
        pending.stage = _Stage.CONNECTING
        pending.deadline_at_s = now_s + self._settings.connect_deadline_s
        prepare = PrepareGroup(
            job_id=self.job_id,
            generation=pending.generation,
            members=pending.targets,
            to=self._reached_by(pending),
            is_immediate=is_immediate,
        )
        outputs.append(Send(prepare))
        if is_immediate:
            self._start_switching(pending, now_s)
        return outputs + self._advance(now_s)

    def _is_cold(self, pending: _Pending) -> bool:
        return not all(self._workers[w].is_warm for w in pending.targets)

    def _start_missing(self, pending: _Pending) -> list[Output]:
        """Start workers where there are none yet, and end those that nobody asked for."""
        present = {(worker.node_id, worker.slot): w for w, worker in self._workers.items()}
        to_start: dict[str, str] = {}
        slots: dict[str, int] = {}
        targets = []
        for node_id in pending.node_ids:
            for slot in range(pending.slots.get(node_id, 1)):
                worker_id = present.get((node_id, slot))
                if worker_id is None:
                    worker_id = f"{self.job_id}.{pending.generation}.{node_id}.{slot}"
                    self._workers[worker_id] = _Worker(node_id, slot)
                    to_start[worker_id] = node_id
                    slots[worker_id] = slot
                targets.append(worker_id)
        pending.targets = tuple(targets)
        strays = {w for w in self._workers if w not in pending.targets and w not in self._members}
        self._forget(strays)
        outputs: list[Output] = [StopNow(tuple(sorted(strays)))] if strays else []
        if to_start:
            outputs.append(StartOn(to_start, slots))
        return outputs

    def _reached_by(self, pending: _Pending) -> tuple[str, ...]:
        """Present members, then joiners: the first is the one to save a suspended job's state."""
        return tuple(dict.fromkeys((*self._members, *pending.targets)))

    def _start_switching(self, pending: _Pending, now_s: float) -> None:
        pending.stage = _Stage.SWITCHING
        pending.deadline_at_s = now_s + self._settings.switch_deadline_s

    def _advance_connecting(self, pending: _Pending, now_s: float) -> list[Output]:
        if not pending.ready.issuperset(pending.targets):
            return []
        to = self._reached_by(pending)
        self._start_switching(pending, now_s)
        switch = Switch(job_id=self.job_id, generation=pending.generation, to=to)
        return [Send(switch), *self._advance(now_s)]

    def _advance_switching(self, pending: _Pending, now_s: float) -> list[Output]:
        if not pending.has_switched or any(w not in pending.targets for w in self._workers):
            return []
        self._members = pending.targets
        self._is_group_dead = False
        self.generation = pending.generation
        return self._done(pending, now_s)

    def _done(self, pending: _Pending, now_s: float) -> list[Output]:
        self._pending = None
        reports = pending.switched.values()
        starts_from = max((report.samples for report in reports), default=self._samples)
        if not self._is_work_done:
            self._samples = starts_from
        done = RescaleDone(
            at_s=now_s,
            job_id=self.job_id,
            generation=pending.generation,
            node_ids=self._nodes_of(self._members),
            stall_s=max((report.stall_s for report in reports), default=0.0),
            samples=starts_from,
        )
        self._group_failures = 0
        return [done, *self._check_end(now_s), *self._take_next(now_s)]

    def _nodes_of(self, worker_ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._workers[w].node_id for w in worker_ids))

    def _attach_failure(self, pending: _Pending) -> str:
        cold = [w for w in pending.targets if not self._workers[w].is_warm]
        return (
            f"{len(cold)} of {len(pending.targets)} workers were not ready "
            f"{self._settings.attach_deadline_s:g} s after their start: call "
            f"malletrain.train.attach near the top of the script and iterate over "
            f"job.batches(), or raise attach_deadline_s"
        )


def _in_words(message: WorkerExited) -> str:
    words = f"worker {message.worker_id} {message.reason}"
    if not message.had_attached:
        words += (
            "; it never called malletrain.train.attach: call it near the top of the script "
            "and iterate over job.batches()"
        )
    words += f"; log: {message.log_path}"
    return f"{words}\n{message.log_tail}" if message.log_tail else words
