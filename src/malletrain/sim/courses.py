"""What a rescale costs, by the clock or by the papers' accounting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from malletrain import draws
from malletrain.sim.run import Run
from malletrain.sim.settings import WorldSettings


@dataclass(frozen=True, slots=True)
class Course:
    """How a rescale goes."""

    #: The survivors stand still from then on.
    stops_at_s: float
    done_at_s: float
    #: What the survivors lose, in seconds of progress.
    stall_s: float
    #: Samples taken from the job beside that.
    charged_samples: float = 0.0


class Courses(Protocol):
    #: Jobs come in and end at any time, not only when nodes come or go.
    is_prompt: bool

    def of(self, run: Run, node_ids: tuple[str, ...], now_s: float) -> Course: ...

    def loss_charge(self, run: Run) -> float:
        """Return the samples that the loss of nodes without notice takes from a job at once."""
        ...


def stalls_s(run: Run, world: WorldSettings) -> tuple[float, float]:
    """Return what scaling up and down stalls the job in this world."""
    up_s = run.job.scale_up_s if world.scale_up_s is None else world.scale_up_s
    down_s = run.job.scale_down_s if world.scale_down_s is None else world.scale_down_s
    return up_s * world.cost_factor, down_s * world.cost_factor


class ExactCourses:
    """A rescale takes the time it takes.

    - Joiners are warmed up for `worker_start_s` while the members train on; then all stand still
      for the job's scale-up stall. A start has nobody to stall.
    - A shrink, a suspension, and going on after a loss stall the survivors for the job's
      scale-down stall; a loss is noticed only after `loss_notice_s`.
    - Orders take `decision_delay_s`; one whose first message is lost is sent again after
      `message_retry_s`.
    """

    is_prompt = True

    def __init__(self, world: WorldSettings, seed: int) -> None:
        self._world = world
        self._seed = seed

    def of(self, run: Run, node_ids: tuple[str, ...], now_s: float) -> Course:
        world = self._world
        up_s, down_s = stalls_s(run, world)
        told_at_s = now_s + world.decision_delay_s + self._retry_s(run)
        has_joiners = not set(node_ids) <= set(run.node_ids)
        ready_at_s = told_at_s + (world.worker_start_s if has_joiners else 0.0)
        if not run.node_ids:
            return Course(ready_at_s, ready_at_s, 0.0)
        if run.is_broken:
            ready_at_s += world.loss_notice_s
            return Course(now_s, ready_at_s + down_s, ready_at_s + down_s - run.since_s)
        stall_s = up_s if has_joiners else down_s
        return Course(ready_at_s, ready_at_s + stall_s, stall_s)

    def _retry_s(self, run: Run) -> float:
        share = self._world.lost_message_share
        key = ("lost message", run.job.id, run.generation)
        is_lost = share > 0 and draws.uniform(self._seed, *key) < share
        return self._world.message_retry_s if is_lost else 0.0

    def loss_charge(self, run: Run) -> float:  # noqa: ARG002 - the time it takes is the cost
        return 0.0


class PapersCourses:
    """The accounting of the papers' public replayer, with its quirks.

    A rescale takes no time; its cost is taken from the job at once, as progress at the rate that
    the job had: in full, even if the next event comes sooner, so that progress may go backwards.
    What a job that is below its minimum or has no nodes does is free: so is every start. A loss
    costs one scale-down at the rate before it. Jobs come in and end only when nodes come or go.
    """

    is_prompt = False

    def __init__(self, world: WorldSettings) -> None:
        self._world = world

    def of(self, run: Run, node_ids: tuple[str, ...], now_s: float) -> Course:
        up_s, down_s = stalls_s(run, self._world)
        before, after = len(run.node_ids), len(node_ids)
        stall_s = up_s if after > before else down_s
        charged = 0.0 if after == before else stall_s * self._rate(run)
        return Course(now_s, now_s, stall_s if before else 0.0, charged)

    def loss_charge(self, run: Run) -> float:
        return stalls_s(run, self._world)[1] * self._rate(run)

    @staticmethod
    def _rate(run: Run) -> float:
        nodes = len(run.node_ids)
        return run.rates[nodes] if nodes >= run.job.min_nodes else 0.0
