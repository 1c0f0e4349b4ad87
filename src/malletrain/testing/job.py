"""A job on this machine without controller and agents."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from malletrain.core.events import AnyEvent, JobFinished, RescaleDone, RescaleFailed, WorkersLost
from malletrain.errors import MalleTrainError
from malletrain.frames import frame
from malletrain.live.rescale import FlowSettings, Output, RescaleFlow, Send, StartOn, StopNow
from malletrain.testing.nodes import Connection, Nodes, WarmParent
from malletrain.testing.rendezvous import Rendezvous
from malletrain.wire import (
    GroupFailed,
    GroupReady,
    Progress,
    Saved,
    StoreAdd,
    StoreGet,
    StoreSet,
    Switched,
    WorkDone,
    WorkerExited,
    WorkerHello,
    WorkerSettings,
    WorkerWarm,
)

Found = TypeVar("Found")


class NeverHappenedError(MalleTrainError):
    """What a test waited for did not come."""


class LocalJob:
    """One malleable job, each worker on a made-up node of its own.

    Args:
        command: starts a worker.
        directory: for sockets, logs and checkpoints.
        parent: what workers are forked from.
        settings: for the workers; `checkpoint_dir` is set here.
        environment: added to the workers' own.
        flow: the controller's deadlines.
        recovers: order the surviving nodes anew when workers die, as the controller would.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        parent: WarmParent,
        *,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        flow: FlowSettings | None = None,
        recovers: bool = True,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.job_id = "job"
        self.directory = directory
        self.checkpoint_dir = directory / "checkpoints"
        self.audit_dir = directory / "audit"
        self._recovers = recovers
        self._flow = RescaleFlow(self.job_id, flow or FlowSettings())
        self._rendezvous = Rendezvous()
        self._generation = 0
        self._wanted: tuple[str, ...] = ()
        self._is_closing = False
        #: Everything that happened, oldest first.
        self.events: list[AnyEvent] = []
        self.messages: list[Any] = []
        self.exits: list[WorkerExited] = []
        self._changed = threading.Condition(threading.RLock())
        self._nodes = Nodes(
            self.job_id,
            command,
            directory,
            parent,
            settings=WorkerSettings(
                **{"checkpoint_dir": str(self.checkpoint_dir), **(settings or {})}
            ),
            environment={**(environment or {}), "MALLETRAIN_AUDIT": str(self.audit_dir)},
            on_message=self._received,
            on_exit=self._exited,
        )
        self._thread = threading.Thread(target=self._serve, name="local-job", daemon=True)
        self._thread.start()

    def __enter__(self) -> LocalJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what a test does -------------------------------------------------------------------------

    def order(self, nodes: Sequence[str]) -> int:
        """Make the job's nodes these; returns the generation. None suspends it."""
        with self._changed:
            self._wanted = tuple(nodes)
            self._generation += 1
            self._carry_out(self._flow.order(self._generation, nodes, time.monotonic()))
            return self._generation

    def kill(self, node_id: str, signal_number: int = signal.SIGKILL) -> None:
        """Send the node's worker a signal."""
        with self._changed:
            process = self._nodes.on(node_id)
            if process is None:
                raise NeverHappenedError(f"no worker runs on {node_id}")
            self._nodes.signal(process, signal_number)

    def lose(self, node_id: str) -> int:
        """Take the node for lost, though its worker may live; returns the next generation."""
        with self._changed:
            self._nodes.take_away(node_id)
            self._wanted = tuple(n for n in self._wanted if n != node_id)
            self._carry_out(self._flow.nodes_lost([node_id], time.monotonic()))
            return self.order(self._wanted)

    def kill_stray(self, node_id: str, signal_number: int) -> None:
        """Send a signal to the worker of a node that was taken for lost."""
        with self._changed:
            self._nodes.signal(self._nodes.stray(node_id), signal_number)

    def stop_recovering(self) -> None:
        """Leave it to the test what happens after a death from now on."""
        with self._changed:
            self._recovers = False

    @property
    def generation(self) -> int:
        """The newest that was ordered."""
        with self._changed:
            return self._generation

    @property
    def nodes_in_use(self) -> list[str]:
        """Nodes on which a worker runs."""
        with self._changed:
            return [process.node_id for process in self._nodes.processes.values()]

    @property
    def has_finished(self) -> bool:
        """Its script has ended well on every member."""
        with self._changed:
            return any(isinstance(event, JobFinished) for event in self.events)

    @property
    def is_idle(self) -> bool:
        """No worker trains, and none is about to."""
        with self._changed:
            return not self._flow.members and self._flow.deadline_at_s is None

    def wait_for(self, what: Callable[[], Found | None], timeout_s: float = 60.0) -> Found:
        """Return what the function finds, called whenever something has happened.

        Raises:
            NeverHappenedError: with what did happen.
        """
        with self._changed:
            self._changed.wait_for(lambda: what() or self._has_failed, timeout_s)
            found = what()
        if not found:
            raise NeverHappenedError(f"nothing found within {timeout_s:g} s; {self._history()}")
        return found

    def wait_rescaled(self, generation: int, timeout_s: float = 60.0) -> RescaleDone:
        """Wait until a generation, or a later one that took its place, is training."""
        return self.wait_for(
            lambda: next(
                (
                    e
                    for e in self.events
                    if isinstance(e, RescaleDone) and e.generation >= generation
                ),
                None,
            ),
            timeout_s,
        )

    def wait_step(self, step: int, timeout_s: float = 60.0) -> int:
        """Wait until some worker has committed that many steps."""
        return self.wait_for(lambda: self.step if self.step >= step else None, timeout_s)

    @property
    def step(self) -> int:
        """The newest step that any worker has told of."""
        with self._changed:
            return max((getattr(m, "step", 0) for m in self.messages), default=0)

    def sent(self, kind: type[Found]) -> list[Found]:
        """Return the messages of a kind that workers have sent."""
        with self._changed:
            return [m for m in self.messages if isinstance(m, kind)]

    def wait_ended(self, timeout_s: float = 60.0) -> None:
        """Wait until no worker is left."""
        self.wait_for(lambda: not self._nodes.processes, timeout_s)

    def send(self, node_id: str, data: bytes) -> None:
        """Send a frame of any content to the node's worker."""
        with self._changed:
            process = self._nodes.on(node_id)
            if process and process.connection:
                process.connection.stream.sendall(frame(data))

    def hang_up(self, node_id: str) -> None:
        """Close the connection to the node's worker, as an agent that dies does."""
        with self._changed:
            process = self._nodes.on(node_id)
            if process and process.connection:
                self._nodes.drop(process.connection)

    def log(self, worker_id: str) -> str:
        """Return what a worker wrote."""
        return self._nodes.log(worker_id)

    @property
    def pids(self) -> list[int]:
        with self._changed:
            return [process.pid for process in self._nodes.processes.values() if process.pid]

    def close(self) -> None:
        """End every worker and what this object holds."""
        with self._changed:
            self._is_closing = True
        self._thread.join()
        self._nodes.close()

    @property
    def _has_failed(self) -> bool:
        """Nothing more will come."""
        last = self.events[-1] if self.events else None
        is_fault = isinstance(last, RescaleFailed) and last.is_job_fault
        return isinstance(last, JobFinished) or (is_fault and not self._nodes.processes)

    def _history(self) -> str:
        logs = [self.log(path.stem)[-2000:] for path in sorted(self.directory.glob("*.log"))]
        kinds = [type(m).__name__ for m in self.messages if not isinstance(m, StoreGet | StoreSet)]
        return "\n".join([f"events: {self.events}", f"messages: {kinds[-40:]}", *logs])

    # -- the controller's part --------------------------------------------------------------------

    def _carry_out(self, outputs: Iterable[Output]) -> None:
        is_broken = False
        for output in outputs:
            if isinstance(output, StartOn):
                for worker_id, node_id in output.workers.items():
                    self._nodes.start(worker_id, node_id)
            elif isinstance(output, StopNow):
                self._nodes.kill(output.worker_ids)
            elif isinstance(output, Send):
                for worker_id in output.message.to:
                    self._nodes.send(worker_id, output.message)
            else:
                self.events.append(output)
                is_broken |= self._breaks(output)
        self._changed.notify_all()
        if is_broken and self._recovers and self._wanted and not self.has_finished:
            self.order(self._wanted)

    def _breaks(self, event: AnyEvent) -> bool:
        """Whether the job needs another generation."""
        if isinstance(event, WorkersLost):
            self._wanted = tuple(n for n in self._wanted if n not in event.node_ids)
            return True
        return (
            isinstance(event, RescaleFailed)
            and event.is_group_dead
            # Another order is under way otherwise.
            and event.generation == self._generation
        )

    def _received(self, sender: Connection, message: Any) -> None:
        self.messages.append(message)
        if isinstance(message, StoreSet):
            for to, value in self._rendezvous.set(message):
                to.send(value)
        elif isinstance(message, StoreGet):
            if answer := self._rendezvous.get(sender, message):
                sender.send(answer)
        elif isinstance(message, StoreAdd):
            sender.send(self._rendezvous.add(message))
        elif isinstance(message, WorkerHello):
            self._nodes.welcome(sender, message)
        else:
            self._heard(message)
        self._changed.notify_all()

    def _heard(self, message: Any) -> None:
        now_s = time.monotonic()
        if isinstance(message, WorkerWarm):
            self._carry_out(self._flow.worker_warm(message, now_s))
        elif isinstance(message, GroupReady):
            self._carry_out(self._flow.group_ready(message, now_s))
        elif isinstance(message, GroupFailed):
            self._carry_out(self._flow.group_failed(message, now_s))
        elif isinstance(message, Switched):
            self._carry_out(self._flow.switched(message, now_s))
        elif isinstance(message, Progress | Saved):
            self._flow.trained(message)
        elif isinstance(message, WorkDone):
            self._carry_out(self._flow.work_done(message, now_s))

    def _exited(self, message: WorkerExited) -> None:
        self.exits.append(message)
        self._carry_out(self._flow.worker_exited(message, time.monotonic()))

    # -- the thread -------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            arrived = self._nodes.arrived()
            with self._changed:
                if self._is_closing:
                    return
                for take_in in arrived:
                    take_in()
                self._carry_out(self._flow.tick(time.monotonic()))
