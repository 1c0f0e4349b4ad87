"""The same scripts, undisturbed: one worker, no controller, nothing taken away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from demo.jobs import DemoJob
from malletrain.errors import MalleTrainError


class Twins:
    """Trains the twins one after another, at the lowest priority and without the emulated wait."""

    def __init__(self, jobs: Sequence[DemoJob], log_dir: Path) -> None:
        log_dir.mkdir()
        self._log_dir = log_dir
        self._waiting = list(jobs)
        self._running: tuple[DemoJob, subprocess.Popen[bytes]] | None = None

    def poll(self) -> bool:
        """Start the next one if none runs; return whether any is left.

        Raises:
            MalleTrainError: one has failed.
        """
        if self._running:
            job, process = self._running
            status = process.poll()
            if status is None:
                return True
            self._running = None
            if status != 0:
                raise MalleTrainError(
                    f"the undisturbed {job.name} ended with status {status}: see {self._log(job)}"
                )
        if self._waiting:
            job = self._waiting.pop(0)
            self._running = (job, self._start(job))
        return self._running is not None

    def _start(self, job: DemoJob) -> subprocess.Popen[bytes]:
        with self._log(job).open("wb") as log:
            return subprocess.Popen(
                ["nice", "-n", "19", sys.executable, str(job.path)],
                env={**os.environ, "EMULATED_DEVICE": "off", "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _log(self, job: DemoJob) -> Path:
        return self._log_dir / f"{job.name}.log"

    def log(self, job: DemoJob) -> str:
        """Return what the twin has printed."""
        return self._log(job).read_text(errors="replace")

    def end(self) -> None:
        if self._running:
            _, process = self._running
            process.kill()
            process.wait()
            self._running = None
