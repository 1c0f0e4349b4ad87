"""A job's live workers, and which of them train together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Worker:
    node_id: str
    slot: int = 0
    is_warm: bool = False
    has_ended_well: bool = False


@dataclass(slots=True)
class Crew:
    workers: dict[str, Worker] = field(default_factory=dict)
    #: Workers of the running generation, in rank order.
    members: tuple[str, ...] = ()
    #: A member died: the others stand still until the next generation.
    is_group_dead: bool = False

    @property
    def not_ended(self) -> tuple[str, ...]:
        """Members whose scripts run on."""
        return tuple(w for w in self.members if not self.workers[w].has_ended_well)

    def on(self, node_ids: Iterable[str]) -> set[str]:
        """All workers on these nodes."""
        nodes = set(node_ids)
        return {w for w, worker in self.workers.items() if worker.node_id in nodes}

    def nodes_of(self, worker_ids: Iterable[str]) -> tuple[str, ...]:
        """Their nodes, each once, in the workers' order."""
        return tuple(dict.fromkeys(self.workers[w].node_id for w in worker_ids))

    def cold(self, worker_ids: Iterable[str]) -> list[str]:
        """Which of them have not said yet that they are warm."""
        return [w for w in worker_ids if not self.workers[w].is_warm]

    def forget(self, worker_ids: Iterable[str]) -> None:
        gone = set(worker_ids)
        for worker_id in gone:
            del self.workers[worker_id]
        self.members = tuple(w for w in self.members if w not in gone)

    def dismiss_joiners(self, wanted: Iterable[str] = ()) -> tuple[str, ...]:
        """Forget, and return, those that are no members, but for the wanted ones."""
        kept = {*self.members, *wanted}
        dismissed = tuple(w for w in self.workers if w not in kept)
        self.forget(dismissed)
        return dismissed

    def lost_member(self) -> None:
        """The group is of no use to those that are left."""
        self.is_group_dead = bool(self.members)
