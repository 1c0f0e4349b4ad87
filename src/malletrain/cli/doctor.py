"""What is wrong with this machine's set-up: facts gathered once, judged by pure functions."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from msgspec import Struct

from malletrain.live.state_dir import is_network_file_system

MIB = 1024 * 1024
GIB = 1024 * MIB


class Verdict(enum.Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Struct, frozen=True, kw_only=True):
    check: str
    verdict: Verdict
    #: What was found.
    found: str
    #: What to do about it; empty where all is well.
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the checks judge. None where there is nothing to know."""

    python: tuple[int, int, int]
    torch_version: str | None
    state_dir: str
    #: Why nothing can be written there, "" where it can.
    state_dir_problem: str
    file_system: str
    #: Permission bits of the token file.
    token_mode: int | None
    token_path: str
    free_disk_bytes: int
    #: The port asked about; None: the system chooses a free one.
    port: int | None
    #: Why it cannot be listened on, "" where it can.
    port_problem: str
    #: Why a connection over loopback fails, "" where it works.
    loopback_problem: str
    host_name: str
    #: Why the host's own name has no address, "" where it has one.
    host_name_problem: str
    #: Files that a process may have open; None: no limit.
    open_files_limit: int | None
    shm_free_bytes: int | None
    #: How much the clock of the state directory's files is ahead of this process's.
    clock_skew_s: float
    now_s: float
    controller_url: str | None
    #: Why the controller does not answer, "" where it does.
    controller_problem: str
    #: What keeps the controller from its work by its own word, "" where nothing does.
    controller_trouble: str


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Judge every fact; the order is that of the output."""
    return tuple(_findings(facts))


def _findings(facts: Facts) -> Iterator[Finding]:
    yield _python(facts.python)
    yield _torch(facts.torch_version)
    yield _state_dir(facts.state_dir, facts.state_dir_problem)
    yield _file_system(facts.state_dir, facts.file_system)
    yield _token(facts.token_path, facts.token_mode)
    yield _disk(facts.state_dir, facts.free_disk_bytes)
    yield _loopback(facts.loopback_problem)
    yield _host_name(facts.host_name, facts.host_name_problem)
    yield _port(facts.port, facts.port_problem, facts.controller_url)
    yield _open_files(facts.open_files_limit)
    yield _shared_memory(facts.shm_free_bytes)
    yield _clock(facts.now_s, facts.clock_skew_s)
    yield _controller(facts)


def _finding(check: str, verdict: Verdict, found: str, advice: str = "") -> Finding:
    return Finding(check=check, verdict=verdict, found=found, advice=advice)


def _python(version: tuple[int, int, int]) -> Finding:
    found = ".".join(map(str, version))
    if version < (3, 11, 0):
        return _finding("python", Verdict.FAIL, found, "install Python 3.11, 3.12 or 3.13")
    if version >= (3, 14, 0):
        return _finding("python", Verdict.WARN, found, "only 3.11 to 3.13 are tested")
    return _finding("python", Verdict.OK, found)


def _torch(version: str | None) -> Finding:
    if version is None:
        return _finding(
            "pytorch",
            Verdict.WARN,
            "not installed here",
            "nodes that train need it: pip install 'malletrain[train]'",
        )
    digits = version.split("+")[0].split(".")[:2]
    is_old = all(part.isdigit() for part in digits) and tuple(map(int, digits)) < (2, 6)
    if is_old:
        return _finding(
            "pytorch", Verdict.FAIL, version, "2.6 or newer is needed: pip install -U torch"
        )
    return _finding("pytorch", Verdict.OK, version)


def _state_dir(path: str, problem: str) -> Finding:
    if problem:
        return _finding(
            "state directory",
            Verdict.FAIL,
            f"{path}: {problem}",
            "make it writable for you, or choose another with --state-dir",
        )
    return _finding("state directory", Verdict.OK, f"{path} is writable")


def _file_system(path: str, file_system: str) -> Finding:
    if is_network_file_system(file_system):
        return _finding(
            "file system",
            Verdict.FAIL,
            f"{path} is on {file_system}, a network file system or what may be one: its locks "
            "and syncs are no ground for a journal",
            "choose a local disk with --state-dir, or take the risk with `malletrain up --force`",
        )
    if file_system in ("tmpfs", "ramfs"):
        return _finding(
            "file system",
            Verdict.WARN,
            f"{path} is in memory ({file_system})",
            "jobs and checkpoints are lost when the machine restarts; choose a disk",
        )
    return _finding("file system", Verdict.OK, file_system or "unknown")


def _token(path: str, mode: int | None) -> Finding:
    if mode is None:
        return _finding("token", Verdict.OK, "none yet: the first `malletrain up` makes one")
    if mode & 0o077:
        return _finding(
            "token",
            Verdict.FAIL,
            f"{path} has mode {mode:04o}: others of this machine may use your controller",
            f"chmod 600 {path}; if others may have read it, delete it and restart the controller",
        )
    return _finding("token", Verdict.OK, f"mode {mode:04o}")


def _disk(path: str, free_bytes: int) -> Finding:
    found = f"{free_bytes / GIB:.1f} GiB free at {path}"
    if free_bytes < 100 * MIB:
        return _finding("disk", Verdict.FAIL, found, "free some: checkpoints will fail to be saved")
    if free_bytes < 2 * GIB:
        return _finding("disk", Verdict.WARN, found, "enough for small models only; free some")
    return _finding("disk", Verdict.OK, found)


def _loopback(problem: str) -> Finding:
    if problem:
        return _finding(
            "loopback",
            Verdict.FAIL,
            f"no connection from this machine to itself: {problem}",
            "bring the interface up (ip link set lo up) or allow it in the firewall",
        )
    return _finding("loopback", Verdict.OK, "a connection to 127.0.0.1 works")


def _host_name(name: str, problem: str) -> Finding:
    if problem:
        return _finding(
            "host name",
            Verdict.WARN,
            f"{name} has no address: {problem}",
            "PyTorch's gloo looks it up: add it to /etc/hosts, or set GLOO_SOCKET_IFNAME",
        )
    return _finding("host name", Verdict.OK, f"{name} has an address")


def _port(port: int | None, problem: str, controller_url: str | None) -> Finding:
    if port is None:
        return _finding("port", Verdict.OK, "a free one is chosen; check a fixed one with --port")
    if controller_url is not None and urlsplit(controller_url).port == port:
        return _finding("port", Verdict.OK, f"{port} is this state directory's controller's")
    if problem:
        return _finding(
            "port",
            Verdict.FAIL,
            f"{port} cannot be listened on: {problem}",
            "choose another with `malletrain up --port`, or leave it out",
        )
    return _finding("port", Verdict.OK, f"{port} is free")


def _open_files(limit: int | None) -> Finding:
    if limit is None:
        return _finding("open files", Verdict.OK, "no limit")
    spare = 100
    found = f"{limit:,}: enough for about {max(limit - spare, 0):,} nodes"
    if limit < 256:
        return _finding(
            "open files", Verdict.FAIL, found, "raise the hard limit (ulimit -Hn) to 4096 or more"
        )
    if limit < 1024:
        return _finding(
            "open files", Verdict.WARN, found, "raise the hard limit (ulimit -Hn) to 4096 or more"
        )
    return _finding("open files", Verdict.OK, found)


def _shared_memory(free_bytes: int | None) -> Finding:
    if free_bytes is None:
        return _finding(
            "shared memory",
            Verdict.WARN,
            "no /dev/shm",
            "data loaders with workers need it: mount a tmpfs there",
        )
    found = f"{free_bytes / MIB:,.0f} MiB free in /dev/shm"
    if free_bytes < 128 * MIB:
        advice = "data loaders with workers may die of it: in a container, give --shm-size=1g"
        return _finding("shared memory", Verdict.WARN, found, advice)
    return _finding("shared memory", Verdict.OK, found)


def _clock(now_s: float, skew_s: float) -> Finding:
    year_2024_s = 1_704_067_200.0
    if now_s < year_2024_s:
        return _finding(
            "clock", Verdict.FAIL, "it is before 2024 by this machine's clock", "set the clock"
        )
    if abs(skew_s) > 5:
        return _finding(
            "clock",
            Verdict.WARN,
            f"files in the state directory are dated {skew_s:+.0f} s off this machine's clock",
            "synchronise the clocks (chrony, ntpd)",
        )
    return _finding("clock", Verdict.OK, "agrees with the state directory's")


def _controller(facts: Facts) -> Finding:
    url = facts.controller_url
    if url is None:
        return _finding("controller", Verdict.OK, "none runs here; start one: malletrain up")
    if facts.controller_problem:
        return _finding(
            "controller",
            Verdict.WARN,
            facts.controller_problem,
            f"start it again: malletrain up --state-dir {facts.state_dir} (its jobs are in the "
            f"journal)",
        )
    if facts.controller_trouble:
        # In its own words, which say what to do.
        return _finding("controller", Verdict.FAIL, facts.controller_trouble)
    return _finding("controller", Verdict.OK, f"answers at {url}")
