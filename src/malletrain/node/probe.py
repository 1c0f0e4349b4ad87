"""What only a node can tell before pilots run on it: `python -m malletrain.node.probe`."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from malletrain import __version__
from malletrain.errors import UsageError
from malletrain.network import own_address

_CONNECT_LIMIT_S = 5.0


class NodeProbe(Struct, frozen=True, kw_only=True):
    """One line of JSON on standard output."""

    host: str
    now_s: float
    malletrain: str
    #: None where it is not installed.
    torch: str | None
    #: Why the controller's address cannot be reached from here, "" where it can.
    route_problem: str
    #: Why the controller's files cannot be read and written here, "" where they can.
    files_problem: str
    scratch_problem: str
    subnet_problem: str


def probe(address: str, port: int, shared: Path, scratch: Path, subnet: str) -> NodeProbe:
    """Try from this node what a pilot will need."""
    return NodeProbe(
        host=socket.gethostname(),
        now_s=time.time(),
        malletrain=__version__,
        torch=_torch_version(),
        route_problem=_try_route(address, port),
        files_problem=_try_writing(shared),
        scratch_problem=_try_writing(scratch),
        subnet_problem=_try_subnet(subnet),
    )


def _torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _try_route(address: str, port: int) -> str:
    try:
        socket.create_connection((address, port), _CONNECT_LIMIT_S).close()
    except OSError as error:
        return str(error)
    return ""


def _try_writing(directory: Path) -> str:
    if not os.access(directory, os.R_OK | os.X_OK):
        return f"{directory} is not there, or cannot be read"
    try:
        with tempfile.TemporaryFile(dir=directory):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _try_subnet(subnet: str) -> str:
    if not subnet:
        return ""
    try:
        own_address(subnet)
    except UsageError as error:
        return str(error)
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="malletrain.node.probe", description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--subnet", default="")
    options = parser.parse_args(arguments)
    found = probe(options.address, options.port, options.shared, options.scratch, options.subnet)
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
