"""Options, arguments and output that commands share."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from malletrain.errors import MalleTrainError
from malletrain.live.state_dir import StateDir
from malletrain.traces.files import named_path

if TYPE_CHECKING:
    from malletrain.cli.client import Client

DEFAULT_STATE_DIR = Path("~/.malletrain")
#: A shell that waits for a completion must not wait long.
_COMPLETION_TIMEOUT_S = 1.0


def open_state_dir(path: Path) -> StateDir:
    return StateDir(named_path(path))


def connected(path: Path) -> Client:
    """Return a client of the controller that runs for this state directory."""
    from malletrain.cli.client import connect  # httpx takes a while to load

    return connect(open_state_dir(path))


def _complete(
    context: typer.Context,
    incomplete: str,
    items: Callable[[Client], Iterable[tuple[str, str]]],
) -> list[tuple[str, str]]:
    """Complete from what the controller knows; where none answers there is nothing to offer."""
    from malletrain.cli.client import connect

    path = context.params.get("state_dir") or DEFAULT_STATE_DIR
    try:
        with connect(open_state_dir(Path(path)), _COMPLETION_TIMEOUT_S) as client:
            return [item for item in items(client) if item[0].startswith(incomplete)]
    except MalleTrainError:
        return []


def complete_job(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    return _complete(
        context, incomplete, lambda client: [(job.name, job.activity) for job in client.jobs()]
    )


def complete_node(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    return _complete(
        context, incomplete, lambda client: [(node.id, node.state) for node in client.nodes()]
    )


StateDirOption = Annotated[
    Path,
    typer.Option(
        envvar="MALLETRAIN_STATE_DIR",
        help="Where the controller keeps its journal, endpoint and token.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Its name or id.", autocompletion=complete_job)
]
NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="Its id.", autocompletion=complete_node)
]


def print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right_aligned: frozenset[str]
) -> None:
    """Print aligned columns, cut at the edge of a terminal and never elsewhere."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in (titles, *rows):
        cells = [
            cell.rjust(width) if title in right_aligned else cell.ljust(width)
            for title, cell, width in zip(titles, row, widths, strict=True)
        ]
        line = "  ".join(cells).rstrip()
        typer.echo(line if most is None or len(line) <= most else f"{line[: most - 1]}…")
