"""What only Slurm has, on a Slurm of this machine: holes, notice by steps, topology, refusals."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from malletrain.batch.commands import Commands
from malletrain.batch.pilot_script import PilotFiles
from malletrain.batch.queue import Survey
from malletrain.batch.slurm import build
from malletrain.batch.slurm.facts import gather
from malletrain.batch.slurm.queue import SlurmQueue
from malletrain.cli.doctor import Verdict
from malletrain.cli.slurm_doctor import diagnose_slurm
from malletrain.clock import WallClock
from malletrain.config import ScavengeSettings, SlurmSettings
from malletrain.devcluster import DevCluster, Settings, programs
from malletrain.errors import BatchError
from tests.leftovers import wait_until

pytestmark = pytest.mark.skipif(bool(programs.missing()), reason=programs.missing())

HOUR_S = 3600
GOOD = SlurmSettings(partition="scavenge")
#: Stands in for Python: says what the agent would be told, and what signal it gets.
FAKE_PYTHON = """\
#!/bin/sh
trap 'echo got TERM; exit 0' TERM
echo "$@"
sleep 600 &
wait
"""


class Site:
    """A cluster and a folder of a controller's."""

    def __init__(self, cluster: DevCluster, folder: Path) -> None:
        self.cluster = cluster
        self.environment: Mapping[str, str] = build.environment(cluster.environment)
        self.files = PilotFiles(folder / "endpoint.json", folder / "token", folder / "logs")
        self.commands = Commands(folder / "commands.jsonl", WallClock(), self.environment)
        python = folder / "python"
        python.write_text(FAKE_PYTHON)
        python.chmod(0o755)
        self.scavenge = ScavengeSettings(interpreter=str(python), scratch_dir=str(folder))

    def queue(self, slurm: SlurmSettings = GOOD) -> SlurmQueue:
        return SlurmQueue(
            self.commands,
            WallClock(),
            scavenge=self.scavenge,
            slurm=slurm,
            files=self.files,
            environment=self.environment,
        )

    def survey(self) -> Survey:
        return asyncio.run(self.queue().survey())

    def run(self, *command: str) -> str:
        done = self.cluster.run(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, *options: str) -> None:
        self.run(
            "sbatch", "-p", "batch", "--exclusive", "-o/dev/null", *options, "--wrap=sleep 600"
        )

    def log(self, pilot_id: str) -> str:
        path = self.files.log_dir / f"pilot-{pilot_id}.log"
        return path.read_text() if path.exists() else ""

    def wait_for_log(self, pilot_id: str, text: str) -> None:
        wait_until(lambda: text in self.log(pilot_id), lambda: self.log(pilot_id), limit_s=30)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    settings = Settings(nodes=4, switches=2, grace_s=20)
    cluster = DevCluster.create(tmp_path_factory.mktemp("slurm"), settings)
    cluster.up()
    yield cluster
    cluster.down()


@pytest.fixture
def site(cluster: DevCluster, tmp_path: Path) -> Iterator[Site]:
    site = Site(cluster, tmp_path)
    yield site
    cluster.run("scontrol", "delete", "reservation=later")
    cluster.run("scontrol", "update", "nodename=ALL", "state=resume")
    # Whose jobs they are is no matter: the cluster is ours.
    cluster.run("scancel", f"--user={os.getuid()}")
    cluster.wait_until_idle()


def test_reserved_and_drained_hosts(site: Site) -> None:
    first, second, *_ = site.cluster.nodes
    soon = ("starttime=now+20minutes", "duration=60", f"nodes={first}", "users=root")
    site.run("scontrol", "create", "reservation=later", *soon)
    site.run("scontrol", "update", f"nodename={second}", "state=drain", "reason=a test")
    found = site.survey()
    assert found.unfit == {second: "idle+drain"}
    assert second not in found.idle
    assert found.idle[first] == found.wanted_at_s[first]
    assert found.idle[first] - found.at_s == pytest.approx(20 * 60, abs=10)


