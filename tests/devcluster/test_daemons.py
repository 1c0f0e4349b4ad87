from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.devcluster.daemons import Daemon, wait_for
from malletrain.errors import DevClusterError
from tests.leftovers import is_alive


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon("sleeper", ("/bin/sleep", "600"), tmp_path, tmp_path)
    yield daemon
    daemon.stop()


def test_it_is_started_once_and_ended_for_good(sleeper: Daemon) -> None:
    assert sleeper.start({})
    pid = sleeper.pid()
    assert pid is not None
    assert os.getsid(pid) == pid
    assert not sleeper.start({})
    assert sleeper.pid() == pid
    sleeper.stop()
    assert sleeper.pid() is None
    assert not is_alive(pid)
    sleeper.stop()


def test_one_that_ignores_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("malletrain.devcluster.daemons._END_WITHIN_S", 0.1)
    script = "trap '' TERM; echo up; while :; do sleep 600; done"
    daemon = Daemon("deaf", ("/bin/sh", "-c", script), tmp_path, tmp_path)
    daemon.start({})
    wait_for([daemon], lambda: "up" in daemon.log.read_text(), "its word")
    pid = daemon.pid()
    assert pid is not None
    daemon.stop()
    assert not is_alive(pid)


def test_another_process_that_bears_its_id_is_left_alone(sleeper: Daemon) -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as other:
        began_at = int(Path(f"/proc/{other.pid}/stat").read_text().split()[21])
        sleeper.pid_file.write_text(f"{other.pid} {began_at - 1}\n")
        assert sleeper.pid() is None
        sleeper.stop()
        assert other.poll() is None
        other.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("content", ["", "12", "x y", "1 2 3"])
def test_a_pid_file_that_makes_no_sense_is_none(sleeper: Daemon, content: str) -> None:
    sleeper.pid_file.write_text(content)
    assert sleeper.pid() is None


def test_what_it_said_last_is_told_where_it_ends_at_once(tmp_path: Path) -> None:
    daemon = Daemon("broken", ("/bin/sh", "-c", "echo fatal: no such thing"), tmp_path, tmp_path)
    daemon.start({})
    with pytest.raises(DevClusterError, match=f"broken ended.*fatal: no such thing.*{tmp_path}"):
        wait_for([daemon], lambda: False, "an answer")
