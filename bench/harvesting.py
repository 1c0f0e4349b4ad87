"""A one-machine Slurm, main jobs of other users on it, and MalleTrain that harvests the rest."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from bench.harness import NotRunError
from malletrain.cli.client import Client, connect
from malletrain.devcluster import DevCluster, Settings
from malletrain.devcluster.daemons import program
from malletrain.errors import DevClusterError, MalleTrainError
from malletrain.live.requests import Submission
from malletrain.live.state_dir import StateDir
from malletrain.live.views import ClusterView

ROOT = Path(__file__).parent.parent
_JOB = ROOT / "bench" / "harvest_job.py"
_MALLETRAIN = (sys.executable, "-m", "malletrain.cli")
PATIENCE_S = 120.0
_POLL_S = 0.005

_Found = TypeVar("_Found")


def settings_text(grace_s: int, more: str = "", *, submit_every_s: float = 1.0) -> str:
    """Return a configuration: all but the addresses and the paces of a short run by default."""
    return f"""
[core.prior]
scale_up_s = 1.0
scale_down_s = 0.2

[core.horizon]
initial_s = 60.0

[worker]
checkpoint_every_s = 10.0

[scavenge]
address = "127.0.0.1"
submit_every_s = {submit_every_s}
grace_s = {max(grace_s, 3)}
min_hole_s = 60.0
hole_margin_s = 5.0
leave_ahead_s = 10.0
{more}

[slurm]
partition = "scavenge"
"""


@dataclass(frozen=True, slots=True)
class Started:
    """A main job: when it was submitted, and when its script began, epoch s."""

    submitted_at_s: float
    began_at_s: float

    @property
    def wait_s(self) -> float:
        return self.began_at_s - self.submitted_at_s


class Site:
    """The cluster and what is on it; all of it is gone at the end."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        try:
            self.cluster = DevCluster.create(directory / "slurm", settings)
        except DevClusterError as error:
            raise NotRunError(str(error)) from error
        self._directory = directory
        self.state_dir = StateDir(directory / "state")
        self._controller: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.cluster.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.down()
        finally:
            self.cluster.down()

    # -- other users -------------------------------------------------------------------------------

    def slurm(self, *command: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            check=True,
            env=self.cluster.environment,
        )
        return done.stdout

    def main_job(self, nodes: int, seconds: float = 0.0, *options: str) -> Started:
        """Submit a job of the main partition, and wait until it runs."""
        submitted_at_s = time.time()
        marker = self.submit_main(nodes, seconds, *options)
        began_at_s = wait_for(lambda: _number(marker), f"a main job of {nodes} nodes")
        return Started(submitted_at_s, began_at_s)

    def submit_main(self, nodes: int, seconds: float, *more_options: str) -> Path:
        """Submit a job of the main partition; return the file that tells when it began."""
        marker = self._directory / f"main-{time.monotonic_ns()}"
        script = (
            f"#!/bin/sh\ndate +%s.%N > {marker}.new\nmv {marker}.new {marker}\nsleep {seconds}\n"
        )
        options = ("-p", "batch", "--exclusive", f"--nodes={nodes}", "--output=/dev/null")
        self.slurm("sbatch", "--parsable", *options, *more_options, stdin=script)
        return marker

    def left_over(self) -> list[int]:
        """Return processes on the nodes: all of the cluster's but its daemons and their helpers."""
        daemons = {Path(daemon.command[0]).name for daemon in self.cluster.daemons()}
        return [pid for pid in self.cluster.left_over_processes() if program(pid) not in daemons]

    # -- MalleTrain --------------------------------------------------------------------------------

    def up(self, config: str) -> None:
        """Start the controller."""
        path = self._directory / "config.toml"
        path.write_text(config)
        command = [*_MALLETRAIN, "up", "--batch", "slurm", "--config", str(path), "--force"]
        with (self._directory / "controller.log").open("ab") as log:
            self._controller = subprocess.Popen(
                [*command, "--state-dir", str(self.state_dir.path)],
                env={**self.cluster.environment, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self._answers, "the controller's answer")

    def _answers(self) -> bool:
        assert self._controller is not None
        if self._controller.poll() is not None:
            log = (self._directory / "controller.log").read_text().strip()
            raise MalleTrainError(f"the controller ended at its start: {log[-300:]}")
        with contextlib.suppress(MalleTrainError), self.client() as client:
            client.state()
            return True
        return False

    def down(self) -> None:
        """End the controller as SIGTERM does, which saves its jobs."""
        controller, self._controller = self._controller, None
        if controller is not None and controller.poll() is None:
            controller.terminate()
            controller.wait(PATIENCE_S)

    def kill_controller(self) -> None:
        assert self._controller is not None
        self._controller.kill()
        self._controller.wait()

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        with connect(self.state_dir) as client:
            yield client

    def submit(
        self, name: str, max_nodes: int, epochs: int, env: Mapping[str, str] | None = None
    ) -> str:
        """Submit a malleable job; return its id."""
        environment = {
            "PYTHONPATH": str(ROOT / "examples"),
            "OMP_NUM_THREADS": "1",
            "HARVEST_EPOCHS": str(epochs),
            "PATH": os.environ["PATH"],
            **(env or {}),
        }
        submission = Submission(
            name=name,
            command=(sys.executable, str(_JOB)),
            cwd=str(self._directory),
            max_nodes=max_nodes,
            env=tuple(environment.items()),
            model_key="harvest",
        )
        with self.client() as client:
            return client.submit(submission).job_id

    def wait_training(self, nodes: int) -> None:
        """Wait until jobs train on so many nodes."""

        def is_so(view: ClusterView) -> bool:
            training = [job for job in view.jobs if job.activity == "training"]
            return sum(len(job.nodes) for job in training) == nodes and len(view.nodes) == nodes

        with self.client() as client:
            wait_for(lambda: is_so(client.state()), f"training on {nodes} nodes", poll_s=0.1)


def wait_for(
    look: Callable[[], _Found], what: str, *, poll_s: float = _POLL_S, limit_s: float = PATIENCE_S
) -> _Found:
    """Return what is found as soon as it is anything.

    Raises:
        TimeoutError: nothing was found within the limit.
    """
    give_up_at_s = time.monotonic() + limit_s
    while not (found := look()):
        if time.monotonic() > give_up_at_s:
            raise TimeoutError(f"{what}: not within {limit_s:g} s")
        time.sleep(poll_s)
    return found


def _number(path: Path) -> float:
    try:
        return float(path.read_text())
    except FileNotFoundError:
        return 0.0
