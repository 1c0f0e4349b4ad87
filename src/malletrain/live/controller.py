"""The controller: events in, journal, state, decision, actions out.

One task takes in what came, writes it to the journal, applies it, and decides. Whoever has
something to say puts an event into the inbox; nobody else changes the state. What blocks or
computes (the disk, the allocator) runs off the event loop, and what comes meanwhile waits in the
inbox, so that a burst of events leads to one decision.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from malletrain.clock import Clock
from malletrain.config import Config
from malletrain.core.actions import Rescale, WakeAt
from malletrain.core.apply import apply, replay
from malletrain.core.decide import decide, has_news, problem_of
from malletrain.core.events import (
    AnyEvent,
    Configured,
    DecisionTaken,
    JobFinished,
    NodeEndsForeseen,
    NodesLeaving,
    RescaleDone,
    WokeUp,
)
from malletrain.core.model import Cluster, Job
from malletrain.core.pace import Pace, is_measurement, is_quiet
from malletrain.core.problem import Allocator
from malletrain.errors import InvariantError, JournalWriteError, UnknownJobError
from malletrain.live.alarms import Alarms
from malletrain.live.executor import Executor
from malletrain.live.inbox import Entry, Inbox
from malletrain.live.ports import Hands, JobPaths, Offload, in_thread
from malletrain.live.progress import ProgressPool, with_progress_pooled
from malletrain.live.store import EventStore
from malletrain.live.views import ClusterView, DecisionView, cluster_view

#: After the last agent has come back, for the messages it had kept.
LAST_WORDS_S = 0.5
_POLL_S = 0.05
_DAY_S = 86_400.0
_TRIM_FACTOR = 4

_log = logging.getLogger(__name__)


def _ignore(_: Cluster) -> None:
    pass


class _Stage(enum.Enum):
    #: An earlier controller's agents are awaited.
    RETURNING = enum.auto()
    #: They are back, or given up.
    RETURNED = enum.auto()
    WORKING = enum.auto()
    #: Asked to end; jobs save their state next.
    ENDING = enum.auto()
    ENDED = enum.auto()


class Controller:
    """Owns the state; everything that touches the world is given to it."""

    def __init__(
        self,
        config: Config,
        *,
        store: EventStore,
        allocator: Allocator,
        clock: Clock,
        paths: JobPaths,
        offload: Offload = in_thread,
        hands: Hands | None = None,
        heed: Callable[[Cluster], None] = _ignore,
    ) -> None:
        """Take what it works with.

        `hands` carry decisions out in place of the agents; `heed` is told the state after every
        change that is more than a measurement.
        """
        self.config = config
        self.allocator = allocator
        self._live = config.live
        self._store = store
        self._clock = clock
        self._offload = offload
        self._cluster = Cluster()
        self._inbox = Inbox()
        self._progress = ProgressPool(self._live.progress_journal_s, self._live.progress_decide_s)
        self._alarms = Alarms(clock)
        self.counters: Counter[str] = Counter()
        self.executor = Executor(
            cluster=lambda: self._cluster,
            post=self._inbox.put,
            clock=clock,
            alarms=self._alarms,
            paths=paths,
            live=config.live,
            worker=config.worker,
            counters=self.counters,
        )
        self._hands = hands or self.executor
        self._heed = heed
        self._since_snapshot = 0
        self._pace = Pace(self._live.progress_decide_s)
        #: Came while a decision was made, and was not known to its allocator.
        self._late: list[AnyEvent] = []
        self._last_decision: DecisionView | None = None
        self._stage = _Stage.RETURNING
        self._is_asked_to_end = False
        #: What keeps the journal from being written, in words for the user.
        self.journal_trouble = ""
        #: The batch system is no more; what to do about it.
        self._batch_trouble = ""
        self._decision_trouble = ""
        self._pilots_waiting = 0

    # -- what it says ------------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    @property
    def trouble(self) -> str:
        """What keeps it from its work, in words for the user."""
        troubles = (self.journal_trouble, self._batch_trouble, self._decision_trouble)
        return "; ".join(filter(None, troubles))

    @property
    def now_s(self) -> float:
        return max(self._clock.now_s(), self._cluster.now_s)

    @property
    def cluster_now(self) -> Cluster:
        """The state as it is now, when nothing has happened for a while."""
        return replace(self._cluster, now_s=self.now_s)

    def view(self) -> ClusterView:
        counters = dict(self.counters)
        return cluster_view(
            self._cluster,
            self.now_s,
            self._last_decision,
            counters,
            trouble=self.trouble,
            pilots_waiting=self._pilots_waiting,
        )

    def find(self, key: str) -> Job:
        """Return the job of this id, else the newest of this name.

        Raises:
            UnknownJobError: there is none.
        """
        jobs = self._cluster.jobs
        if key in jobs:
            return jobs[key]
        named = [job for job in jobs.values() if job.spec.name == key]
        if not named:
            raise UnknownJobError(f"no job has the id or name {key}: see `malletrain jobs`")
        return max(named, key=lambda job: (not job.is_over, job.submitted_at_s))

    # -- what it is told ---------------------------------------------------------------------------

    async def record(self, event: AnyEvent) -> None:
        """Take in what a user wants; return once it is on disk and in the state.

        Raises:
            JournalWriteError: the journal takes nothing now, and so nothing new is begun.
        """
        if self.journal_trouble:
            raise JournalWriteError(self.journal_trouble)
        done = asyncio.get_running_loop().create_future()
        self._inbox.put(event, done)
        await done

    # -- what the batch system says (`batch.base.BatchListener`) -----------------------------------

    def node_lost(self, node_id: str, reason: str) -> None:
        self.executor.agents.lose(node_id, reason)

    def nodes_ended(self, reason: str) -> None:
        for node_id in self.executor.agents.node_ids:
            self.node_lost(node_id, reason)

    def batch_ended(self, reason: str) -> None:
        """Say so, and wait for no agent: every node has ended with it."""
        _log.error("%s", reason)
        self._batch_trouble = reason
        self.nodes_ended("its batch system has ended")

    def batch_port_abused(self, times: int) -> None:
        self.counters["malformed_batch_messages"] += times

    def batch_troubled(self, trouble: str) -> None:
        if trouble and trouble != self._batch_trouble:
            _log.warning("%s", trouble)
        self._batch_trouble = trouble

    def pilots_wait(self, count: int) -> None:
        self._pilots_waiting = count

    def nodes_to_leave(self, reasons: Mapping[str, str], within_s: float) -> None:
        for node_id, reason in reasons.items():
            deadline_at_s = self.now_s + within_s
            self._inbox.put(
                NodesLeaving(
                    at_s=self.now_s,
                    node_ids=(node_id,),
                    deadline_at_s=deadline_at_s,
                    reason=reason,
                )
            )

    def node_ends_foreseen(self, ends_at_s: Mapping[str, float | None]) -> None:
        self._inbox.put(NodeEndsForeseen(at_s=self.now_s, ends_at_s=dict(ends_at_s)))

    # -- its life ----------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Rebuild the state from the journal. To be called once, before `run`."""
        recovered = await self._offload(self._store.load)
        self._cluster = replay(recovered.events, recovered.snapshot)
        self._since_snapshot = len(recovered.events)
        if self._cluster.settings != self.config.core:
            self._inbox.put(Configured(at_s=self.now_s, settings=self.config.core))
        self.executor.expect_survivors(self._cluster.nodes.values(), self._live.reattach_s)

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            JournalError: the journal was damaged under way. Workers train on without us.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._alarms.run())
            tasks.create_task(self._work())
            tasks.create_task(self._await_agents())

    async def _await_agents(self) -> None:
        """Give the agents of the journal's nodes the time to come back with their workers."""
        if self._cluster.nodes:
            while self.executor.agents.away:
                await self._clock.sleep(_POLL_S)
            await self._clock.sleep(LAST_WORDS_S)
        if self._stage is _Stage.RETURNING:
            self._enter(_Stage.RETURNED)

    async def shut_down(self) -> None:
        """Have every job save its state and end, within limits, then release all nodes."""
        self._is_asked_to_end = True
        if self._is_taking_over:
            # Only a worker that was taken over can be asked to save its state.
            await self._while(lambda: self._is_taking_over and not self.journal_trouble)
            if self._is_taking_over:
                self._enter(_Stage.RETURNED)
        else:
            self._enter(_Stage.ENDING)
        await self._while(lambda: self._is_ending)
        released: set[str] = set()
        await self._while(lambda: self._are_nodes_left(released) or len(self._inbox) > 0)

    def _are_nodes_left(self, released: set[str]) -> bool:
        """Release those that have come since, too."""
        agents = self.executor.agents
        for node_id in set(agents.node_ids) - released:
            agents.release(node_id, "the controller shuts down")
            released.add(node_id)
        return bool(agents.node_ids)

    async def _while(self, is_so: Callable[[], bool]) -> None:
        """Return when it is so no more, or `shutdown_limit_s` is over."""
        deadline_at_s = self.now_s + self._live.shutdown_limit_s
        while is_so() and self.now_s < deadline_at_s:
            await self._clock.sleep(_POLL_S)

    @property
    def _is_taking_over(self) -> bool:
        return self._stage in (_Stage.RETURNING, _Stage.RETURNED)

    @property
    def _is_ending(self) -> bool:
        return not self.journal_trouble and (
            self._stage is not _Stage.ENDED or self.executor.has_workers or len(self._inbox) > 0
        )

    def _enter(self, stage: _Stage) -> None:
        self._stage = stage
        self._wake()

    def _wake(self) -> None:
        self._inbox.put(WokeUp(at_s=self.now_s))

    # -- its work ----------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            await self._inbox.has_entries.wait()
            await self._clock.sleep(self._live.settle_s)
            events = [*self._late, *await self._take_in()]
            self._late = []
            if self._stage is _Stage.WORKING:
                self._tell(events)
            if self._stage is _Stage.RETURNED:
                self._take_over()
            elif self._stage is _Stage.WORKING and self._is_decision_due(events):
                await self._decide(events)
            elif self._stage is _Stage.ENDING:
                await self._suspend_all()
            await self._keep_snapshot()

    def _take_over(self) -> None:
        """Carry on with the workers of an earlier controller, if there are any."""
        self.executor.adopt()
        if self._cluster.wake_at_s is not None:
            self.executor.wake_at(self._cluster.wake_at_s)
        self._enter(_Stage.ENDING if self._is_asked_to_end else _Stage.WORKING)

    async def _suspend_all(self) -> None:
        running = [job for job in self._cluster.jobs.values() if job.held_node_ids]
        actions = tuple(Rescale(job.spec.id, job.generation + 1, ()) for job in running)
        decision = DecisionTaken(
            at_s=self.now_s, actions=actions, pins={}, reason="the controller shuts down"
        )
        try:
            if actions:
                await self._carry_out(decision)
        except JournalWriteError as error:
            _log.warning("jobs fall back to their last checkpoint: %s", error)
        self._stage = _Stage.ENDED

    async def _take_in(self) -> list[AnyEvent]:
        """Journal and apply what came. While the journal takes nothing, nothing happens here."""
        entries = self._progress.sift(self._inbox.take(), self._cluster, self.now_s)
        while True:
            cluster, sound = self._applied(entries)
            try:
                await self._append([entry.event for entry in sound])
                break
            except JournalWriteError as error:
                entries = await self._wait_for_room(entries, error)
        self._cluster = cluster
        due_at_s = self._progress.due_at_s(cluster)
        self._alarms.set("progress", due_at_s, self._inbox.has_entries.set)
        for entry in sound:
            if entry.done and not entry.done.done():
                entry.done.set_result(None)
        events = [entry.event for entry in sound]
        self._forget_over(events)
        return events

    def _forget_over(self, events: Sequence[AnyEvent]) -> None:
        for event in events:
            if isinstance(event, JobFinished | RescaleDone):
                job = self._cluster.jobs.get(event.job_id)
                if job and job.is_over:
                    self.executor.forget_over(event.job_id)
                    self._progress.forget(event.job_id)

    def _applied(self, entries: Sequence[Entry]) -> tuple[Cluster, list[Entry]]:
        """Apply before writing: an event that cannot be applied must not be in the journal."""
        cluster = self._cluster
        sound = []
        for entry in entries:
            try:
                cluster = apply(cluster, entry.event)
            except Exception as error:
                _log.exception("an event could not be applied: %s", entry.event)
                self.counters["failed_events"] += 1
                if entry.done and not entry.done.done():
                    entry.done.set_exception(InvariantError(f"{entry.event}: {error}"))
            else:
                sound.append(entry)
        return cluster, sound

    async def _append(self, events: Sequence[AnyEvent]) -> None:
        if events:
            await self._offload(partial(self._store.append, events))
            self._since_snapshot += len(events)
            self.journal_trouble = ""

    async def _wait_for_room(
        self, entries: Sequence[Entry], error: JournalWriteError
    ) -> list[Entry]:
        """Refuse what users asked, keep the rest, and try again later."""
        if not self.journal_trouble:
            _log.error("%s", error)
        self.journal_trouble = str(error)
        self.counters["journal_write_errors"] += 1
        for entry in entries:
            if entry.done and not entry.done.done():
                entry.done.set_exception(error)
        await self._clock.sleep(self._live.journal_retry_s)
        kept = [entry for entry in entries if entry.done is None]
        came = self._progress.sift(self._inbox.take(), self._cluster, self.now_s)
        return with_progress_pooled([*kept, *came])

    async def _keep_snapshot(self) -> None:
        if self._since_snapshot < self._live.snapshot_every_events:
            return
        try:
            await self._offload(partial(self._store.snapshot, self._cluster))
            before_s = self.now_s - self._live.journal_kept_days * _DAY_S
            # More than came since the last time: it catches up, and never takes long.
            at_most = _TRIM_FACTOR * self._live.snapshot_every_events
            await self._offload(partial(self._store.trim, before_s, at_most))
        except JournalWriteError as error:
            # The next restart replays more; nothing else is missing.
            _log.warning("no snapshot: %s", error)
        self._since_snapshot = 0

    # -- deciding ----------------------------------------------------------------------------------

    def _is_decision_due(self, events: Sequence[AnyEvent]) -> bool:
        if self._pace.is_due(events, self.now_s):
            return True
        if self._pace.is_owed:
            self._alarms.set("decide", self._pace.due_at_s, self._inbox.has_entries.set)
        return False

    async def _decide(self, events: Sequence[AnyEvent]) -> None:
        now_s = self.now_s
        self._pace.decided(now_s)
        self._alarms.cancel("decide")
        try:
            problem = problem_of(replace(self._cluster, now_s=now_s))
            allocation = None
            if problem is not None:
                allocation = await self._offload(partial(self.allocator.allocate, problem))
            # What came while the allocator ran counts: no order may name a node that is gone.
            late = await self._take_in() if len(self._inbox) else []
            self._tell(late)
            self._owe_decision(late)
            newest = replace(self._cluster, now_s=max(now_s, self._cluster.now_s))
            decision = decide(newest, allocation, (*events, *late))
            if has_news(self._cluster, decision):
                await self._carry_out(decision)
        except JournalWriteError as error:
            self.journal_trouble = str(error)
            self._alarms.set("decide", self.now_s + self._live.journal_retry_s, self._wake)
        except Exception as error:
            # Jobs train on with what they have; the next event brings the next try.
            _log.exception("no decision")
            self.counters["failed_decisions"] += 1
            self._decision_trouble = f"no decision can be taken, see the controller's log: {error}"
        else:
            self._decision_trouble = ""

    def _tell(self, events: Sequence[AnyEvent]) -> None:
        """Have the batch system heed what happened, where it is more than a measurement."""
        if not all(map(is_measurement, events)):
            self._heed(self._cluster)

    def _owe_decision(self, late: Sequence[AnyEvent]) -> None:
        """Have another decision follow, by an allocator that knows what came late."""
        self._late = [event for event in late if not is_quiet(event)]
        if self._late:
            self._inbox.has_entries.set()

    async def _carry_out(self, decision: DecisionTaken) -> None:
        """Write the decision down before anything is done about it."""
        cluster = apply(self._cluster, decision)
        await self._append([decision])
        self._cluster = cluster
        self._heed(cluster)
        if any(not isinstance(action, WakeAt) for action in decision.actions):
            self._last_decision = DecisionView(at_s=decision.at_s, reason=decision.reason)
        self._hands.execute(decision)
