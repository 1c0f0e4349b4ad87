"""The state directory: who may use it, and where in it what lies.

```
controller.lock   held by flock as long as a controller lives
endpoint.json     where it listens, for the CLI and the agents
token             the bearer token of this state directory, mode 0600
journal.sqlite    every event
jobs/ID/logs, jobs/ID/checkpoints
```
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

import msgspec
from msgspec import Struct

from malletrain.errors import StateDirError

#: File systems on which neither flock nor SQLite's WAL (shared memory) can be relied upon: of
#: other machines, or of a virtual machine's host.
_REMOTE = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "wekafs",
    }
)
#: What a program serves may be anything, and mostly is remote; these have a disk below.
_LOCAL_FUSE = frozenset(
    {
        "fuse.exfat",
        "fuse.ext4",
        "fuse.fuse-overlayfs",
        "fuse.fuse2fs",
        "fuse.ntfs",
        "fuse.ntfs-3g",
    }
)

#: Ours have 43; a crash of the disk or a slip of the hand may leave fewer, or none.
_MIN_TOKEN_CHARACTERS = 16


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where the controller listens."""

    url: str
    pid: int


class StateDir:
    """Paths, and the few files that are not the journal's."""

    def __init__(self, path: Path, shared: Path | None = None) -> None:
        """Name its place, and that of what nodes read and write, where that is another."""
        self.path = path.absolute()
        self.shared = shared.absolute() if shared else self.path

    @property
    def journal_path(self) -> Path:
        return self.path / "journal.sqlite"

    @property
    def token_path(self) -> Path:
        return self.path / "token"

    @property
    def endpoint_path(self) -> Path:
        return self.path / "endpoint.json"

    @property
    def lock_path(self) -> Path:
        return self.path / "controller.lock"

    @property
    def pilot_endpoint_path(self) -> Path:
        return self.shared / "endpoint.json"

    @property
    def pilot_token_path(self) -> Path:
        return self.shared / "token"

    @property
    def pilots_dir(self) -> Path:
        """Where pilots write their logs."""
        return self.shared / "pilots"

    @property
    def commands_path(self) -> Path:
        """Every program of the batch system that was run: `batch.commands.CommandRecord` lines."""
        return self.path / "batch" / "commands.jsonl"

    def log_dir(self, job_id: str) -> Path:
        return self.shared / "jobs" / job_id / "logs"

    def checkpoint_dir(self, job_id: str) -> Path:
        return self.shared / "jobs" / job_id / "checkpoints"

    def token(self) -> str:
        """Return the bearer token.

        Raises:
            StateDirError: there is none, or others could read it.
        """
        try:
            mode = self.token_path.stat().st_mode
            token = self.token_path.read_text().strip()
        except OSError as error:
            raise StateDirError(
                f"cannot read {self.token_path}: {error.strerror}; start a controller with "
                f"`malletrain up` or name another state directory"
            ) from error
        if mode & 0o077:
            raise StateDirError(
                f"{self.token_path} can be read by others (mode {mode & 0o777:o}): "
                f"remove it, and the next `malletrain up` makes a new one"
            )
        return token

    def endpoint(self) -> Endpoint | None:
        """Where the newest controller listens, or listened; None if there was never one."""
        try:
            return msgspec.json.decode(self.endpoint_path.read_bytes(), type=Endpoint)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise StateDirError(f"cannot read {self.endpoint_path}: {error}") from error

    def publish(self, endpoint: Endpoint) -> None:
        """Say where the controller listens, in one step."""
        _write_whole(self.endpoint_path, msgspec.json.encode(endpoint))
        if self.shared != self.path:
            self.shared.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_whole(self.shared / "token", self.token().encode())
            _write_whole(self.shared / "endpoint.json", msgspec.json.encode(endpoint))


class ControllerLock:
    """The right to be the state directory's only controller; the kernel takes it back at death."""

    def __init__(self, state_dir: StateDir, descriptor: int) -> None:
        self._state_dir = state_dir
        self._descriptor = descriptor

    def release(self) -> None:
        """Let others in, and stop pointing at a port where nobody listens."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(FileNotFoundError):
            self._state_dir.endpoint_path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1


def claim(state_dir: StateDir, *, is_forced: bool = False) -> ControllerLock:
    """Create the directory if need be, and become its controller.

    Raises:
        StateDirError: it cannot be made, lies on a network file system and `is_forced` is not
            set, belongs to a living controller, or has a token that is none.
    """
    path = state_dir.path
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateDirError(
            f"cannot create the state directory {path}: {error.strerror}"
        ) from error
    kind = file_system_of(path.resolve(), Path("/proc/mounts").read_text())
    if is_network_file_system(kind) and not is_forced:
        raise StateDirError(
            f"the state directory {path} is on {kind}, a network file system or what may be "
            f"one, where locks and the journal's shared memory cannot be relied upon: put it on "
            f"a local disk, or take the risk with --force if this machine alone uses it"
        )
    lock = _lock(state_dir)
    try:
        _keep_token(state_dir)
    except BaseException:
        lock.release()
        raise
    return lock


def _keep_token(state_dir: StateDir) -> None:
    """Make a token, or make sure that the one there is one."""
    if not state_dir.token_path.exists():
        _write_whole(state_dir.token_path, secrets.token_urlsafe(32).encode())
    elif (length := len(state_dir.token())) < _MIN_TOKEN_CHARACTERS:
        raise StateDirError(
            f"{state_dir.token_path} has {length} characters, which can be guessed; it needs at "
            f"least {_MIN_TOKEN_CHARACTERS}: remove it, and `malletrain up` makes a new one"
        )


def _lock(state_dir: StateDir) -> ControllerLock:
    try:
        descriptor = os.open(state_dir.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateDirError(
            f"cannot write in the state directory {state_dir.path}: {error.strerror}"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        endpoint = state_dir.endpoint()
        where = f" at {endpoint.url}" if endpoint else ""
        raise StateDirError(
            f"a controller (pid {holder}{where}) already uses the state directory "
            f"{state_dir.path}: talk to it, end it with `malletrain down`, or name another "
            f"directory"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return ControllerLock(state_dir, descriptor)


def file_system_of(path: Path, mounts: str) -> str:
    """Return the type of the file system that holds `path`, given the text of `/proc/mounts`."""
    best_depth, best_kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # Blanks in mount points are octal escapes there.
        mount = Path(fields[1].encode().decode("unicode_escape"))
        depth = len(mount.parts)
        # The last one mounted at a place hides those before it.
        if path.is_relative_to(mount) and depth >= best_depth:
            best_depth, best_kind = depth, fields[2]
    return best_kind


def is_network_file_system(kind: str) -> bool:
    """Whether a file system of this type is of another machine, or may be."""
    is_fuse = kind == "fuse" or kind.startswith("fuse.")
    return kind in _REMOTE or (is_fuse and kind not in _LOCAL_FUSE)


def _write_whole(path: Path, content: bytes) -> None:
    """Replace the file in one step, readable by its owner only."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    aside.replace(path)
