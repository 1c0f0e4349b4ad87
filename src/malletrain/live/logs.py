"""A job's logs, page by page: its workers come and go, and each has a file of its own.

A reader follows one worker's file while that worker is the first of the job (rank 0), then goes
on with its successor's, from its beginning. Where it was is the worker and the position in its
file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from malletrain.live.requests import LogPage

PAGE_BYTES = 256 * 1024


def page(
    log_dir: Path,
    *,
    firsts: Sequence[str],
    worker: str | None = None,
    offset: int | None = None,
    lines: int | None = None,
) -> LogPage:
    """Read on from `offset` in `worker`'s file, or the last `lines` (by default a page's worth).

    `firsts` are the workers that were the job's first, in turn; the last of them is the one shown
    to a new reader, also after its end. Where none is known (none trained yet, or none since the
    controller started), that is the worker whose log was written last.
    """
    files = {path.stem: path for path in log_dir.glob("*.log")}
    if not files:
        return LogPage(text="", offset=0, path=str(log_dir))
    known = [first for first in firsts if first in files]
    if worker not in files:
        latest = known[-1] if known else max(files, key=lambda w: files[w].stat().st_mtime_ns)
        return _tail(files[latest], lines) if offset is None else _read(files[latest], offset)
    read = _read(files[worker], offset or 0)
    later = known[known.index(worker) + 1 :] if worker in known else known
    return read if read.text or not later else _read(files[later[0]], 0)


def _read(path: Path, position: int) -> LogPage:
    with path.open("rb") as file:
        file.seek(position)
        content = file.read(PAGE_BYTES)
    # A character cut in two is left for the next page.
    whole = content if len(content) < PAGE_BYTES else content[: content.rfind(b"\n") + 1] or content
    return _page(path, whole, position + len(whole))


def _tail(path: Path, lines: int | None) -> LogPage:
    size = path.stat().st_size
    start = max(0, size - PAGE_BYTES)
    with path.open("rb") as file:
        file.seek(start)
        content = file.read(size - start)
    if start:
        content = content[content.find(b"\n") + 1 :]
    if lines is not None:
        content = b"".join(content.splitlines(keepends=True)[-lines:]) if lines else b""
    return _page(path, content, size)


def _page(path: Path, content: bytes, offset: int) -> LogPage:
    text = content.decode(errors="replace")
    return LogPage(text=text, offset=offset, worker=path.stem, path=str(path))
