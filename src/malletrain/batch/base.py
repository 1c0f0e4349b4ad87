"""What every batch system can do for the controller."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

#: Takes a node's id and, in words, how it is known that nothing of the node runs any more.
OnLost = Callable[[str, str], None]


class BatchSystem(Protocol):
    """Lends nodes. That one came or is to be left, its agent says."""

    @property
    def max_nodes(self) -> int | None:
        """The most nodes that it could ever give at once; None where nobody knows."""
        ...

    async def start(self, controller_url: str, token_file: Path, on_lost: OnLost) -> None:
        """Have agents call this controller, those of an earlier one's nodes too.

        `on_lost` is called as soon as a node is known to be gone, however it ended: an agent that
        was killed cannot say so, and its silence is long to wait for. Nodes that were lost while
        there was no controller are told first.

        Raises:
            BatchError: it cannot be reached.
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

    async def detach(self) -> None:
        """End this side only: the nodes stay for the next controller."""
        ...

    async def stop(self) -> None:
        """Give every node back, and return once they are gone."""
        ...
