"""The whole product over programs that play PBS, as its user types it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from malletrain.cli.doctor import Finding, Verdict
from malletrain.config import ScavengeSettings
from malletrain.live.views import NodeView
from tests.batch.pbs.fake_pbs import FakePbs
from tests.leftovers import wait_until

CONFIG = """
[scavenge]
address = "127.0.0.1"
grace_s = 5
max_nodes = 2
query_every_s = 10
submit_every_s = 1
scratch_dir = "{scratch}"

[pbs]
queue = "scavenge"
"""


class Shell:
    def __init__(self, folder: Path, pbs: FakePbs) -> None:
        self._folder = folder
        self._env = {**pbs.environment, "MALLETRAIN_STATE_DIR": str(folder / "state")}

    def __call__(self, *args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "malletrain.cli", *args],
            env=self._env,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{args}: {done.stdout}{done.stderr}"
        return done.stdout

    def nodes(self) -> list[NodeView]:
        return msgspec.json.decode(self("nodes", "--json"), type=list[NodeView])


@pytest.fixture
def pbs(tmp_path: Path) -> Iterator[FakePbs]:
    site = FakePbs(tmp_path / "pbs", ScavengeSettings())
    yield site
    site.close()


@pytest.fixture
def shell(tmp_path: Path, pbs: FakePbs) -> Iterator[Shell]:
    (tmp_path / "site.toml").write_text(CONFIG.format(scratch=tmp_path))
    shell = Shell(tmp_path, pbs)
    yield shell
    if (tmp_path / "state" / "endpoint.json").exists():
        shell("down")


def waiting(pbs: FakePbs) -> int:
    with pbs.changing() as state:
        return sum(len(job["waiting"]) for job in state["jobs"].values())


def test_pilots_come_with_a_job_and_go_with_it(pbs: FakePbs, shell: Shell, tmp_path: Path) -> None:
    found = shell("doctor", "--batch", "pbs", "--config", "site.toml", "--json")
    findings = msgspec.json.decode(found, type=list[Finding])
    of_pbs = [finding for finding in findings if finding.check.startswith("pbs ")]
    assert "pbs preemption" in {finding.check for finding in of_pbs}
    assert not [finding for finding in of_pbs if finding.verdict is Verdict.FAIL]

    shell("up", "--batch", "pbs", "--config", "site.toml", "--detach")
    assert waiting(pbs) == 0
    (tmp_path / "train.py").write_text("import time\ntime.sleep(100)\n")
    shell("submit", "--max-nodes", "2", "--", sys.executable, "train.py")
    wait_until(lambda: waiting(pbs) == 2, lambda: shell("nodes"))
    pbs.free()
    wait_until(lambda: len(shell.nodes()) == 2, lambda: shell("nodes"))
    assert {node.host for node in shell.nodes()} == pbs.hosts

    host = min(pbs.hosts)
    pbs.preempt(host)
    wait_until(lambda: host not in {n.host for n in shell.nodes()}, lambda: shell("nodes"))
    shell("cancel", "train")
    shell("down")
    with pbs.changing() as state:
        left = [job for job in state["jobs"].values() if job["waiting"] or job["running"]]
    assert not left
