"""Bring a development cluster up, take it down, and fail parts of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from malletrain.devcluster import programs, rendering
from malletrain.devcluster.daemons import Daemon, belonging, stop_all, wait_for
from malletrain.devcluster.ports import free_range, is_loopback
from malletrain.devcluster.rendering import Site
from malletrain.devcluster.settings import Settings
from malletrain.errors import DevClusterError, UsageError
from malletrain.processes import signal_process

_STEPS = frozenset({"slurmstepd"})
_PROGRAMS = _STEPS | {"munged", "slurmctld", "slurmd", "slurmdbd", "mariadbd"}
#: A Unix socket's path has 107 bytes at most, and a step's is up to so much longer than this.
_LONGEST_DIRECTORY = 64
_MEMO = "cluster.json"
_KILLED_WITHIN_S = 10.0


class _Memo(Struct, frozen=True):
    """What `down` in another process must know."""

    settings: Settings
    site: Site


class DevCluster:
    """One cluster in a directory of its own; `create` or `open` one."""

    def __init__(self, settings: Settings, site: Site) -> None:
        self.settings = settings
        self.site = site

    @classmethod
    def create(cls, directory: Path, settings: Settings | None = None) -> DevCluster:
        """Prepare a cluster in a directory that is new, empty, or that of an earlier cluster.

        Where that one still runs, this is it.

        Raises:
            UsageError: the settings or the directory cannot be.
            DevClusterError: programs are missing, or one with other settings runs there.
        """
        settings = settings or Settings()
        settings.check()
        programs.check_installed(with_accounting=settings.has_accounting)
        directory = directory.absolute()
        _check_directory(directory)
        if (directory / _MEMO).exists():
            earlier = cls.open(directory)
            if earlier.is_running():
                if earlier.settings != settings:
                    raise DevClusterError(
                        f"a cluster with other settings runs in {directory}: end it first by "
                        f"`malletrain dev-cluster down --dir {directory}`"
                    )
                return earlier
        cluster = cls(settings, _choose_site(directory, settings))
        cluster._write_files()
        return cluster

    @classmethod
    def open(cls, directory: Path) -> DevCluster:
        """Return the cluster of a directory.

        Raises:
            DevClusterError: there is none.
        """
        memo_path = directory.absolute() / _MEMO
        try:
            memo = msgspec.json.decode(memo_path.read_bytes(), type=_Memo, dec_hook=_as_path)
        except OSError as error:
            raise DevClusterError(
                f"no dev-cluster in {directory} ({error.strerror}): "
                f"start one by `malletrain dev-cluster up --dir {directory}`"
            ) from error
        except msgspec.DecodeError as error:
            raise DevClusterError(
                f"{memo_path} is not readable, it may be of another version ({error}): "
                f"delete the directory"
            ) from error
        if memo.site.directory != memo_path.parent:
            raise DevClusterError(
                f"the dev-cluster in {directory} was made in {memo.site.directory}: move it back"
            )
        return cls(memo.settings, memo.site)

    @property
    def directory(self) -> Path:
        return self.site.directory

    @property
    def log_dir(self) -> Path:
        return self.site.log_dir

    @property
    def nodes(self) -> tuple[str, ...]:
        return rendering.node_names(self.settings)

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Slurm's commands are about this cluster."""
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
        return {**outer, "SLURM_CONF": str(self.site.conf)}

    def up(self) -> tuple[str, ...]:
        """Start what does not run, wait until every node can be used; return what was started.

        Raises:
            DevClusterError: something failed; then all of the cluster is ended.
        """
        with self._lock():
            try:
                return self._start_all()
            except BaseException:
                self._end_all()
                raise

    def down(self, *, is_kept: bool = False) -> None:
        """End every process of the cluster, and delete its directory unless it is to be kept."""
        if not self.directory.exists():
            return
        with self._lock():
            self._end_all()
            if left := self.left_over_processes():
                raise DevClusterError(f"processes {left} of the cluster did not end")
            if not is_kept:
                shutil.rmtree(self.directory)

    def start_node(self, name: str) -> None:
        self._start(self._node(name))

    def stop_node(self, name: str) -> None:
        """End a node's daemon; what runs on the node runs on."""
        self._node(name).stop()

    def kill_node(self, name: str) -> None:
        """End a node's daemon without any notice; what runs on the node runs on."""
        self._node(name).stop(signal.SIGKILL)

    def start_controller(self) -> None:
        """Start the scheduler and wait until it answers."""
        self._start(self._controller, self._answers)

    def stop_controller(self) -> None:
        self._controller.stop()

    def wait_until_idle(self, *names: str, limit_s: float = 30.0) -> None:
        """Wait until these nodes, or all, can be used and nobody uses them.

        Raises:
            DevClusterError: the limit passed; says what the nodes are.
        """
        end_at_s = time.monotonic() + limit_s
        while wrong := {
            name: state
            for name, state in self.states().items()
            if state != "idle" and (name in names or not names)
        }:
            if time.monotonic() > end_at_s:
                raise DevClusterError(
                    f"nodes are not idle within {limit_s:g} s: {wrong} (see {self.log_dir})"
                )
            time.sleep(0.05)

    def states(self) -> dict[str, str]:
        """Return what the controller says of each node; nothing where it does not answer."""
        lines = self.run("sinfo", "-h", "-N", "-p", "batch", "-o", "%N %T").stdout.splitlines()
        return dict(line.split() for line in lines)

    def is_running(self) -> bool:
        return any(daemon.pid() is not None for daemon in self.daemons())

    def daemons(self) -> tuple[Daemon, ...]:
        """Return all that the cluster is made of, in the order in which they start."""
        database = (self._database, self._accounting) if self.settings.has_accounting else ()
        return (self._munge, *database, self._controller, *map(self._node, self.nodes))

    def left_over_processes(self) -> list[int]:
        """Return the live processes of this cluster: daemons, steps, and what steps started."""
        return belonging(self.site.conf, _PROGRAMS)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands about this cluster and return what it said."""
        return subprocess.run(
            command, env=self.environment, text=True, capture_output=True, check=False
        )

    # -- what it is made of

    def _daemon(self, name: str, program: str, *arguments: str) -> Daemon:
        command = (programs.find(program), *arguments)
        return Daemon(name, command, self.site.run_dir, self.site.log_dir)

    @property
    def _munge(self) -> Daemon:
        directory = self.directory / "munge"
        return self._daemon(
            *("munged", "munged", "--foreground", "--force", "--num-threads=2"),
            f"--socket={self.site.munge_socket}",
            f"--key-file={directory}/key",
            f"--seed-file={directory}/seed",
            f"--pid-file={self.site.run_dir}/munged.own",
            f"--log-file={self.log_dir}/munged.log",
        )

    @property
    def _database(self) -> Daemon:
        return self._daemon(
            *("mariadbd", "mariadbd", "--no-defaults", "--skip-networking"),
            f"--user={self.site.user}",
            f"--datadir={self.directory}/database",
            f"--socket={self.site.database_socket}",
            f"--pid-file={self.site.run_dir}/mariadbd.own",
            *("--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"),
        )

    @property
    def _accounting(self) -> Daemon:
        # It reads the slurmdbd.conf that lies beside the slurm.conf of its environment.
        return self._daemon("slurmdbd", "slurmdbd", "-D")

    @property
    def _controller(self) -> Daemon:
        return self._daemon("slurmctld", "slurmctld", "-D", "-f", str(self.site.conf))

    def _node(self, name: str) -> Daemon:
        if name not in self.nodes:
            raise UsageError(f"no node {name!r}: they are {self.nodes[0]} to {self.nodes[-1]}")
        return self._daemon(f"slurmd-{name}", "slurmd", "-D", "-N", name, "-f", str(self.site.conf))

    # -- starting

    def _start(self, daemon: Daemon, is_ready: Callable[[], bool] = lambda: True) -> bool:
        """Start a daemon and wait until it is ready; say whether it did not run before."""
        database = {"MYSQL_UNIX_PORT": str(self.site.database_socket)}
        if not daemon.start(programs.daemon_environment(str(self.site.conf), database)):
            return False
        wait_for([daemon], is_ready, f"an answer of {daemon.name}")
        return True

    def _start_all(self) -> tuple[str, ...]:
        parts: list[tuple[Daemon, Callable[[], bool]]] = [(self._munge, self._munge_answers)]
        if self.settings.has_accounting:
            self._make_database()
            parts.append((self._database, self._database_listens))
            parts.append((self._accounting, self._accounting_answers))
        parts.append((self._controller, self._answers))
        parts += [(self._node(name), lambda: True) for name in self.nodes]
        started = tuple(daemon.name for daemon, is_ready in parts if self._start(daemon, is_ready))
        if started:
            nodes = [self._node(name) for name in self.nodes]
            wait_for(nodes, self._are_usable, "a controller that can use all nodes")
        return started

    def _make_database(self) -> None:
        if (self.directory / "database" / "mysql").exists():
            return
        made = subprocess.run(
            [
                *(programs.find("mariadb-install-db"), "--no-defaults", "--skip-test-db"),
                *(f"--datadir={self.directory}/database", f"--user={self.site.user}"),
                "--auth-root-authentication-method=socket",
                f"--auth-root-socket-user={self.site.user}",
            ],
            text=True,
            capture_output=True,
            check=False,
        )
        log = self.log_dir / "mariadb-install-db.out"
        log.write_text(made.stdout + made.stderr)
        if made.returncode != 0:
            raise DevClusterError(f"the accounts' database could not be made: see {log}")

    def _munge_answers(self) -> bool:
        return self.run("munge", "-n", f"--socket={self.site.munge_socket}").returncode == 0

    def _database_listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(str(self.site.database_socket)) == 0

    def _accounting_answers(self) -> bool:
        return self.run("sacctmgr", "-n", "list", "cluster").returncode == 0

    def _answers(self) -> bool:
        return " is UP" in self.run("scontrol", "ping").stdout

    def _are_usable(self) -> bool:
        states = self.states().values()
        unusable = ("down", "unknown")
        return bool(states) and not any(
            state.endswith("*") or state.startswith(unusable) for state in states
        )

    # -- ending

    def _end_all(self) -> None:
        # The controller with the nodes: it would try again and again to reach those that are gone.
        stop_all([self._controller, *(self._node(name) for name in self.nodes)])
        self._kill(_STEPS)
        for daemon in reversed(self.daemons()):
            daemon.stop()
        self._kill(_PROGRAMS)

    def _kill(self, names: frozenset[str]) -> None:
        """Kill what is left, again and again: it may start more meanwhile."""
        end_at_s = time.monotonic() + _KILLED_WITHIN_S
        while (left := belonging(self.site.conf, names)) and time.monotonic() < end_at_s:
            for pid in left:
                signal_process(pid, signal.SIGKILL)
            time.sleep(0.05)

    # -- files

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep two commands from bringing the same cluster up and down at once."""
        if not self.site.conf.exists():
            raise DevClusterError(f"the dev-cluster in {self.directory} is gone: create it anew")
        with (self.directory / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DevClusterError(
                    f"another command is at work on the cluster in {self.directory}: "
                    f"try again when it has ended"
                ) from error
            yield

    def _write_files(self) -> None:
        site = self.site
        subdirectories = ["run", "log", "state", "munge", *(f"spool/{name}" for name in self.nodes)]
        for name in subdirectories:
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        site.conf.write_text(rendering.slurm_conf(self.settings, site))
        if self.settings.switches:
            text = rendering.topology_conf(self.settings)
            (self.directory / "topology.conf").write_text(text)
        if self.settings.has_accounting:
            _write_private(self.directory / "slurmdbd.conf", rendering.slurmdbd_conf(site).encode())
        _write_private(self.directory / "munge" / "key", secrets.token_bytes(128))
        memo = msgspec.json.encode(_Memo(self.settings, site), enc_hook=str)
        (self.directory / _MEMO).write_bytes(memo)


def _choose_site(directory: Path, settings: Settings) -> Site:
    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError as error:
        raise DevClusterError(
            f"user id {uid} has no name on this machine, and Slurm needs one: add it to /etc/passwd"
        ) from error
    host = socket.gethostname()
    is_loopback_only = is_loopback(host)
    if not (is_loopback_only or settings.may_be_reachable):
        raise DevClusterError(
            f"Slurm would listen where others can reach it, as this machine's name {host} is not "
            f"127.0.0.1: put the line `127.0.0.1 {host}` at the top of /etc/hosts, or allow it by "
            f"--reachable"
        )
    first = free_range(settings.nodes + 2)
    return Site(
        directory=directory,
        user=user,
        host=host,
        is_loopback_only=is_loopback_only,
        controller_port=first,
        accounting_port=first + 1,
        node_port=first + 2,
    )


def _check_directory(directory: Path) -> None:
    length = len(os.fsencode(directory))
    if length > _LONGEST_DIRECTORY:
        raise UsageError(
            f"{directory} has {length} bytes, and Slurm's sockets leave {_LONGEST_DIRECTORY}: "
            f"name a shorter directory"
        )
    if any(not (letter.isalnum() or letter in "/._+-") for letter in str(directory)):
        raise UsageError(
            f"{directory} cannot be written into slurm.conf: name a directory of letters, digits "
            f"and . _ + - only"
        )
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        names = {entry.name for entry in os.scandir(directory)}
    except OSError as error:
        raise UsageError(f"cannot use {directory}: {error.strerror}") from error
    if names and _MEMO not in names:
        raise UsageError(
            f"{directory} has files that are no dev-cluster's: name an empty or a new directory"
        )


def _write_private(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _as_path(kind: type, value: str) -> Path:
    assert kind is Path
    return Path(value)
