"""Find where Slurm can listen: whether on loopback alone, and on ports that nobody uses."""

from __future__ import annotations

import contextlib
import secrets
import socket

from malletrain.devcluster.rendering import LOOPBACK
from malletrain.errors import DevClusterError

#: Below what the kernel gives out by itself to connections.
_FIRST, _END = 12_000, 32_000
_TRIES = 200


def is_loopback(host: str) -> bool:
    """Say whether Slurm can be kept to loopback: it takes the address of the host's name.

    Debian's 127.0.1.1 will not do: what connects from there comes from 127.0.0.1, and `srun` is
    then looked for where it does not listen.
    """
    try:
        return socket.gethostbyname(host) == LOOPBACK
    except OSError:
        return False


def free_range(count: int) -> int:
    """Return the first of so many consecutive ports that are free on loopback.

    Where it begins to look is drawn, so that two who look at the same time seldom find the same.

    Raises:
        DevClusterError: no range is free.
    """
    for _ in range(_TRIES):
        first = _FIRST + secrets.randbelow(_END - _FIRST - count)
        if _are_free(range(first, first + count)):
            return first
    raise DevClusterError(
        f"no {count} consecutive ports of {LOOPBACK} are free between {_FIRST} and {_END}: ask for "
        f"fewer nodes, or end what uses them"
    )


def _are_free(ports: range) -> bool:
    with contextlib.ExitStack() as stack:
        for port in ports:
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((LOOPBACK, port))
            except OSError:
                return False
    return True
