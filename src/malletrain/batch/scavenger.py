"""Takes a queue's idle nodes by pilot jobs: the batch system that Slurm and PBS share.

`harvest.plan` decides, a `Queue` carries out, and what is here waits, remembers and asks at an
administrator's pace. Pilots call the controller by themselves: no query is needed to learn of a
node. What the queue says serves to fit pilots into holes, to foresee when nodes are wanted back,
and to find out what became of pilots that never called.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from malletrain.batch import harvest
from malletrain.batch.base import BatchListener
from malletrain.batch.commands import NoAnswerError
from malletrain.batch.harvest import Held, Plan, Situation, Waiting
from malletrain.batch.queue import Queue, Survey
from malletrain.clock import Clock, within
from malletrain.config import ScavengeSettings
from malletrain.core.demand import demand
from malletrain.core.model import Cluster, Node
from malletrain.errors import BatchError

#: Of the time between surveys: many controllers must not ask in the same instant.
_JITTER = 0.1
#: Planned starts move with every backfill cycle; what moves less is no news to jobs.
_SAME_END_S = 60.0
_NEVER_S = -math.inf
_LEAST_PAUSE_S = 0.01
#: Agents of an earlier controller wait for the new one's address.
_START_LIMIT_S = 5.0
#: What is submitted meanwhile may be missing in it.
_SURVEY_TAKES_S = 15.0

_log = logging.getLogger(__name__)


class Scavenger:
    """A `BatchSystem` over the queue of another."""

    def __init__(
        self,
        queue: Queue,
        settings: ScavengeSettings,
        clock: Clock,
        *,
        logs: Path,
        jitter: Callable[[], float],
    ) -> None:
        """Take what it works with.

        Args:
            queue: from which nodes are taken.
            settings: how.
            clock: by which it waits.
            logs: where pilots write what goes wrong, for the user.
            jitter: returns a number between 0 and 1.
        """
        self._queue = queue
        self._settings = settings
        self._clock = clock
        self._logs = logs
        self._jitter = jitter
        self._listener: BatchListener | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_news = asyncio.Event()
        self._cluster = Cluster()
        #: Pilots that have called, ever: one that is gone again is no failure.
        self._called: set[str] = set()
        #: One has since the last survey.
        self._has_called = False
        #: As far as is known: those that start are here until they call.
        self._waiting: dict[str, Waiting] = {}
        #: Since when a survey has not found them waiting.
        self._started_at_s: dict[str, float] = {}
        self._survey: Survey | None = None
        self._previous_survey: Survey | None = None
        self._submitted_at_s = _NEVER_S
        self._failures = 0
        #: After an order that failed, none is given before this time.
        self._orders_from_s = _NEVER_S
        self._surplus_since_s: float | None = None
        #: When a node was last seen to be taken from us.
        self._taken_at_s = _NEVER_S
        self._nodes_before: dict[str, Node] = {}
        self._survey_at_s = _NEVER_S
        self._survey_every_s = settings.query_every_s
        #: The agents' own word of when their walltimes end, by node id.
        self._walltime_ends_at_s: dict[str, float | None] = {}
        self._queue_trouble = ""
        self._pilot_trouble = ""

    # -- `batch.base.BatchSystem` ------------------------------------------------------------------

    @property
    def max_nodes(self) -> int | None:
        return self._settings.max_nodes

    async def start(self, controller_url: str, token_file: Path, listener: BatchListener) -> None:  # noqa: ARG002 - pilots read both from the state directory
        self._listener = listener
        # What is known by now are the nodes of an earlier controller.
        self._has_news.clear()
        asking = asyncio.create_task(self._ask())
        try:
            await within(self._clock, _START_LIMIT_S, asyncio.shield(asking))
        except TimeoutError:
            self._queue_trouble = f"the scheduler has not answered within {_START_LIMIT_S:g} s"
            self._tell_trouble()
        self._tell_ended()
        self._task = asyncio.create_task(self._work(asking))

    def _tell_ended(self) -> None:
        """Tell which nodes ended while no controller was there: no agent of theirs will call.

        A survey that lists none of the pilots may have another reason, and is not believed.
        """
        running = set(self._survey.running.values()) if self._survey else set()
        nodes = self._cluster.nodes.values()
        ended = [node.id for node in nodes if node.pilot_id not in running]
        if self._listener and len(ended) < len(nodes):
            for node_id in ended:
                self._listener.node_lost(node_id, "its pilot ended while no controller was there")

    def heed(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._has_news.set()

    async def add_nodes(self, count: int) -> None:  # noqa: ARG002 - whatever the count
        raise BatchError(
            "nodes come from the batch system's queue as jobs need them: submit a job, or raise "
            "max_nodes in [scavenge]",
            is_transient=False,
        )

    async def remove_node(self, node_id: str, *, is_abrupt: bool) -> None:
        node = self._cluster.nodes.get(node_id)
        if node is None or self._listener is None:
            raise BatchError(f"there is no node {node_id}", is_transient=False)
        if is_abrupt:
            await self._queue.cancel((node.pilot_id,))
        else:
            reason = "taken back by hand"
            self._listener.nodes_to_leave({node_id: reason}, self._settings.grace_s)

    async def lend_no_more(self) -> None:
        await self.detach()
        with contextlib.suppress(BatchError):
            # `stop` cancels again, those too that start meanwhile, and tells what fails.
            await self._queue.cancel(tuple(self._waiting))

    async def detach(self) -> None:
        if self._task:
            task, self._task = self._task, None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def stop(self) -> None:
        await self.detach()
        held = {node.pilot_id for node in self._cluster.nodes.values()}
        if pilots := tuple(sorted({*self._waiting, *held})):
            # Those that have ended already are no error.
            try:
                await self._queue.cancel(pilots)
            except BatchError as error:
                # Those that hold nodes end by themselves, the others only once they have started.
                waiting = ", ".join(sorted(self._waiting)) or "none"
                alone_s = self._settings.controller_away_limit_s
                raise BatchError(
                    f"pilots that may be left in the queue: {waiting}; cancel them by hand, or "
                    f"they end {alone_s:g} s after their start ({error})",
                    is_transient=error.is_transient,
                ) from error

    # -- its work ----------------------------------------------------------------------------------

    async def _work(self, first_survey: asyncio.Task[None]) -> None:
        with contextlib.suppress(BatchError):
            await first_survey
        # Before it knows the jobs, and the pilots that come back to a restarted controller, every
        # pilot would be one too many.
        await self._has_news.wait()
        while True:
            try:
                pause_s = await self._turn()
            except Exception as error:
                # A bug of ours must neither end the harvest nor flood the scheduler.
                _log.exception("the scavenger's turn was broken off")
                self._pilot_trouble = f"no pilots are planned, see the controller's log: {error}"
                self._tell_trouble()
                await self._clock.sleep(self._settings.query_every_s)
                continue
            with contextlib.suppress(TimeoutError):
                await within(self._clock, pause_s, self._has_news.wait())

    async def _turn(self) -> float:
        """Do what is to be done now; return how long nothing is, but for news."""
        if self._is_survey_due(self._clock.now_s()):
            await self._ask()
        self._has_news.clear()
        self._take_note()
        plan = harvest.plan(self._situation(), self._settings)
        await self._carry_out(plan)
        if self._listener:
            self._listener.pilots_wait(len(self._waiting))
        next_at_s = min(self._survey_at_s, plan.again_at_s or math.inf)
        if self._orders_from_s > self._clock.now_s():
            next_at_s = min(next_at_s, self._orders_from_s)
        # Where no survey is due, for want of jobs, nothing is due but news.
        return min(
            max(next_at_s - self._clock.now_s(), _LEAST_PAUSE_S), self._settings.query_every_s
        )

    def _is_survey_due(self, now_s: float) -> bool:
        is_wanted = bool(self._cluster.nodes or self._waiting) or demand(self._cluster) > 0
        return is_wanted and now_s >= self._survey_at_s

    async def _ask(self) -> None:
        """Make a survey; where that fails, ask later and later."""
        try:
            survey = await self._surveyed()
        except BatchError as error:
            if not error.is_transient and self._task is None:
                raise
            self._survey_every_s = min(2 * self._survey_every_s, self._settings.query_backoff_max_s)
            self._queue_trouble = str(error)
        else:
            self._survey_every_s = self._settings.query_every_s
            self._queue_trouble = ""
            self._previous_survey, self._survey = self._survey, survey
            self._take_note()
            self._foresee(survey)
            await self._cancel_silent(survey)
        jitter = 1.0 + _JITTER * (2.0 * self._jitter() - 1.0)
        self._survey_at_s = self._clock.now_s() + self._survey_every_s * jitter
        self._tell_trouble()

    async def _surveyed(self) -> Survey:
        # A question to a scheduler that is away takes its programs many seconds.
        if self._queue_trouble and not await self._queue.is_up():
            raise BatchError(self._queue_trouble, is_transient=True)
        return await self._queue.survey()

    async def _cancel_silent(self, survey: Survey) -> None:
        try:
            await self._give_up_silent(survey)
        except BatchError as error:
            self._pilot_trouble = str(error)

    async def _give_up_silent(self, survey: Survey) -> None:
        """Find pilots that ended before they called, or hold a node and do not call."""
        running = set(survey.running.values())
        for pilot_id in running - self._called:
            # One that started while no controller was there.
            self._waiting.setdefault(pilot_id, Waiting(0.0, survey.at_s))
        for pilot_id, walltime_s in survey.waiting.items():
            self._waiting.setdefault(pilot_id, Waiting(walltime_s, survey.at_s))
        started = {p for p in self._waiting if p in running}
        self._started_at_s = {p: self._started_at_s.get(p, survey.at_s) for p in started}
        mute = sorted(p for p in started if self._has_been_mute(p, survey.at_s))
        ended = sorted(
            pilot_id
            for pilot_id, waiting in self._waiting.items()
            if pilot_id not in running
            and pilot_id not in survey.waiting
            # Not one that was submitted while the survey was made.
            and waiting.submitted_at_s < survey.at_s - _SURVEY_TAKES_S
        )
        for pilot_id in (*mute, *ended):
            del self._waiting[pilot_id]
        has_called, self._has_called = self._has_called, False
        # Where others call, one that ended before was taken back at its start, or cancelled.
        if not mute and (not ended or has_called):
            return
        self._failures += 1
        last = (*mute, *ended)[-1]
        self._pilot_trouble = (
            f"{len(mute) + len(ended)} pilots did not call, the last of them {last}: unless "
            f"somebody cancelled it, see its log in {self._logs}, and run `malletrain doctor`"
        )
        if mute:
            await self._queue.cancel(tuple(mute))

    def _has_been_mute(self, pilot_id: str, at_s: float) -> bool:
        return at_s - self._started_at_s[pilot_id] >= self._settings.call_limit_s

    def _foresee(self, survey: Survey) -> None:
        changed: dict[str, float | None] = {}
        for node in self._cluster.nodes.values():
            walltime_end_at_s = self._walltime_ends_at_s.get(node.id)
            ends = [walltime_end_at_s, survey.wanted_at_s.get(node.host)]
            end_at_s = min((end for end in ends if end is not None), default=None)
            if not _is_same_end(end_at_s, node.expected_end_at_s):
                changed[node.id] = end_at_s
        if changed and self._listener:
            self._listener.node_ends_foreseen(changed)

    def _take_note(self) -> None:
        """Compare what was known with the nodes that there are."""
        nodes = self._cluster.nodes
        for node in nodes.values():
            self._waiting.pop(node.pilot_id, None)
            self._started_at_s.pop(node.pilot_id, None)
            if node.pilot_id not in self._called:
                self._called.add(node.pilot_id)
                self._has_called = True
                self._walltime_ends_at_s[node.id] = node.expected_end_at_s
                self._failures = 0
                self._pilot_trouble = ""
                self._tell_trouble()
        for node_id in self._walltime_ends_at_s.keys() - nodes.keys():
            del self._walltime_ends_at_s[node_id]
        self._note_takings(nodes)

    def _note_takings(self, nodes: Mapping[str, Node]) -> None:
        """Note when nodes are asked back, and when one that was, or one without notice, is gone."""
        gone = [node for node_id, node in self._nodes_before.items() if node_id not in nodes]
        is_taken = any(node.is_awaited or node.leaving_at_s is None for node in gone)
        if is_taken or any(node.is_awaited for node in nodes.values()):
            self._taken_at_s = self._clock.now_s()
        self._nodes_before = dict(nodes)

    def _situation(self) -> Situation:
        owners = self._cluster.owners
        return Situation(
            now_s=self._clock.now_s(),
            demand=demand(self._cluster),
            held={
                node.id: Held(
                    host=node.host,
                    pilot_id=node.pilot_id,
                    called_at_s=node.opened_at_s,
                    is_used=node.id in owners,
                    is_leaving=node.leaving_at_s is not None,
                )
                for node in self._cluster.nodes.values()
            },
            waiting=dict(self._waiting),
            survey=self._survey,
            previous_survey=self._previous_survey,
            submitted_at_s=self._submitted_at_s,
            failures=self._failures,
            surplus_since_s=self._surplus_since_s,
            taken_at_s=self._taken_at_s,
        )

    async def _carry_out(self, plan: Plan) -> None:
        if not plan.has_surplus:
            self._surplus_since_s = None
        elif self._surplus_since_s is None:
            self._surplus_since_s = self._clock.now_s()
        if plan.give_back and self._listener:
            self._listener.nodes_to_leave(plan.give_back, self._settings.grace_s)
        if self._queue_trouble or self._clock.now_s() < self._orders_from_s:
            # Each order would take many seconds to fail, or has just failed.
            return
        try:
            if plan.cancel:
                await self._queue.cancel(plan.cancel)
                for pilot_id in plan.cancel:
                    self._waiting.pop(pilot_id, None)
            for count, walltime_s in plan.submit:
                await self._submit(count, walltime_s)
        except BatchError as error:
            self._failures += 1
            self._pilot_trouble = str(error)
            self._tell_trouble()
            pause_s = harvest.order_pause_s(self._failures, self._settings)
            self._orders_from_s = self._clock.now_s() + pause_s
            if isinstance(error, NoAnswerError):
                # What was submitted may be there all the same: look before the next try.
                self._survey_at_s = min(self._survey_at_s, self._orders_from_s)

    async def _submit(self, count: int, walltime_s: float) -> None:
        pilot_ids = await self._queue.submit(count, walltime_s)
        self._submitted_at_s = self._clock.now_s()
        for pilot_id in pilot_ids:
            self._waiting[pilot_id] = Waiting(walltime_s, self._submitted_at_s)

    def _tell_trouble(self) -> None:
        troubles = [self._pilot_trouble]
        if self._queue_trouble:
            troubles.insert(
                0,
                f"{self._queue_trouble}; training goes on, and it is asked again every "
                f"{self._survey_every_s:.0f} s",
            )
        if self._listener:
            self._listener.batch_troubled("; ".join(filter(None, troubles)))


def _is_same_end(first_s: float | None, second_s: float | None) -> bool:
    if first_s is None or second_s is None:
        return first_s is second_s
    return abs(first_s - second_s) <= _SAME_END_S