def test_planned_starts_are_foreseen(site: Site) -> None:
    site.submit("-N1", "--time=10")
    site.submit("-N4", "--time=5")
    wait_until(lambda: len(site.survey().wanted_at_s) == 4, lambda: f"{site.survey()}", limit_s=30)
    found = site.survey()
    for at_s in found.wanted_at_s.values():
        assert at_s - found.at_s == pytest.approx(10 * 60, abs=20)
    # The three others are idle until then, and a pilot that ends before starts there.
    assert len(found.idle) == 3
    (pilot_id,) = asyncio.run(site.queue().submit(1, 5 * 60))
    site.wait_for_log(pilot_id, "malletrain.node.agent")
    assert set(site.survey().running) <= set(found.idle)


def test_a_preempted_agent_hears_of_it_and_the_node_is_free_at_once(site: Site) -> None:
    (pilot_id,) = asyncio.run(site.queue().submit(1, HOUR_S))
    site.wait_for_log(pilot_id, "malletrain.node.agent")
    (host,) = site.survey().running
    site.submit("-N4", "--time=5")
    site.wait_for_log(pilot_id, "got TERM")
    # Long before grace is over.
    wait_until(lambda: site.cluster.states()[host] == "allocated", lambda: host, limit_s=10)
    wait_until(lambda: not site.survey().running, lambda: f"{site.survey()}", limit_s=10)


def test_what_the_agent_is_told_of_its_node(site: Site) -> None:
    (pilot_id,) = asyncio.run(site.queue().submit(1, HOUR_S))
    site.wait_for_log(pilot_id, "--gpus 0")
    (host,) = site.survey().running
    told = site.log(pilot_id)
    assert f"--node-id {host}-{pilot_id} --host {host} --pilot-id {pilot_id}" in told
    leaf = "leaf1" if host in site.cluster.nodes[:2] else "leaf2"
    assert f"--group root.{leaf} --gpus 0" in told
    end_at_s = float(told.split("--expected-end ")[1].split()[0])
    assert end_at_s - site.survey().at_s == pytest.approx(HOUR_S, abs=30)


@pytest.mark.parametrize(
    ("slurm", "advice"),
    [
        (SlurmSettings(partition="nosuch"), "set partition in [slurm]"),
        (SlurmSettings(partition="scavenge", sbatch_options=("--foo",)), "sbatch_options"),
        (SlurmSettings(partition="scavenge", sbatch_options=("--gres=gpu:1",)), "--gres"),
        (SlurmSettings(partition="scavenge", sbatch_options=("-Cnone",)), "--constraint"),
    ],
)
def test_refusals_say_what_to_do(site: Site, slurm: SlurmSettings, advice: str) -> None:
    with pytest.raises(BatchError) as caught:
        asyncio.run(site.queue(slurm).submit(1, HOUR_S))
    assert advice in str(caught.value)
    assert not caught.value.is_transient


def verdicts(site: Site, slurm: SlurmSettings) -> dict[str, Verdict]:
    path = site.environment["PATH"]
    facts = asyncio.run(
        gather(site.commands, WallClock(), site.scavenge, slurm, site.files, path=path)
    )
    return {f.check.removeprefix("slurm "): f.verdict for f in diagnose_slurm(facts)}


def test_doctor_finds_this_site_fit(site: Site) -> None:
    assert set(verdicts(site, GOOD).values()) <= {Verdict.OK, Verdict.WARN}
    assert verdicts(site, GOOD)["preemption"] is Verdict.OK


def test_doctor_finds_a_partition_that_does_not_give_way(site: Site) -> None:
    assert verdicts(site, SlurmSettings(partition="batch"))["preemption"] is Verdict.FAIL


def test_doctor_finds_a_partition_that_is_not_there(site: Site) -> None:
    found = verdicts(site, SlurmSettings(partition="nosuch"))
    assert (found["partition"], found["submission"]) == (Verdict.FAIL, Verdict.FAIL)
