"""Show the cluster while it trains: the live view on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from malletrain.cli import words
from malletrain.cli.view import Usage, cluster_screen, usage
from malletrain.live.views import ClusterView, JobView

LOOK_EVERY_S = 0.5
OVER = frozenset({"finished", "failed", "cancelled"})
_LINE_EVERY_S = 5.0
_HISTORY_POINTS = 1000


class Screen:
    """Where to show one view after another."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_at_s = time.monotonic()
        self._next_line_at_s = 0.0
        self._reason = ""
        self._history = deque[Usage](maxlen=_HISTORY_POINTS)
        self._live = (
            Live(console=console, screen=True, auto_refresh=False) if console.is_terminal else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, view: ClusterView, more: Sequence[str] = ()) -> None:
        """Show a view, and more lines below it."""
        if self._live:
            self._history.append(usage(view))
            width, height = self._console.size
            screen = cluster_screen(view, width, height - len(more), tuple(self._history))
            self._live.update(Group(screen, *map(Text, more)), refresh=True)
            return
        now_s = time.monotonic()
        if now_s >= self._next_line_at_s:
            self._next_line_at_s = now_s + _LINE_EVERY_S
            self._print_lines(view, now_s - self._started_at_s)
            for line in more:
                self._console.print(f"        {line}", soft_wrap=True, markup=False)

    def _print_lines(self, view: ClusterView, passed_s: float) -> None:
        now = usage(view)
        jobs = "  ".join(_job(job) for job in view.jobs)
        line = f"{passed_s:4.0f} s  nodes {now.used_nodes}/{now.offered_nodes}  {jobs}"
        self._console.print(line, soft_wrap=True, markup=False)
        reason = view.decision.reason if view.decision else ""
        if reason and reason != self._reason:
            self._reason = reason
            self._console.print(f"        {reason}", soft_wrap=True, markup=False, style="dim")


def _job(job: JobView) -> str:
    if job.phase in OVER:
        return f"{job.name} {job.phase}"
    return f"{job.name} {words.node_counts(job)}n {words.compact(job.done_samples)}"
