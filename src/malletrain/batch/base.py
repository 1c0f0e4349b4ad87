"""What every batch system can do for the controller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from malletrain.core.model import Cluster


class BatchListener(Protocol):
    """Who is told what the batch system says unasked."""

    def node_lost(self, node_id: str, reason: str) -> None:
        """Nothing of the node runs any more; the reason is how this is known."""
        ...

    def nodes_ended(self, reason: str) -> None:
        """Every node of before is gone: the batch system was started anew."""
        ...

    def batch_ended(self, reason: str) -> None:
        """The batch system is no more, nor are its nodes; the reason says what to do about it."""
        ...

    def batch_port_abused(self, times: int) -> None:
        """So many more connections to the batch system were closed for what came over them."""
        ...

    def batch_troubled(self, trouble: str) -> None:
        """What keeps it from lending nodes, and what to do about it; "" once nothing does."""
        ...

    def pilots_wait(self, count: int) -> None:
        """So many pilots are in the queue now."""
        ...

    def nodes_to_leave(self, reasons: Mapping[str, str], within_s: float) -> None:
        """Nodes are to be given back, each for a reason: as soon as no job needs them."""
        ...

    def node_ends_foreseen(self, ends_at_s: Mapping[str, float | None]) -> None:
        """The batch system plans to have nodes back at these times; None: it does no more."""
        ...


class BatchSystem(Protocol):
    """Lends nodes. That one came or is to be left, its agent says."""

    @property
    def max_nodes(self) -> int | None:
        """The most nodes that it could ever give at once; None where nobody knows."""
        ...

    async def start(self, controller_url: str, token_file: Path, listener: BatchListener) -> None:
        """Have agents call this controller, those of an earlier one's nodes too.

        A node is told lost as soon as it is known to be gone, however it ended: an agent that was
        killed cannot say so, and its silence is long to wait for. Nodes that were lost while there
        was no controller are told first.

        Raises:
            BatchError: it cannot be reached.
        """
        ...

    def heed(self, cluster: Cluster) -> None:
        """Take note of what jobs there are and which nodes they have; called after every change.

        Called before `start` as well, with what an earlier controller has left.
        """
        ...

    async def add_nodes(self, count: int) -> None:
        """Ask for nodes; their agents call when they are there.

        Raises:
            BatchError: it will not give them.
        """
        ...

    async def remove_node(self, node_id: str, *, is_abrupt: bool) -> None:
        """Have a node taken back, with its grace period or at once; return before it is gone.

        Raises:
            BatchError: there is no such node.
        """
        ...

    async def lend_no_more(self) -> None:
        """Lend no further node; those that are lent stay until `stop`."""
        ...

    async def detach(self) -> None:
        """End this side only: the nodes stay for the next controller."""
        ...

    async def stop(self) -> None:
        """Give every node back, and return once they are gone."""
        ...
