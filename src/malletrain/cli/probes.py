"""Gather the facts that the doctor judges."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

from malletrain.cli.client import connect
from malletrain.cli.doctor import Facts
from malletrain.errors import MalleTrainError
from malletrain.live.state_dir import StateDir, file_system_of

_LOOPBACK = "127.0.0.1"
_TIMEOUT_S = 2.0


def gather(state_dir: StateDir, port: int | None) -> Facts:
    """Look at this machine, leaving nothing behind."""
    existing = _nearest_existing(state_dir.path)
    problem, clock_skew_s = _try_writing(existing)
    controller_url, controller_problem, controller_trouble = _ask_controller(state_dir)
    return Facts(
        python=sys.version_info[:3],
        torch_version=_torch_version(),
        state_dir=str(state_dir.path),
        state_dir_problem=problem,
        file_system=file_system_of(existing.resolve(), Path("/proc/mounts").read_text()),
        token_mode=_mode(state_dir.token_path),
        token_path=str(state_dir.token_path),
        free_disk_bytes=shutil.disk_usage(existing).free,
        port=port,
        port_problem="" if port is None else _try_listening(port),
        loopback_problem=_try_loopback(),
        host_name=platform.node(),
        host_name_problem=_try_lookup(platform.node()),
        open_files_limit=_open_files_limit(),
        shm_free_bytes=_free_shared_memory(),
        clock_skew_s=clock_skew_s,
        now_s=time.time(),
        controller_url=controller_url,
        controller_problem=controller_problem,
        controller_trouble=controller_trouble,
    )


def _nearest_existing(path: Path) -> Path:
    """Return the directory itself, or the one in which it would be made."""
    return next(candidate for candidate in (path, *path.parents) if candidate.exists())


def _try_writing(directory: Path) -> tuple[str, float]:
    """Write a file that vanishes; return what went wrong, and how far its time is ahead."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            before_s = time.time()
            file.write(b"x")
            file.flush()
            return "", os.fstat(file.fileno()).st_mtime - before_s
    except OSError as error:
        return error.strerror or str(error), 0.0


def _torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        return None


def _try_listening(port: int) -> str:
    with socket.socket() as listener:
        # As the controller will: a port whose last connections are closing is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_LOOPBACK, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _try_loopback() -> str:
    try:
        with socket.create_server((_LOOPBACK, 0)) as listener:
            listener.settimeout(_TIMEOUT_S)
            with socket.create_connection(listener.getsockname(), _TIMEOUT_S) as client:
                server, _ = listener.accept()
                with server:
                    server.settimeout(_TIMEOUT_S)
                    client.sendall(b"x")
                    return "" if server.recv(1) == b"x" else "what was sent did not arrive"
    except OSError as error:
        return error.strerror or str(error)


def _try_lookup(name: str) -> str:
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _open_files_limit() -> int | None:
    # The hard one: the controller raises its own up to it.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def _free_shared_memory() -> int | None:
    try:
        return shutil.disk_usage("/dev/shm").free  # noqa: S108 - looked at, not written to
    except OSError:
        return None


def _ask_controller(state_dir: StateDir) -> tuple[str | None, str, str]:
    """Return where the controller should be, why it does not answer, or what it complains of."""
    try:
        endpoint = state_dir.endpoint()
        if endpoint is None:
            return None, "", ""
        with connect(state_dir, _TIMEOUT_S) as client:
            trouble = client.state().trouble
    except MalleTrainError as error:
        return str(state_dir.endpoint_path), str(error), ""
    return endpoint.url, "", trouble
