"""A job's logs, page by page: its workers come and go, and each has a file of its own.

A reader follows one worker's file while that worker is the one that says most (rank 0), then goes
on with its successor's. Where it was is one number for the reader: the file's place among the
job's files in the order of their start, and the position in it.
"""

from __future__ import annotations

import re
from pathlib import Path

from malletrain.live.requests import LogPage

PAGE_BYTES = 256 * 1024
_FILE_UNIT = 1 << 40
_NUMBERS = re.compile(r"\d+")


def page(
    log_dir: Path, *, current: str | None, offset: int | None = None, lines: int | None = None
) -> LogPage:
    """Read on from `offset`, or the last `lines` (all that fits in a page by default).

    `current` is the worker that says most now, None where none trains.
    """
    files = _files(log_dir)
    if not files:
        return LogPage(text="", offset=0, path=str(log_dir))
    index = next((i for i, f in enumerate(files) if f.stem == current), len(files) - 1)
    if offset is None:
        return _tail(files[index], index, lines)
    place, position = divmod(offset, _FILE_UNIT)
    place = min(place, len(files) - 1)
    if position >= files[place].stat().st_size and index > place:
        place, position = index, 0
    return _read(files[place], place, position)


def _files(log_dir: Path) -> list[Path]:
    """In the order of start: worker ids bear their generation first."""
    return sorted(log_dir.glob("*.log"), key=lambda path: _natural(path.stem))


def _natural(name: str) -> list[tuple[str, int]]:
    words = _NUMBERS.split(name)
    numbers = [int(number) for number in _NUMBERS.findall(name)]
    return list(zip(words, [*numbers, 0], strict=True))


def _read(path: Path, place: int, position: int) -> LogPage:
    with path.open("rb") as file:
        file.seek(position)
        content = file.read(PAGE_BYTES)
    # A character cut in two is left for the next page.
    whole = content if len(content) < PAGE_BYTES else content[: content.rfind(b"\n") + 1] or content
    text = whole.decode(errors="replace")
    return LogPage(text=text, offset=place * _FILE_UNIT + position + len(whole), path=str(path))


def _tail(path: Path, place: int, lines: int | None) -> LogPage:
    size = path.stat().st_size
    start = max(0, size - PAGE_BYTES)
    with path.open("rb") as file:
        file.seek(start)
        content = file.read(size - start)
    if start:
        content = content[content.find(b"\n") + 1 :]
    if lines is not None:
        content = b"".join(content.splitlines(keepends=True)[-lines:]) if lines else b""
    text = content.decode(errors="replace")
    return LogPage(text=text, offset=place * _FILE_UNIT + size, path=str(path))
