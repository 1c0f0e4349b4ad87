"""The commands about a Slurm of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from malletrain.cli.main import app
from malletrain.devcluster import DevCluster, Settings
from tests.slurm_cluster import MakeSlurmCluster


def malletrain(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["dev-cluster", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--nodes", "0"), "nodes is 0: it must be 1 to 256"),
        (("--nodes", "2", "--switches", "3"), "switches is 3: it must be at most 2"),
        (("--set", "SlurmdTimeout"), "it must be Key=Value, such as"),
        (("--set", "SlurmUser=root"), "SlurmUser cannot be set"),
    ],
)
def test_up_refuses_what_cannot_be_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    status, _, errors = malletrain("up", "--dir", str(tmp_path / "c"), *arguments)
    assert status == 2
    assert complaint in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("command", [("down",), ("status",), ("env",), ("node", "nd01", "stop")])
def test_commands_say_where_there_is_no_cluster(tmp_path: Path, command: tuple[str, ...]) -> None:
    status, _, errors = malletrain(*command, "--dir", str(tmp_path))
    assert status == 1
    assert errors.startswith(f"malletrain: no dev-cluster in {tmp_path}")
    assert errors.count("\n") == 1


def test_missing_programs_are_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: None if name == "slurmd" else path)
    status, _, errors = malletrain("up", "--dir", str(tmp_path / "c"))
    assert status == 1
    assert "not installed: slurmd; " in errors
    assert "apt-get install slurmctld slurmd slurm-client munge" in errors


def test_the_default_directory_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    status, _, errors = malletrain("status")
    assert status == 1
    assert f"no dev-cluster in {tmp_path}/malletrain/dev-cluster" in errors


def test_a_cluster_is_looked_at_and_changed(make_slurm_cluster: MakeSlurmCluster) -> None:
    cluster = make_slurm_cluster(Settings(nodes=2))
    where = ("--dir", str(cluster.directory))

    def nodes() -> dict[str, tuple[str, bool]]:
        shown = json.loads(malletrain("status", "--json", *where)[1])
        return {node["name"]: (node["state"], node["pid"] is not None) for node in shown["nodes"]}

    assert malletrain("env", *where)[1] == f"export SLURM_CONF={cluster.directory}/slurm.conf\n"
    assert nodes() == {"nd01": ("idle", True), "nd02": ("idle", True)}
    assert malletrain("node", "nd02", "kill", *where)[0] == 0
    assert nodes()["nd02"][1] is False
    assert malletrain("controller", "stop", *where)[0] == 0
    assert nodes()["nd01"] == ("", True)
    assert malletrain("up", "--nodes", "2", *where)[2].startswith("2 nodes up")
    assert nodes() == {"nd01": ("idle", True), "nd02": ("idle", True)}
    assert malletrain("down", *where)[0] == 0
    assert not cluster.directory.exists()
    assert DevCluster(cluster.settings, cluster.site).left_over_processes() == []
