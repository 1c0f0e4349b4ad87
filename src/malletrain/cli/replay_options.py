"""What replay and its sweeps share: an option, files to write, a bar."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from malletrain.errors import UsageError, UserError
from malletrain.replay.whole_files import whole_file

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A configuration file; its table core says how decisions are taken.",
        dir_okay=False,
    ),
]


def pairs(option: str, items: Sequence[str]) -> dict[str, str]:
    """Return the keys and values of a repeatable option."""
    found: dict[str, str] = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise UsageError(f"{option} {item}: write {option} KEY=VALUE")
        if key in found:
            raise UsageError(f"{option} {key} is given twice")
        found[key] = value
    return found


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path]) -> None:
    """Refuse to write over what is read, or two results into one file.

    Raises:
        UsageError: which option names which file.
    """
    taken = {os.path.realpath(path) for path in inputs}
    for option, path in outputs.items():
        if path is None:
            continue
        place = os.path.realpath(path)
        if place in taken:
            raise UsageError(
                f"{option} {path}: this file is read, or written by another option; name another"
            )
        taken.add(place)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Give the draft to write, which becomes the file once it is whole."""
    try:
        with whole_file(path) as draft:
            yield draft
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another file") from error


@contextmanager
def progress_bar(*, is_quiet: bool = False) -> Iterator[Callable[[str, float], None]]:
    """Give what draws a text and a share on a terminal's stderr, and nothing anywhere else."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    is_shown = console.is_terminal and not is_quiet
    with Progress(console=console, transient=True, disable=not is_shown) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda text, share: bar.update(task, description=text, completed=share)
