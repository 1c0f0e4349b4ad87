"""A real Slurm of this machine: what tests, benchmarks and those who try things out rely on."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from malletrain.devcluster import DevCluster, Settings, programs
from malletrain.errors import DevClusterError, UsageError
from tests.leftovers import is_alive, wait_until
from tests.slurm_cluster import MakeSlurmCluster, created, job_state, submit, wait_for_state

FILL = ("--exclusive", "--wrap=srun sleep 600")


def test_all_nodes_are_idle_and_run_jobs(slurm_cluster: DevCluster) -> None:
    assert slurm_cluster.states() == {f"nd0{number}": "idle" for number in range(1, 9)}
    names = slurm_cluster.run("srun", "-N8", "printenv", "SLURMD_NODENAME").stdout.split()
    assert sorted(names) == list(slurm_cluster.nodes)


def test_a_main_job_takes_a_node_from_a_scavenge_job(
    slurm_cluster: DevCluster, tmp_path: Path
) -> None:
    # A step that does not run yet when its job is asked to go is not told.
    there = tmp_path / "there"
    step = f"srun sh -c 'touch {there}; exec sleep 600'"
    pilot = submit(slurm_cluster, "-pscavenge", "-wnd03", "--exclusive", f"--wrap={step}")
    wait_until(there.exists, lambda: "the step does not run")
    assert slurm_cluster.run("srun", "-wnd03", "--exclusive", "true").returncode == 0
    assert job_state(slurm_cluster, pilot) not in ("RUNNING", "PENDING")
    slurm_cluster.wait_until_idle()


def test_a_scavenge_job_takes_nothing_from_a_main_job(slurm_cluster: DevCluster) -> None:
    main = submit(slurm_cluster, "-N8", *FILL)
    wait_for_state(slurm_cluster, main, "RUNNING")
    assert slurm_cluster.run("srun", "-pscavenge", "--immediate=1", "true").returncode != 0
    assert job_state(slurm_cluster, main) == "RUNNING"
    slurm_cluster.run("scancel", main)
    slurm_cluster.wait_until_idle()


def test_ended_jobs_are_recorded(slurm_cluster: DevCluster) -> None:
    assert slurm_cluster.run("srun", "--job-name=told", "true").returncode == 0
    record = slurm_cluster.log_dir / "jobcomp.log"
    wait_until(lambda: "Name=told" in record.read_text(), record.read_text)


def test_a_killed_node_leaves_its_jobs_running_and_comes_back(
    make_slurm_cluster: MakeSlurmCluster,
) -> None:
    cluster = make_slurm_cluster(Settings(nodes=2))
    job = submit(cluster, "-wnd02", *FILL)
    wait_for_state(cluster, job, "RUNNING")
    steps = set(cluster.left_over_processes()) - daemon_pids(cluster)
    assert steps
    cluster.kill_node("nd02")
    assert all(map(is_alive, steps & set(cluster.left_over_processes())))
    assert steps & set(cluster.left_over_processes())
    cluster.start_node("nd02")
    cluster.run("scancel", job)
    cluster.wait_until_idle("nd02")
    assert cluster.run("srun", "-wnd02", "true").returncode == 0


def daemon_pids(cluster: DevCluster) -> set[int]:
    return {pid for daemon in cluster.daemons() if (pid := daemon.pid())}


def test_jobs_live_through_a_stop_of_the_controller(make_slurm_cluster: MakeSlurmCluster) -> None:
    cluster = make_slurm_cluster(Settings(nodes=1, switches=1))
    job = submit(cluster, *FILL)
    wait_for_state(cluster, job, "RUNNING")
    cluster.stop_controller()
    assert cluster.run("scontrol", "ping").returncode != 0
    cluster.start_controller()
    assert job_state(cluster, job) == "RUNNING"


def test_jobs_are_told_where_they_are(make_slurm_cluster: MakeSlurmCluster) -> None:
    cluster = make_slurm_cluster(Settings(nodes=2, switches=2))
    asked = cluster.run("srun", "-wnd02", "printenv", "SLURM_TOPOLOGY_ADDR")
    assert asked.stdout.strip() == "root.leaf2.nd02"


def test_accounts_tell_of_ended_jobs(make_slurm_cluster: MakeSlurmCluster) -> None:
    cluster = make_slurm_cluster(Settings(nodes=1, has_accounting=True))
    assert cluster.run("srun", "--job-name=told", "true").returncode == 0

    def accounts() -> str:
        return cluster.run("sacct", "-nXP", "-oJobName,State").stdout

    wait_until(lambda: accounts() == "told|COMPLETED\n", accounts, limit_s=30.0)
    cluster.down()
    assert cluster.left_over_processes() == []


def test_down_leaves_nothing(make_slurm_cluster: MakeSlurmCluster) -> None:
    cluster = make_slurm_cluster(Settings(nodes=1))
    # The sleeper has neither Slurm's variables nor an end of its own.
    job = submit(cluster, "--wrap=srun /bin/sh -c '/usr/bin/env -i /bin/sleep 600'")
    wait_for_state(cluster, job, "RUNNING")
    cluster.down()
    assert cluster.left_over_processes() == []
    assert not cluster.directory.exists()
    cluster.down()


def test_files_are_kept_where_they_are_wanted(make_slurm_cluster: MakeSlurmCluster) -> None:
    cluster = make_slurm_cluster(Settings(nodes=1))
    cluster.down(is_kept=True)
    assert cluster.left_over_processes() == []
    assert (cluster.log_dir / "slurmctld.log").exists()


def test_a_second_up_does_nothing_or_starts_what_has_ended(
    make_slurm_cluster: MakeSlurmCluster,
) -> None:
    cluster = make_slurm_cluster(Settings(nodes=2))
    again = DevCluster.create(cluster.directory, Settings(nodes=2))
    assert again.up() == ()
    cluster.stop_node("nd02")
    assert again.up() == ("slurmd-nd02",)
    with pytest.raises(DevClusterError, match=r"other settings runs in .*: end it first by"):
        DevCluster.create(cluster.directory, Settings(nodes=3))
    with pytest.raises(UsageError, match="no node 'nd03': they are nd01 to nd02"):
        cluster.kill_node("nd03")


def test_a_controller_that_does_not_start_leaves_nothing_running(tmp_path: Path) -> None:
    bad = Settings(nodes=1, slurm={"SelectType": "select/none-such"})
    cluster = created(tmp_path / "c", bad)
    with pytest.raises(DevClusterError, match=f"slurmctld ended.*{cluster.log_dir}"):
        cluster.up()
    assert cluster.left_over_processes() == []
    mended = DevCluster.create(cluster.directory, Settings(nodes=1))
    mended.up()
    mended.down()


def test_a_node_that_does_not_start_takes_all_down(tmp_path: Path) -> None:
    cluster = created(tmp_path / "c", Settings(nodes=2))
    with (
        socket.create_server(("127.0.0.1", cluster.site.node_port + 1)),
        pytest.raises(DevClusterError, match=f"slurmd-nd02 ended.*{cluster.log_dir}"),
    ):
        cluster.up()
    assert cluster.left_over_processes() == []


def test_files_of_others_are_not_touched(tmp_path: Path) -> None:
    if why := programs.missing():
        pytest.skip(why)
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="files that are no dev-cluster's"):
        DevCluster.create(tmp_path)
    with pytest.raises(DevClusterError, match="no dev-cluster in"):
        DevCluster.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
