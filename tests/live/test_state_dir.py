from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.errors import StateDirError
from malletrain.live import state_dir as module
from malletrain.live.state_dir import (
    Endpoint,
    StateDir,
    claim,
    file_system_of,
    is_network_file_system,
)

MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/local\\040disk xfs rw 0 0
mgs@tcp:/scratch /scratch lustre rw 0 0
tmpfs /scratch/tmp tmpfs rw 0 0
user@host: /mnt/ssh fuse.sshfs rw 0 0
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/malletrain", "ext4"),
        ("/home/me/state", "nfs4"),
        ("/homework", "ext4"),
        ("/home/local disk/state", "xfs"),
        ("/scratch/me", "lustre"),
        ("/scratch/tmp/me", "tmpfs"),
        ("/mnt/ssh", "fuse.sshfs"),
    ],
)
def test_the_file_system_is_that_of_the_deepest_mount(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


@pytest.mark.parametrize(
    ("kind", "is_network"),
    [
        ("ext4", False),
        ("xfs", False),
        ("overlay", False),
        ("tmpfs", False),
        ("fuseblk", False),
        ("fuse.ntfs-3g", False),
        ("fuse.fuse-overlayfs", False),
        ("", False),
        ("nfs4", True),
        ("fuse.sshfs", True),
        ("fuse.something-new", True),
        ("fuse", True),
        ("virtiofs", True),
        ("vboxsf", True),
        ("9p", True),
    ],
)
def test_what_may_be_of_another_machine_is_told_apart(kind: str, is_network: bool) -> None:
    assert is_network_file_system(kind) is is_network


def test_it_and_its_token_are_private(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path / "a" / "state")
    lock = claim(state_dir)
    assert state_dir.path.stat().st_mode & 0o777 == 0o700
    assert state_dir.token_path.stat().st_mode & 0o777 == 0o600
    assert len(state_dir.token()) >= 32
    lock.release()


def test_the_token_stays_from_start_to_start(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    claim(state_dir).release()
    token = state_dir.token()
    claim(state_dir).release()
    assert state_dir.token() == token


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    claim(state_dir).release()
    state_dir.token_path.chmod(0o644)
    with pytest.raises(StateDirError, match="can be read by others"):
        state_dir.token()


@pytest.mark.parametrize("token", ["", "\n", "0123456789abcde"])
def test_a_token_that_can_be_guessed_lets_no_controller_start(tmp_path: Path, token: str) -> None:
    state_dir = StateDir(tmp_path)
    claim(state_dir).release()
    state_dir.token_path.write_text(token)
    for _ in range(2):  # The refused one holds no lock.
        with pytest.raises(StateDirError, match=r"can be guessed.* remove it") as caught:
            claim(state_dir)
    assert "\n" not in str(caught.value)
    state_dir.token_path.unlink()
    claim(state_dir).release()
    assert len(state_dir.token()) >= 32


def test_a_second_controller_is_refused_and_told_where_the_first_is(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    lock = claim(state_dir)
    state_dir.publish(Endpoint(url="http://127.0.0.1:4711", pid=os.getpid()))
    with pytest.raises(StateDirError, match=rf"pid {os.getpid()} at http://127.0.0.1:4711"):
        claim(state_dir)
    lock.release()
    assert state_dir.endpoint() is None
    claim(state_dir).release()


def test_a_controller_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from malletrain.live.state_dir import StateDir, claim\n"
        "lock = claim(StateDir(Path(sys.argv[1])))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert ended.returncode == -9
    claim(StateDir(tmp_path)).release()


def test_a_network_file_system_is_refused_unless_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "file_system_of", lambda *_: "lustre")
    state_dir = StateDir(tmp_path)
    with pytest.raises(StateDirError, match="is on lustre, a network file system"):
        claim(state_dir)
    assert not state_dir.token_path.exists()
    claim(state_dir, is_forced=True).release()


def test_a_place_where_nothing_can_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateDirError, match="cannot create the state directory"):
        claim(StateDir(tmp_path / "file" / "state"))


def test_what_was_never_there_is_told(tmp_path: Path) -> None:
    assert StateDir(tmp_path).endpoint() is None
    with pytest.raises(StateDirError, match="malletrain up"):
        StateDir(tmp_path).token()


def test_a_broken_endpoint_file_is_told(tmp_path: Path) -> None:
    StateDir(tmp_path).endpoint_path.write_text("{")
    with pytest.raises(StateDirError, match=r"cannot read .*endpoint\.json"):
        StateDir(tmp_path).endpoint()
