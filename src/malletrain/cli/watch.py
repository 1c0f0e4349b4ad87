"""`top`: the live view in a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from malletrain.cli.options import DEFAULT_STATE_DIR, StateDirOption, connected
from malletrain.errors import NoControllerError
from malletrain.live.views import ClusterView

if TYPE_CHECKING:
    from rich.console import Console

_HISTORY_POINTS = 1000


def top(
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one screen and end.")] = False,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Watch nodes, jobs, throughput and decisions; Ctrl-C ends it."""
    from rich.console import Console

    from malletrain.cli.view import cluster_screen

    console = Console()
    with connected(state_dir) as client:
        view = client.state()
    if once or not sys.stdout.isatty():
        console.print(cluster_screen(view, console.width, console.height))
        return
    with contextlib.suppress(KeyboardInterrupt):
        _watch(console, view, state_dir, interval)


def _watch(console: Console, view: ClusterView, state_dir: Path, interval_s: float) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from malletrain.cli.view import Usage, cluster_screen, usage

    history = deque[Usage](maxlen=_HISTORY_POINTS)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for look in _looks(state_dir):
            width, height = console.size
            if isinstance(look, str):
                warning = Text(look, style="bold red", no_wrap=True, overflow="ellipsis")
                screen = cluster_screen(view, width, height - 1, tuple(history))
                live.update(Group(warning, screen), refresh=True)
            else:
                view = look
                history.append(usage(view))
                live.update(cluster_screen(view, width, height, tuple(history)), refresh=True)
            time.sleep(interval_s)


def _looks(state_dir: Path) -> Iterator[ClusterView | str]:
    """Yield the newest view, or why there is none; a restarted controller is found again."""
    while True:
        try:
            with connected(state_dir) as client:
                while True:
                    yield client.state()
        except NoControllerError as error:
            yield str(error)
