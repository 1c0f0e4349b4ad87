"""What one job truly does: how far it has come, how fast it goes, what it is told to become."""

from __future__ import annotations

import math
from dataclasses import dataclass

from malletrain.sim.recorder import Recorder
from malletrain.workloads.workload import MalleableJob


@dataclass(slots=True)
class Order:
    """A rescale under way."""

    generation: int
    at_s: float
    node_ids: tuple[str, ...]
    #: Progress that the survivors lose.
    stall_s: float


@dataclass(slots=True)
class Run:
    job: MalleableJob
    #: Samples/s by nodes.
    rates: list[float]
    recorder: Recorder
    #: Its place in the recorder's list of classes.
    class_index: int
    #: When a checkpoint of it falls due, modulo the interval.
    checkpoint_phase_s: float
    checkpoint_every_s: float
    samples: float = 0.0
    #: Of the newest durable checkpoint.
    saved_samples: float = 0.0
    node_ids: tuple[str, ...] = ()
    #: The running generation.
    generation: int = 0
    order: Order | None = None
    #: A member was lost: the others stand still until the next generation.
    is_broken: bool = False
    #: Up to when its progress is counted.
    since_s: float = 0.0
    samples_per_s: float = 0.0
    #: The stall of the rescale under way begins.
    stops_at_s: float = math.inf
    #: Changes with everything that makes an expectation of it void.
    serial: int = 0
    #: The start of the allocation, and up to when and how often it has been measured.
    steady_from_s: float = math.inf
    measured_to_s: float = math.inf
    measurements: int = 0
    #: Samples in the allocation so far that were reported as steps.
    measured_steps: int = 0
    first_node_at_s: float | None = None
    redone_samples: float = 0.0

    def advance(self, now_s: float) -> None:
        """Count its progress up to now."""
        is_going = self.samples_per_s > 0.0
        trains_to_s = min(now_s, max(self.stops_at_s, self.since_s)) if is_going else self.since_s
        nodes = len(self.node_ids)
        if trains_to_s > self.since_s:
            self._save(trains_to_s)
            self.samples += self.samples_per_s * (trains_to_s - self.since_s)
            self.recorder.trained(
                self.since_s, trains_to_s, nodes, self.samples_per_s, self.class_index
            )
        if nodes and now_s > trains_to_s:
            self.recorder.trained(trains_to_s, now_s, nodes, 0.0, self.class_index)
        self.since_s = now_s

    def _save(self, until_s: float) -> None:
        """Let the newest checkpoint be that of the last time it was due before then."""
        periods = math.floor((until_s - self.checkpoint_phase_s) / self.checkpoint_every_s)
        saved_at_s = self.checkpoint_phase_s + periods * self.checkpoint_every_s
        if saved_at_s > self.since_s:
            gained = self.samples_per_s * (saved_at_s - self.since_s)
            self.saved_samples = self.samples + gained

    def charge(self, samples: float, now_s: float) -> None:
        """Take samples away, as the papers account for a rescale."""
        if samples:
            self.samples -= samples
            self.recorder.charged(now_s, samples)

    def fall_back(self, to_samples: float, now_s: float) -> None:
        """Lose what was trained beyond."""
        lost = self.samples - to_samples
        if lost > 0.0:
            self.samples = to_samples
            self.redone_samples += lost
            self.recorder.undone(now_s, lost)

    def stand(self) -> None:
        """Make no progress until told otherwise."""
        self.serial += 1
        self.samples_per_s = 0.0
        self.stops_at_s = math.inf
        self.steady_from_s = self.measured_to_s = math.inf

    def go(self, node_ids: tuple[str, ...], generation: int, speed: float, now_s: float) -> None:
        """Train with these nodes from now on."""
        self.serial += 1
        self.node_ids = node_ids
        self.generation = generation
        self.order = None
        self.is_broken = False
        self.samples_per_s = self.rates[len(node_ids)] * speed
        self.stops_at_s = math.inf
        self.steady_from_s = self.measured_to_s = now_s if node_ids else math.inf
        self.measurements = self.measured_steps = 0
        if node_ids and self.first_node_at_s is None:
            self.first_node_at_s = now_s

    @property
    def ends_at_s(self) -> float | None:
        """When it will have done its work if nothing changes."""
        work = self.job.work_samples
        if work is None or self.samples_per_s <= 0.0:
            return None
        return self.since_s + max(work - self.samples, 0.0) / self.samples_per_s
