"""Slurm clusters of this machine for tests; without the programs, the tests say so and skip."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from malletrain.devcluster import DevCluster, Settings, programs
from malletrain.errors import DevClusterError
from tests.leftovers import wait_until

MakeSlurmCluster = Callable[[Settings], DevCluster]


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Give a cluster of 8 nodes, grace 10 s, for all tests: leave no job, and all nodes idle."""
    with running(tmp_path_factory.mktemp("slurm"), Settings(nodes=8, grace_s=10)) as cluster:
        yield cluster


@pytest.fixture
def make_slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeSlurmCluster]:
    """Make clusters with other settings, which end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda settings: stack.enter_context(
            running(tmp_path_factory.mktemp("slurm"), settings)
        )


@contextlib.contextmanager
def running(directory: Path, settings: Settings) -> Iterator[DevCluster]:
    cluster = created(directory, settings)
    with _ended_with_us(directory):
        try:
            cluster.up()
            yield cluster
        finally:
            cluster.down()


def created(directory: Path, settings: Settings) -> DevCluster:
    """Return a cluster that does not run yet; skip where this machine can have none."""
    if why := programs.missing(with_accounting=settings.has_accounting):
        pytest.skip(why)
    try:
        return DevCluster.create(directory, settings)
    except DevClusterError as error:
        pytest.skip(str(error))


@contextlib.contextmanager
def _ended_with_us(directory: Path) -> Iterator[None]:
    """Have the cluster ended even where this process is killed: then somebody's input ends."""
    down = [sys.executable, "-P", "-m", "malletrain.cli", "dev-cluster", "down", "--dir"]
    with subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; exec "$@"', "sh", *down, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as watcher:
        try:
            yield
        finally:
            watcher.kill()


def submit(cluster: DevCluster, *arguments: str) -> str:
    """Run `sbatch` and return the job's id."""
    submitted = cluster.run("sbatch", "--parsable", "--output=/dev/null", *arguments)
    assert submitted.returncode == 0, submitted.stderr
    return submitted.stdout.strip()


def job_state(cluster: DevCluster, job_id: str) -> str:
    words = cluster.run("scontrol", "show", "job", "-o", job_id).stdout.split()
    return next(word.partition("=")[2] for word in words if word.startswith("JobState="))


def wait_for_state(cluster: DevCluster, job_id: str, *states: str) -> None:
    wait_until(
        lambda: job_state(cluster, job_id) in states,
        lambda: f"job {job_id} is {job_state(cluster, job_id)}, not {' or '.join(states)}",
        limit_s=30.0,
    )
