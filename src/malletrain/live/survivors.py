"""The workers that outlived a controller, as its successor learns of them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from malletrain.core.model import Job
from malletrain.live.adoption import Journalled
from malletrain.wire import Message, Switched, WorkerExited, WorkerInfo


class Survivors:
    """What agents tell of workers before these can be taken over."""

    def __init__(self) -> None:
        self._infos: dict[str, WorkerInfo] = {}
        #: (node id, message), to be heard once they are taken over.
        self.messages: list[tuple[str, Message]] = []

    def found(self, workers: tuple[WorkerInfo, ...]) -> None:
        self._infos.update({info.worker_id: info for info in workers})

    def heard(self, node_id: str, message: Message) -> None:
        self.messages.append((node_id, message))
        if isinstance(message, Switched) and message.worker_id in self._infos:
            info = self._infos[message.worker_id]
            self._infos[message.worker_id] = replace(info, generation=message.generation)

    def forget_node(self, node_id: str) -> None:
        self._infos = {w: info for w, info in self._infos.items() if info.node_id != node_id}
        self.messages = [entry for entry in self.messages if entry[0] != node_id]

    def strays(self, jobs: Mapping[str, Job]) -> list[WorkerInfo]:
        """Workers of jobs that nobody knows, or that should have none."""
        wanted = {job_id for job_id, job in jobs.items() if holds_nodes(job)}
        return [info for info in self._infos.values() if info.job_id not in wanted]

    def of(self, job: Job) -> list[WorkerInfo]:
        """The job's workers; with them those whose end was told, as if they lived.

        Their end is heard right after they were taken over, so that it means what it always does.
        """
        job_id = job.spec.id
        infos = [info for info in self._infos.values() if info.job_id == job_id]
        generation = max((info.generation for info in infos), default=0) or job.running_generation
        taken = {(info.node_id, info.slot) for info in infos if info.generation == generation}
        for node_id, message in self.messages:
            if not isinstance(message, WorkerExited) or message.job_id != job_id:
                continue
            if message.worker_id in self._infos or node_id not in job.node_ids:
                continue
            slot = next(slot for slot in range(len(taken) + 1) if (node_id, slot) not in taken)
            taken.add((node_id, slot))
            ended = WorkerInfo(
                worker_id=message.worker_id,
                job_id=job_id,
                node_id=node_id,
                slot=slot,
                generation=generation,
                is_warm=True,
            )
            infos.append(ended)
        return infos


def holds_nodes(job: Job) -> bool:
    """Whether it has nodes, or was about to get or give up some."""
    return bool(job.held_node_ids) or job.rescaling is not None


def journalled(job: Job, slots: Mapping[str, int]) -> Journalled:
    """What the journal says that the job's workers should be."""
    rescaling = job.rescaling
    return Journalled(
        generation=job.running_generation,
        node_ids=job.node_ids,
        asked_generation=rescaling.generation if rescaling else None,
        asked_node_ids=rescaling.node_ids if rescaling else (),
        slots=slots,
        samples=job.done_samples,
        is_broken=job.is_broken,
    )
