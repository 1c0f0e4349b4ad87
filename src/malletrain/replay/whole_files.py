"""Files that are there whole or not at all, whatever ends their writer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give the draft to write: it takes the file's place when done, and goes if that fails.

    What is no plain file, such as a pipe or /dev/stdout, is written itself.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    target = Path(os.path.realpath(path))
    # Another process, or machine, may be at the same file.
    draft = target.with_name(f".{target.name[:100]}.{os.uname().nodename[:50]}-{os.getpid()}")
    try:
        yield draft
        draft.replace(target)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
