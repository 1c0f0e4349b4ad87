"""Command lines, and the environment that keeps them to their word."""

from __future__ import annotations

from pathlib import Path

from malletrain.batch.slurm import build
from malletrain.config import SlurmSettings

LOGS = Path("/shared/logs")


def test_a_pilot_asks_for_one_whole_node_behind_everybody() -> None:
    settings = SlurmSettings(
        partition="spare", account="ours", qos="low", nice=7, sbatch_options=("--constraint=gpu",)
    )
    command = build.submit(3, 11, "malle-1", LOGS, settings)
    assert command[:3] == ("sbatch", "--parsable", "--array=0-2")
    assert {"--nodes=1", "--ntasks=1", "--exclusive", "--no-requeue"} <= set(command)
    assert {"--time=11", "--nice=7", "--job-name=malle-1", "--export=NONE"} <= set(command)
    assert {"--partition=spare", "--account=ours", "--qos=low"} <= set(command)
    assert "--output=/shared/logs/pilot-%A_%a.log" in command
    # The user's own come last: sbatch heeds the last of two.
    assert command[-1] == "--constraint=gpu"


def test_what_is_not_set_is_left_to_the_site() -> None:
    command = build.submit(1, 60, "malle-1", LOGS, SlurmSettings())
    assert not [o for o in command if o.startswith(("--partition", "--account", "--qos"))]
    assert "-p" not in build.show_nodes("")
    assert build.show_nodes("spare")[2:4] == ("-p", "spare")


def test_an_array_is_cancelled_by_one_request() -> None:
    command = build.cancel(["7_0", "7_3", "9_1"])
    assert command == ("scancel", "--quiet", "7_[0,3]", "9_[1]")


def test_neither_users_defaults_nor_an_outer_job_change_what_is_asked() -> None:
    inherited = {
        "SQUEUE_USERS": "me",
        "SINFO_PARTITION": "debug",
        "SBATCH_RESERVATION": "course",
        "SCANCEL_INTERACTIVE": "1",
        "SLURM_CLUSTERS": "other",
        "SLURM_MEM_PER_CPU": "100",
        "SLURM_JOB_ID": "7",
        "SLURM_TIME_FORMAT": "relative",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "PATH": "/bin",
    }
    assert build.environment(inherited) == {
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "PATH": "/bin",
        "SLURM_TIME_FORMAT": "%s",
        "SLURM_BITSTR_LEN": "0",
    }
