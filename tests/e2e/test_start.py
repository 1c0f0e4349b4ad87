"""How an installation starts and ends where things are not as they should be."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from malletrain.batch.local_host import read_host_file
from malletrain.live.state_dir import StateDir
from tests.e2e.site import LIMIT_S, Site
from tests.leftovers import wait_until

pytestmark = pytest.mark.train


def command(state_dir: Path, *options: str) -> list[str]:
    return [
        sys.executable,
        "-P",
        "-m",
        "malletrain.cli",
        "up",
        "--state-dir",
        str(state_dir),
        *options,
    ]


def test_after_the_whole_machine_went_down_there_are_nodes_again(tmp_path: Path) -> None:
    site = Site(tmp_path, nodes=2)
    wait_until(lambda: len(site.nodes()) == 2, lambda: str(site.nodes()), LIMIT_S)
    host = read_host_file(site.state_dir.path / "local")
    assert host is not None
    site.kill_controller()
    psutil.Process(host.pid).kill()
    site.up()
    wait_until(
        lambda: sorted(site.nodes()) == ["local-1", "local-2"],
        lambda: str(site.nodes()),
        # Less than `reattach_s`: nobody waits for agents that cannot come back.
        12.0,
    )
    site.down()


def test_files_beside_the_user_are_not_mistaken_for_modules(tmp_path: Path) -> None:
    for name in ("random.py", "numpy.py", "asyncio.py"):
        (tmp_path / name).write_text("raise SystemExit('mistaken for a module')")
    started = subprocess.Popen(
        command(tmp_path / "state", "--nodes", "1"),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    state_dir = StateDir(tmp_path / "state")
    log = tmp_path / "state" / "local" / "zygote.log"
    wait_until(lambda: state_dir.endpoint() is not None, lambda: "it does not start", LIMIT_S)
    assert "mistaken" not in log.read_text()
    # The terminal is closed: the controller ends as it does by Ctrl-C.
    started.send_signal(signal.SIGHUP)
    assert started.wait(LIMIT_S) == 0


def test_a_start_that_fails_says_why_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    config.write_text("[local]\nnodes = 9\nmax_nodes = 2\n")
    ran = subprocess.run(
        command(tmp_path / "state", "--config", str(config)),
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 1
    last = ran.stderr.splitlines()[-1]
    assert "cannot add 9 nodes" in last
    assert "Traceback" not in ran.stderr
