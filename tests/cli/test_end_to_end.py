"""The installed command against a real controller, as its user types it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from malletrain.live.views import JobView, NodeView
from tests.leftovers import wait_until

CONFIG = """
[core.restart]
max_failures = 1
first_backoff_s = 0.1
[live]
agent_away_limit_s = 0.5
"""


class Shell:
    def __init__(self, work: Path) -> None:
        self.work = work
        self.state_dir = work / "state"

    def __call__(self, *args: str, status: int = 0) -> str:
        """Run a command; return what it printed, stderr where it must fail."""
        done = subprocess.run(
            [sys.executable, "-m", "malletrain.cli", *args],
            env={**os.environ, "MALLETRAIN_STATE_DIR": str(self.state_dir)},
            cwd=self.work,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == status, f"{args}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stderr if status else done.stdout

    def job(self, name: str) -> JobView:
        listed = msgspec.json.decode(self("jobs", "--json"), type=list[JobView])
        return next(job for job in listed if job.name == name)

    def nodes(self) -> list[NodeView]:
        return msgspec.json.decode(self("nodes", "--json"), type=list[NodeView])


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    (tmp_path / "site.toml").write_text(CONFIG)
    yield shell
    if (shell.state_dir / "endpoint.json").exists():
        shell("down")


def test_a_day_with_a_broken_script(shell: Shell) -> None:
    shell("up", "--nodes", "1", "--config", "site.toml", "--detach")
    (shell.work / "train.py").write_text("raise SystemExit('this script is broken')\n")
    job_id = shell("submit", "--max-nodes", "2", "--", sys.executable, "train.py").strip()
    wait_until(lambda: shell.job("train").phase == "failed", lambda: shell("jobs"))
    job = shell.job("train")
    assert job.id == job_id
    assert "exited with 1" in job.note
    assert "this script is broken" in shell("logs", "train")
    assert "train is failed" in shell("explain", job_id)
    assert "failed already" in shell("cancel", "train", status=1)

    shell("node", "add")
    wait_until(lambda: len(shell.nodes()) == 2, lambda: shell("nodes"))
    shell("node", "remove", shell.nodes()[0].id, "--abrupt")
    wait_until(lambda: len(shell.nodes()) == 1, lambda: shell("nodes"))

    assert "already uses the state directory" in shell("up", status=1)
    assert "already uses the state directory" in shell("up", "--detach", status=1)
    assert "controller: answers at" in shell("doctor")
    shell("down")
    assert "no controller runs" in shell("jobs", status=1)

    shell("up", "--config", "site.toml", "--detach")
    assert shell.job("train").phase == "failed"


def test_a_port_in_use(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = str(squatter.getsockname()[1])
        line = shell("up", "--port", port, "--detach", status=1)
        assert f"cannot listen on 127.0.0.1 port {port}" in line
        assert len(line.splitlines()) == 1
        assert shell("up", "--port", port, status=1).splitlines()[-1] == line.strip()
