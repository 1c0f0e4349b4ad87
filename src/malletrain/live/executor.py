"""Carries decisions out: one `RescaleFlow` a job between the agents and the core's events.

Everything here happens on the event loop and waits for nothing: messages and orders come in,
messages and events go out. Whatever an order comes to, its flow says so in exactly one event.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import asdict, replace

from malletrain.clock import Clock
from malletrain.config import LiveSettings, WorkerDefaults
from malletrain.core.actions import ReleaseNodes, Rescale, Stop, WakeAt
from malletrain.core.events import (
    AnyEvent,
    CheckpointSaved,
    DecisionTaken,
    JobNoted,
    NodesJoined,
    NodesLeaving,
    NodesLost,
    ProgressReported,
    RescaleDone,
    RescaleFailed,
    WokeUp,
)
from malletrain.core.model import Cluster, JobSpec, Node
from malletrain.live.agents import Agents
from malletrain.live.alarms import Alarms
from malletrain.live.homes import Homes
from malletrain.live.ports import JobPaths
from malletrain.live.rendezvous import Rendezvous
from malletrain.live.rescale import (
    FlowSettings,
    Output,
    RescaleFlow,
    Send,
    StartOn,
    StopNow,
)
from malletrain.live.survivors import Survivors, holds_nodes, journalled
from malletrain.wire import (
    AgentHello,
    AgentLeaving,
    GroupFailed,
    GroupReady,
    Message,
    Noted,
    Progress,
    Saved,
    StartWorkers,
    StopWorkers,
    StoreAdd,
    StoreGet,
    StoreSet,
    StoreValue,
    Switched,
    WorkDone,
    WorkerExited,
    WorkerSettings,
    WorkerStart,
    WorkerWarm,
)

#: What an agent that calls again has to say about workers it no longer lists.
VANISHED_AFTER_S = 2.0

_log = logging.getLogger(__name__)

_FEEDS: dict[type[Message], Callable[[RescaleFlow, Any, float], list[Output]]] = {
    WorkerWarm: RescaleFlow.worker_warm,
    GroupReady: RescaleFlow.group_ready,
    GroupFailed: RescaleFlow.group_failed,
    Switched: RescaleFlow.switched,
    WorkDone: RescaleFlow.work_done,
    WorkerExited: RescaleFlow.worker_exited,
}
_OfWorker = (
    WorkerWarm
    | GroupReady
    | GroupFailed
    | Switched
    | WorkDone
    | WorkerExited
    | Progress
    | Saved
    | Noted
)


class Executor:
    """The `Listener` of the agents, and the hands of the controller."""

    def __init__(
        self,
        *,
        cluster: Callable[[], Cluster],
        post: Callable[[AnyEvent], None],
        clock: Clock,
        alarms: Alarms,
        paths: JobPaths,
        live: LiveSettings,
        worker: WorkerDefaults,
        counters: Counter[str],
    ) -> None:
        self._cluster = cluster
        self._post_event = post
        self._clock = clock
        self._alarms = alarms
        self._paths = paths
        self._worker_defaults = worker
        self._counters = counters
        self._flow_settings = FlowSettings(
            attach_deadline_s=live.attach_deadline_s,
            connect_deadline_s=live.connect_deadline_s,
            switch_deadline_s=live.switch_deadline_s,
            linger_s=live.linger_s,
            stop_grace_s=live.stop_grace_s,
        )
        self._flows: dict[str, RescaleFlow] = {}
        #: Kept of jobs that are over too, whose logs are still read.
        self._firsts: dict[str, list[str]] = {}
        self._homes = Homes()
        self.agents = Agents(self, clock, alarms, live, counters)
        self._rendezvous = Rendezvous(self._answer)
        #: Until the workers of an earlier controller are taken over.
        self._survivors: Survivors | None = None

    # -- the controller's orders -------------------------------------------------------------------

    def execute(self, decision: DecisionTaken) -> None:
        for action in decision.actions:
            match action:
                case Rescale(job_id, generation, node_ids):
                    flow = self._flow(job_id)
                    outputs = flow.order(generation, node_ids, self._now_s, self._slots(node_ids))
                    self._carry_out(flow, outputs)
                case Stop(job_id, generation):
                    flow = self._flow(job_id)
                    self._carry_out(flow, flow.stop(generation, self._now_s))
                case ReleaseNodes(node_ids):
                    for node_id in node_ids:
                        self.agents.release(node_id, "nobody uses the node")
                case WakeAt(at_s):
                    self.wake_at(at_s)

    def wake_at(self, at_s: float) -> None:
        self._alarms.set("wake", at_s, lambda: self._post(WokeUp(at_s=self._now_s)))

    @property
    def has_workers(self) -> bool:
        return bool(self._homes)

    def rank_zero(self, job_id: str) -> str | None:
        """The worker whose log says most; None where none trains."""
        flow = self._flows.get(job_id)
        return flow.members[0] if flow and flow.members else None

    def first_workers(self, job_id: str) -> tuple[str, ...]:
        """Whoever was the job's rank 0 since this controller started, in turn."""
        return tuple(self._firsts.get(job_id, ()))

    # -- coming back -------------------------------------------------------------------------------

    def expect_survivors(self, nodes: Iterable[Node], limit_s: float) -> None:
        """Hold what agents say about an earlier controller's workers until `adopt`."""
        self._survivors = Survivors()
        self.agents.expect(nodes, limit_s)

    def adopt(self) -> None:
        """Take over the workers that were found, and tell the core what differs."""
        survivors, self._survivors = self._survivors, None
        assert survivors is not None
        jobs = self._cluster().jobs
        for job_id, job in jobs.items():
            if holds_nodes(job):
                flow = self._flow(job_id)
                journal = journalled(job, self._slots(job.held_node_ids))
                outputs = flow.adopt(survivors.of(job), journal, self._now_s)
                self._carry_out(flow, outputs)
        for info in survivors.strays(jobs):
            self._stop_workers(info.job_id, (info.worker_id,), 0.0)
        for node_id, message in survivors.messages:
            self.heard(node_id, message)
        for node in self._cluster().nodes.values():
            if node.is_released:
                self.agents.release(node.id, "nobody uses the node")

    # -- what agents do (`agents.Listener`) --------------------------------------------------------

    def node_joined(self, node: Node) -> None:
        opened_at_s = min(node.opened_at_s, self._now_s)
        self._post(NodesJoined(at_s=self._now_s, nodes=(replace(node, opened_at_s=opened_at_s),)))

    def agent_called(self, hello: AgentHello) -> tuple[str, ...]:
        node_id = hello.node.id
        for info in hello.workers:
            self._homes.add(info.worker_id, info.job_id, node_id)
        if self._survivors:
            self._survivors.found(hello.workers)
            return ()
        started_again = self._repeat(node_id, {info.worker_id for info in hello.workers})
        strangers = []
        for info in hello.workers:
            flow = self._flows.get(info.job_id)
            if flow is None or flow.node_of(info.worker_id) != node_id:
                strangers.append(info.worker_id)
            else:
                self._carry_out(flow, flow.reattached(info, self._now_s))
        known = {info.worker_id for info in hello.workers} | started_again
        missing = {w: job for w, job in self._homes.on(node_id).items() if w not in known}
        if missing:
            # Its last words may still be on their way.
            self._alarms.set(
                ("vanished", node_id),
                self._now_s + VANISHED_AFTER_S,
                partial(self._vanished, node_id, missing),
            )
        return tuple(strangers)

    def _repeat(self, node_id: str, listed: set[str]) -> set[str]:
        """Say again what the broken connection may have lost; return whom to start again."""
        started = set()
        for job_id in set(self._homes.on(node_id).values()):
            if flow := self._flows.get(job_id):
                outputs = flow.repeated(node_id, listed)
                started |= {w for o in outputs if isinstance(o, StartOn) for w in o.workers}
                self._carry_out(flow, outputs)
        return started

    def heard(self, node_id: str, message: Message) -> None:
        if isinstance(message, AgentLeaving):
            deadline_at_s = self._now_s + message.grace_s
            self._post(
                NodesLeaving(
                    at_s=self._now_s,
                    node_ids=(node_id,),
                    deadline_at_s=deadline_at_s,
                    reason=message.reason,
                    are_awaited=message.shrink_within_s is not None,
                )
            )
            self._insist_later(node_id, message)
        elif isinstance(message, StoreSet | StoreGet | StoreAdd):
            self._meet(node_id, message)
        elif self._survivors:
            self._survivors.heard(node_id, message)
        elif isinstance(message, _OfWorker):
            self._heard_of_worker(node_id, message)

    def nodes_lost(self, node_ids: tuple[str, ...], reason: str) -> None:
        known = [self._cluster().nodes.get(node_id) for node_id in node_ids]
        were_released = all(node is not None and node.is_released for node in known)
        self._post(
            NodesLost(
                at_s=self._now_s, node_ids=node_ids, reason=reason, were_released=were_released
            )
        )
        for node_id in node_ids:
            job_ids = set(self._homes.on(node_id).values())
            self._homes.remove_node(node_id)
            self._rendezvous.forget_node(node_id)
            if self._survivors:
                self._survivors.forget_node(node_id)
            for flow in filter(None, map(self._flows.get, job_ids)):
                self._carry_out(flow, flow.nodes_lost((node_id,), self._now_s))

    def _insist_later(self, node_id: str, leaving: AgentLeaving) -> None:
        """Kill workers that do not leave in time a node for which somebody waits."""
        for limit_s, is_save in ((leaving.shrink_within_s, False), (leaving.save_within_s, True)):
            if limit_s is not None:
                self._alarms.set(
                    ("insist", node_id, is_save),
                    self._now_s + limit_s,
                    partial(self._insist, node_id, is_save=is_save),
                )

    def _insist(self, node_id: str, *, is_save: bool) -> None:
        """End the node's workers; those of jobs that have no other node only if `is_save`.

        The others of a job lose the step in flight, as after any death; a job that loses its last
        nodes loses what came after its newest checkpoint.
        """
        if self._survivors and not is_save:
            return  # nobody knows yet who trains with whom
        nodes = self._cluster().nodes
        staying = {n for n, node in nodes.items() if node.leaving_at_s is None}
        by_job: dict[str, list[str]] = defaultdict(list)
        for worker_id, job_id in self._homes.on(node_id).items():
            by_job[job_id].append(worker_id)
        for job_id, here in by_job.items():
            flow = self._flows.get(job_id)
            members = flow.members if flow else ()
            has_others = flow is not None and any(flow.node_of(w) in staying for w in members)
            # One that only warms up has nothing to save.
            if has_others or is_save or not set(here) & set(members):
                self._counters["insisted_leaves"] += 1
                self._stop_workers(job_id, here, 0.0)

    # -- messages about workers --------------------------------------------------------------------

    def _heard_of_worker(self, node_id: str, message: _OfWorker) -> None:
        flow = self._flows.get(message.job_id)
        if isinstance(message, WorkerExited):
            self._homes.remove(message.worker_id)
        home = flow.node_of(message.worker_id) if flow else None
        if flow is None or home is None:
            return  # of a worker that is not wanted any more
        if home != node_id:
            self._counters["misrouted_messages"] += 1
        elif isinstance(message, Noted):
            self._post(JobNoted(at_s=self._now_s, job_id=message.job_id, note=message.note))
        elif isinstance(message, Progress | Saved):
            flow.trained(message)
            self._report(flow, message)
        else:
            self._carry_out(flow, _FEEDS[type(message)](flow, message, self._now_s))

    def _report(self, flow: RescaleFlow, message: Progress | Saved) -> None:
        if isinstance(message, Saved):
            self._post(
                CheckpointSaved(at_s=self._now_s, job_id=message.job_id, samples=message.samples)
            )
        elif message.generation == flow.generation:
            self._post(
                ProgressReported(
                    at_s=self._now_s,
                    job_id=message.job_id,
                    generation=message.generation,
                    nodes=len({flow.node_of(worker_id) for worker_id in flow.members}),
                    samples=message.samples,
                    steps=message.steps,
                    samples_per_s=message.samples_per_s,
                    variance=message.variance,
                    loss=_finite(message.loss),
                )
            )

    def _vanished(self, node_id: str, workers: Mapping[str, str]) -> None:
        """Treat as ended what the agent neither listed nor spoke of."""
        for worker_id, job_id in workers.items():
            if worker_id not in self._homes:
                continue
            exited = WorkerExited(
                worker_id=worker_id,
                job_id=job_id,
                status=-1,
                reason="ended while its agent was away",
                log_path=str(self._paths.log_dir(job_id)),
            )
            self._heard_of_worker(node_id, exited)

    def _meet(self, node_id: str, message: StoreSet | StoreGet | StoreAdd) -> None:
        if message.job_id not in self._flows:
            is_taken = self._survivors is not None
        elif isinstance(message, StoreSet):
            is_taken = self._rendezvous.set(message)
        elif isinstance(message, StoreGet):
            is_taken = self._rendezvous.get(node_id, message)
        else:
            is_taken = self._rendezvous.add(node_id, message)
        if not is_taken:
            self._counters["refused_keys"] += 1

    def _answer(self, node_id: str, value: StoreValue) -> None:
        self.agents.send(node_id, value)

    # -- carrying out ------------------------------------------------------------------------------

    @property
    def _now_s(self) -> float:
        return self._clock.now_s()

    def _flow(self, job_id: str) -> RescaleFlow:
        return self._flows.setdefault(job_id, RescaleFlow(job_id, self._flow_settings))

    def _slots(self, node_ids: Iterable[str]) -> dict[str, int]:
        """One worker a GPU; one a node where there is none."""
        nodes = self._cluster().nodes
        return {n: max(1, nodes[n].gpus) for n in node_ids if n in nodes}

    def _carry_out(self, flow: RescaleFlow, outputs: Iterable[Output]) -> None:
        self._note_first(flow)
        absent: set[str] = set()
        for output in outputs:
            match output:
                case StartOn():
                    absent |= self._start_workers(flow.job_id, output)
                case StopNow(worker_ids, grace_s):
                    self._stop_workers(flow.job_id, worker_ids, grace_s)
                case Send(message):
                    for node_id, to in self._homes.by_node(message.to).items():
                        self.agents.send(node_id, replace(message, to=tuple(to)))
                case RescaleDone():
                    before = self._cluster().jobs[flow.job_id].node_ids
                    frees_nodes = not set(before) <= set(output.node_ids)
                    self._post(replace(output, frees_nodes=frees_nodes))
                case _:
                    self._post(output)
        if absent:
            self._carry_out(flow, flow.nodes_lost(absent, self._now_s))
        self._alarms.set(
            ("flow", flow.job_id), flow.deadline_at_s, partial(self._tick, flow.job_id)
        )

    def _note_first(self, flow: RescaleFlow) -> None:
        firsts = self._firsts.setdefault(flow.job_id, [])
        if flow.members and flow.members[0] not in firsts:
            firsts.append(flow.members[0])

    def _tick(self, job_id: str) -> None:
        if flow := self._flows.get(job_id):
            self._carry_out(flow, flow.tick(self._now_s))

    def _post(self, event: AnyEvent) -> None:
        if isinstance(event, RescaleDone):
            self._rendezvous.forget_before(event.job_id, event.generation)
        elif isinstance(event, RescaleFailed):
            self._rendezvous.forget_before(event.job_id, event.generation + 1)
        self._post_event(event)

    def forget_over(self, job_id: str) -> None:
        """Drop what is kept of a job that is over, once its last worker is gone."""
        flow = self._flows.get(job_id)
        if flow and flow.is_at_rest:
            del self._flows[job_id]
            self._rendezvous.forget_job(job_id)
            self._alarms.cancel(("flow", job_id))

    def _start_workers(self, job_id: str, start: StartOn) -> set[str]:
        """Return the nodes that were lost while the decision was made."""
        spec = self._cluster().jobs[job_id].spec
        by_node: dict[str, list[str]] = defaultdict(list)
        for worker_id, node_id in start.workers.items():
            by_node[node_id].append(worker_id)
        absent = {node_id for node_id in by_node if node_id not in self.agents}
        for node_id in by_node.keys() - absent:
            has_gpus = self.agents.node(node_id).gpus > 0
            workers = tuple(
                WorkerStart(worker_id=w, gpu=start.slots[w] if has_gpus else None)
                for w in by_node[node_id]
            )
            for worker in workers:
                self._homes.add(worker.worker_id, job_id, node_id)
            self.agents.send(node_id, self._start_message(spec, workers))
        return absent

    def _start_message(self, spec: JobSpec, workers: tuple[WorkerStart, ...]) -> StartWorkers:
        launch = spec.launch
        assert launch is not None
        settings = WorkerSettings(
            checkpoint_dir=str(self._paths.checkpoint_dir(spec.id)),
            work_samples=spec.work_samples,
            **asdict(self._worker_defaults),
        )
        return StartWorkers(
            job_id=spec.id,
            workers=workers,
            command=launch.command,
            cwd=launch.cwd,
            env=launch.env,
            log_dir=str(self._paths.log_dir(spec.id)),
            settings=settings,
        )

    def _stop_workers(self, job_id: str, worker_ids: Iterable[str], grace_s: float) -> None:
        for node_id, ids in self._homes.by_node(worker_ids).items():
            stop = StopWorkers(job_id=job_id, worker_ids=tuple(ids), grace_s=grace_s)
            self.agents.send(node_id, stop)


def _finite(loss: float | None) -> float | None:
    """Leave out the loss of a script gone astray: the journal's JSON has no such number."""
    return loss if loss is not None and math.isfinite(loss) else None
