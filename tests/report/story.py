"""A made-up run, as the events that a journal would hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from malletrain.core.actions import Rescale
from malletrain.core.events import (
    AnyEvent,
    CheckpointSaved,
    DecisionTaken,
    JobFinished,
    JobSubmitted,
    NodesJoined,
    NodesLeaving,
    NodesLost,
    ProgressReported,
    RescaleDone,
)
from malletrain.core.model import JobSpec, Node

#: Seconds of one step: compute shared by the nodes, and what they need to talk.
COMPUTE_S = {"heavy": 1.6, "wide": 0.5}
TALK_S = {"heavy": 0.02, "wide": 0.25}
BATCH = 128


def rate(job: str, nodes: int) -> float:
    talk_s = TALK_S[job] if nodes > 1 else 0.0
    return BATCH / (COMPUTE_S[job] / nodes + talk_s)


@dataclass
class Story:
    """Writes events; the state that follows from them is the core's business."""

    at_s: float = 1000.0
    events: list[AnyEvent] = field(default_factory=list)
    generations: dict[str, int] = field(default_factory=dict)
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    samples: dict[str, float] = field(default_factory=dict)

    def join(self, *node_ids: str) -> None:
        nodes = tuple(Node(n, opened_at_s=self.at_s, group=n[0]) for n in node_ids)
        self.events.append(NodesJoined(at_s=self.at_s, nodes=nodes))

    def submit(self, name: str, max_nodes: int) -> None:
        spec = JobSpec(name, name, 1, max_nodes, model_key=name)
        self.events.append(JobSubmitted(at_s=self.at_s, spec=spec))
        self.samples[name] = 0.0

    def leave(self, *node_ids: str) -> None:
        self.events.append(
            NodesLeaving(at_s=self.at_s, node_ids=node_ids, deadline_at_s=self.at_s + 3)
        )

    def lose(self, *node_ids: str) -> None:
        self.events.append(NodesLost(at_s=self.at_s, node_ids=node_ids))

    def rescale(self, job: str, *node_ids: str, took_s: float = 1.0, stall_s: float = 0.05) -> None:
        generation = self.generations[job] = self.generations.get(job, 0) + 1
        self.events.append(
            DecisionTaken(
                at_s=self.at_s,
                actions=(Rescale(job, generation, node_ids),),
                pins={},
                reason=f"nodes changed -> {job} to {len(node_ids)} nodes",
            )
        )
        self.at_s += took_s
        self.members[job] = node_ids
        self.events.append(
            RescaleDone(
                at_s=self.at_s,
                job_id=job,
                generation=generation,
                node_ids=node_ids,
                stall_s=stall_s,
                samples=self.samples[job],
            )
        )

    def train(self, for_s: float, window_s: float = 2.0) -> None:
        for _ in range(round(for_s / window_s)):
            self.at_s += window_s
            for job, members in self.members.items():
                if members:
                    self._report(job, len(members), window_s)

    def _report(self, job: str, nodes: int, window_s: float) -> None:
        speed = rate(job, nodes)
        self.samples[job] += speed * window_s
        self.events.append(
            ProgressReported(
                at_s=self.at_s,
                job_id=job,
                generation=self.generations[job],
                nodes=nodes,
                samples=self.samples[job],
                steps=max(1, round(speed * window_s / BATCH)),
                samples_per_s=speed,
                variance=(0.03 * speed) ** 2,
                loss=2.3 / (1.0 + self.samples[job] / 2000.0),
            )
        )

    def save(self, job: str) -> None:
        self.events.append(CheckpointSaved(at_s=self.at_s, job_id=job, samples=self.samples[job]))

    def finish(self, job: str) -> None:
        self.events.append(JobFinished(at_s=self.at_s, job_id=job, samples=self.samples[job]))
        self.members[job] = ()


def two_jobs() -> Story:
    """Two jobs on four nodes that come, leave, are killed, and are all gone for 10 s."""
    story = Story()
    story.submit("heavy", max_nodes=4)
    story.submit("wide", max_nodes=2)
    story.join("a1", "a2", "b1", "b2")
    story.rescale("heavy", "a1", "a2", "b1")
    story.rescale("wide", "b2")
    story.train(20)
    story.lose("a2")
    story.rescale("heavy", "a1", "b1", took_s=0.3, stall_s=0.3)
    story.train(10)
    story.save("heavy")
    story.save("wide")
    story.leave("a1", "b1", "b2")
    story.rescale("heavy", took_s=1.0)
    story.rescale("wide", took_s=1.0)
    story.lose("a1", "b1", "b2")
    story.at_s += 10
    story.join("a1", "a2", "b1")
    story.rescale("heavy", "a1")
    story.rescale("wide", "a2", "b1")
    story.train(20)
    story.finish("wide")
    story.rescale("heavy", "a1", "a2", "b1")
    story.train(10)
    story.finish("heavy")
    story.at_s += 5
    story.lose("a1")
    return story
