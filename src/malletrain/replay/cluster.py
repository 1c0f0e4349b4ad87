"""Runs of a sweep as the tasks of a Slurm array, by submitit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from malletrain.errors import UserError
from malletrain.replay.sweep import Run, Store
from malletrain.replay.workers import Failure, attempt

if TYPE_CHECKING:
    from submitit import Job

#: What a task may take where no option says otherwise.
_TIME_LIMIT_MIN = 8 * 60
_POLL_EVERY_S = 5.0


def run_on_cluster(
    store: Store,
    runs: Sequence[Run],
    num_tasks: int,
    options: Mapping[str, str],
    *,
    folder: Path,
    on_done: Callable[[int], None],
    cluster: str = "slurm",
    poll_every_s: float = _POLL_EVERY_S,
) -> list[Failure]:
    """Replay the runs in as many tasks, and return those that failed.

    `options` are those of sbatch. Tasks that are not over when this is interrupted are cancelled.

    Raises:
        UserError: submitit is not installed, or finds no Slurm.
    """
    try:
        import submitit  # noqa: PLC0415 - an extra
        from submitit.helpers import as_completed  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UserError(
            f"--slurm needs {error.name}, which is not installed: pip install 'malletrain[replay]'"
        ) from error
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
    except RuntimeError as error:
        raise UserError(
            f"--slurm: {error}; without it, this machine's cores do the work"
        ) from error
    executor.update_parameters(
        name="malletrain-sweep",
        timeout_min=_TIME_LIMIT_MIN,
        cpus_per_task=1,
        slurm_array_parallelism=num_tasks,
        slurm_additional_parameters=dict(options),
    )
    # Neighbours in the sweep are alike: dealt out, no task has all the long ones.
    chunks = [runs[index::num_tasks] for index in range(min(num_tasks, len(runs)))]
    tasks = executor.map_array(_replay, [store] * len(chunks), chunks)
    chunk_of = dict(zip((task.job_id for task in tasks), chunks, strict=True))
    ended: set[str] = set()
    failures: list[Failure] = []
    try:
        for task in as_completed(tasks, poll_frequency=poll_every_s):
            ended.add(task.job_id)
            failures += _failures(store, chunk_of[task.job_id], task)
            on_done(len(chunk_of[task.job_id]))
    finally:
        for task in tasks:
            if task.job_id not in ended:
                task.cancel(check=False)
    return failures


def _replay(store: Store, runs: Sequence[Run]) -> list[Failure]:
    trace = store.trace()
    return [Failure(run, why) for run in runs if (why := attempt(store, run, trace))]


def _failures(store: Store, runs: Sequence[Run], task: Job[list[Failure]]) -> list[Failure]:
    """Return what failed of a task that has ended, whole or not."""
    error = task.exception()
    if error is None:
        return task.result()
    why = f"task {task.job_id} did not end well, see {task.paths.stderr}"
    return [Failure(run, why) for run in runs if not store.is_done(run)]
