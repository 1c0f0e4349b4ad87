"""Slurm's host lists, such as `nd[01-04,07],login1`."""

from __future__ import annotations

import re
import sys
from functools import lru_cache

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from malletrain.errors import TraceError
from malletrain.traces.files import quoted
from malletrain.traces.jobs import MOST_NODES

#: What stands where no node was ever given.
_NONE = {"", "none", "none assigned", "n/a", "(null)", "unknown"}
_PLAIN = re.compile(r"[\w.-]+")
_RANGE = re.compile(r"(\d+)-(\d+)")
_MOST_SHOWN = 60


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
    if not text.isprintable():
        raise TraceError(f"{quoted(text)} is no host list such as nd[01-04,07]")
    _check_size(text, sum(float(last) - float(first) for first, last in _RANGE.findall(text)))
    try:
        hosts = NodeSet(text, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        why = " ".join(str(error).split())[:_MOST_SHOWN]
        raise TraceError(f"{quoted(text)} is no host list such as nd[01-04,07]: {why}") from error
    _check_size(text, len(hosts))
    return tuple(sys.intern(host) for host in hosts)


def _check_size(text: str, num_hosts: float) -> None:
    if not num_hosts < MOST_NODES:
        raise TraceError(f"host list {quoted(text)} has more than {MOST_NODES:,} hosts")
