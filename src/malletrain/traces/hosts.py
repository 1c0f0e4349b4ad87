"""Slurm's host lists, such as `nd[01-04,07],login1`."""

from __future__ import annotations

import re
import sys
from functools import lru_cache

from malletrain.errors import TraceError

#: What stands where no node was ever given.
_NONE = {"", "none", "none assigned", "n/a", "(null)", "unknown"}
_PLAIN = re.compile(r"[\w.-]+")
_RANGE = re.compile(r"(\d+)-(\d+)")
#: More hosts than any machine has: a slip of the pen would fill the memory.
_MAX_HOSTS = 1_000_000


@lru_cache(maxsize=1 << 16)
def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list, sorted; none where the job never had any.

    Raises:
        TraceError: it is no host list.
    """
    text = text.strip()
    if text.lower() in _NONE:
        return ()
    if _PLAIN.fullmatch(text):
        return (sys.intern(text),)
    if any(int(last) - int(first) >= _MAX_HOSTS for first, last in _RANGE.findall(text)):
        raise TraceError(f"host list {text!r} has more than {_MAX_HOSTS:,} hosts")
    try:
        from ClusterShell.NodeSet import (  # noqa: PLC0415  # an extra: only host lists need it
            RESOLVER_NOGROUP,
            NodeSet,
            NodeSetException,
        )
    except ImportError as error:
        raise TraceError(
            "reading host lists needs ClusterShell: pip install 'malletrain[replay]'"
        ) from error
    try:
        hosts = NodeSet(text, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise TraceError(f"{text!r} is no host list such as nd[01-04,07]: {error}") from error
    return tuple(sys.intern(host) for host in hosts)
