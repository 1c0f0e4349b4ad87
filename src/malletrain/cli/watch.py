"""`top`: the live view in a terminal."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Annotated

import typer

from malletrain.cli.options import DEFAULT_STATE_DIR, StateDirOption, connected
from malletrain.errors import NoControllerError

_HISTORY_POINTS = 1000


def top(
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one screen and end.")] = False,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Watch nodes, jobs, throughput and decisions; Ctrl-C ends it."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from malletrain.cli.view import Usage, cluster_screen, usage

    console = Console()
    with connected(state_dir) as client:
        view = client.state()
        history = deque[Usage]([usage(view)], maxlen=_HISTORY_POINTS)
        if once or not sys.stdout.isatty():
            console.print(cluster_screen(view, console.width, console.height))
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            trouble = ""
            while True:
                width, height = console.size
                screen = cluster_screen(view, width, height - bool(trouble), tuple(history))
                warning = Text(trouble, style="bold red", no_wrap=True, overflow="ellipsis")
                live.update(Group(warning, screen) if trouble else screen, refresh=True)
                time.sleep(interval)
                try:
                    view, trouble = client.state(), ""
                    history.append(usage(view))
                except NoControllerError as error:
                    trouble = str(error)
