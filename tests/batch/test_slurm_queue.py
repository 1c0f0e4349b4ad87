"""Slurm's queue on a Slurm of this machine alone: what every batch system must do."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Mapping

import pytest

from malletrain.batch.commands import Commands
from malletrain.batch.pilot_script import PilotFiles
from malletrain.batch.queue import Queue
from malletrain.batch.slurm import build
from malletrain.batch.slurm.queue import SlurmQueue
from malletrain.clock import WallClock
from malletrain.config import ScavengeSettings, SlurmSettings
from malletrain.devcluster import DevCluster, Settings, programs
from malletrain.testing.queues import QueueContract
from tests.leftovers import wait_until

pytestmark = pytest.mark.skipif(bool(programs.missing()), reason=programs.missing())


class SlurmSite:
    """A `testing.queues.QueueSite`."""

    def __init__(self, cluster: DevCluster) -> None:
        self._cluster = cluster
        self._job_id = ""
        self.hosts = frozenset(cluster.nodes)
        self.programs = frozenset({"sinfo", "squeue", "scontrol", "sbatch", "scancel"})
        self.unknown_pilot_id = "4242_3"

    @property
    def environment(self) -> Mapping[str, str]:
        return build.environment(self._cluster.environment)

    def queue(self, commands: Commands, files: PilotFiles) -> Queue:
        return SlurmQueue(
            commands,
            WallClock(),
            scavenge=ScavengeSettings(),
            slurm=SlurmSettings(partition="scavenge"),
            files=files,
            environment=self.environment,
        )

    def fill(self) -> None:
        everything = ("-p", "batch", f"-N{len(self.hosts)}", "--exclusive")
        quietly = ("--export=NONE", "-o/dev/null", "--wrap=exec sleep 600")
        self._job_id = self._run("sbatch", "--parsable", *everything, *quietly).strip()
        wait_until(
            lambda: {*self._cluster.states().values()} == {"allocated"},
            lambda: f"{self._cluster.states()}",
        )

    def free(self) -> None:
        self._run("scancel", self._job_id)

    def stop_server(self) -> None:
        self._cluster.stop_controller()

    def start_server(self) -> None:
        self._cluster.start_controller()

    def clear(self) -> None:
        self._run("scancel", f"--user={getpass.getuser()}")
        self._cluster.wait_until_idle()

    def _run(self, *command: str) -> str:
        done = self._cluster.run(*command)
        done.check_returncode()
        return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    cluster = DevCluster.create(tmp_path_factory.mktemp("slurm"), Settings(nodes=2, grace_s=5))
    cluster.up()
    yield cluster
    cluster.down()


class TestQueue(QueueContract):
    @pytest.fixture
    def site(self, cluster: DevCluster) -> Iterator[SlurmSite]:
        site = SlurmSite(cluster)
        yield site
        site.clear()
