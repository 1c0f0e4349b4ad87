"""A whole installation on this machine: controller, host, agents, workers, all real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from malletrain.cli.client import Client, connect
from malletrain.errors import UserError
from malletrain.live.requests import Submission
from malletrain.live.state_dir import StateDir
from malletrain.live.views import JobView
from malletrain.train import audit
from tests.leftovers import wait_until
from tests.train.script import Config

#: Generous: the machines are shared, and what matters is that it comes, not when.
LIMIT_S = 60.0
SETTINGS = """
[live]
agent_away_limit_s = 3.0
progress_journal_s = 0.5
reattach_s = 15.0
[worker]
checkpoint_every_s = 1.0
report_every_s = 0.2
[local]
max_nodes = 8
grace_s = 5.0
[core.restart]
first_backoff_s = 0.5
"""


class Site:
    """Start, disturb and watch it; `tests.leftovers` makes sure that it is gone afterwards."""

    def __init__(self, directory: Path, nodes: int, settings: str = SETTINGS) -> None:
        self.state_dir = StateDir(directory / "state")
        self.audit_dir = directory / "audit"
        self._config = directory / "site.toml"
        self._config.write_text(settings)
        self._nodes = nodes
        self.up()

    # -- the controller ---------------------------------------------------------------------------

    def up(self) -> None:
        """Start a controller as a user does."""
        path = str(self.state_dir.path)
        options = ["--state-dir", path, "--config", str(self._config), "--nodes", str(self._nodes)]
        command = [sys.executable, "-m", "malletrain.cli", "up", "--detach", *options]
        started = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert started.returncode == 0, started.stderr

    def client(self) -> Client:
        return connect(self.state_dir)

    def kill_controller(self) -> None:
        endpoint = self.state_dir.endpoint()
        assert endpoint is not None
        controller = psutil.Process(endpoint.pid)
        controller.kill()
        wait_until(lambda: not _runs(controller), lambda: "the controller does not die")

    def down(self) -> None:
        endpoint = self.state_dir.endpoint()
        assert endpoint is not None
        with self.client() as client:
            client.shutdown()
        controller = psutil.Process(endpoint.pid) if psutil.pid_exists(endpoint.pid) else None
        wait_until(
            lambda: controller is None or not _runs(controller),
            lambda: "the controller does not end",
            LIMIT_S,
        )

    # -- nodes and workers ------------------------------------------------------------------------

    def nodes(self) -> list[str]:
        with self.client() as client:
            return [node.id for node in client.nodes()]

    def add(self, count: int) -> None:
        with self.client() as client:
            client.add_nodes(count)

    def remove(self, node_id: str, *, is_abrupt: bool = False) -> None:
        """Have a node taken back; one that died meanwhile is gone already."""
        with self.client() as client:
            try:
                client.remove_node(node_id, is_abrupt=is_abrupt)
            except UserError as error:
                if "there is no node" not in str(error):
                    raise

    def agent(self, node_id: str) -> psutil.Process:
        """The agent's process, found by its command line below this site's host."""
        run = str(self.state_dir.path)
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if "malletrain.node.agent" in line and node_id in line and run in " ".join(line):
                return process
        raise AssertionError(f"{node_id} has no agent")

    def workers(self, node_id: str) -> list[psutil.Process]:
        """Workers on the node: children of its zygote, all in the agent's process group."""
        group = self.agent(node_id).pid
        members = [p for p in psutil.process_iter() if _group(p) == group and p.pid != group]
        pids = {p.pid for p in members}
        return [p for p in members if p.ppid() in pids]

    # -- jobs -------------------------------------------------------------------------------------

    def submit(self, name: str, config: Config, *, least: int = 1, most: int = 4) -> None:
        env = {
            "MALLETRAIN_AUDIT": str(self.audit_dir),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(["src", "."]),
        }
        with self.client() as client:
            client.submit(
                Submission(
                    name=name,
                    min_nodes=least,
                    max_nodes=most,
                    command=tuple(config.command),
                    cwd=str(Path(__file__).parents[2]),
                    env=tuple({**os.environ, **env}.items()),
                )
            )

    def job(self, name: str) -> JobView:
        with self.client() as client:
            return client.job(name)

    def await_progress(self, name: str) -> None:
        """Wait until the job has trained some more, or is over."""
        before = self.job(name).done_samples

        def has_more() -> bool:
            job = self.job(name)
            return job.done_samples > before or job.phase != "active"

        wait_until(has_more, lambda: f"no progress: {self.describe(name)}", LIMIT_S)

    def await_end(self, name: str) -> JobView:
        wait_until(
            lambda: self.job(name).phase != "active",
            lambda: f"it does not end: {self.describe(name)}",
            LIMIT_S,
        )
        return self.job(name)

    def describe(self, name: str) -> str:
        logs = sorted(self.state_dir.path.glob("jobs/*/logs/*.log"))
        tails = [f"--- {path.name}\n{path.read_text()[-500:]}" for path in logs[-4:]]
        controller = (self.state_dir.path / "controller.log").read_text()[-2000:]
        return "\n".join([str(self.job(name)), *tails, "--- controller", controller])

    def assert_exactly_once(self, name: str, config: Config) -> audit.Finding:
        finding = audit.check(self.audit_dir, self.job(name).id)
        assert finding.is_exactly_once, finding.problems
        assert finding.samples == config.epochs * config.samples
        return finding


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None
