"""End this process, or its image, with what the script has printed."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def flush_output() -> None:
    """Write out what was printed, as far as it goes: the disk of the log may be full."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()


def end_process(status: int) -> NoReturn:
    """End at once, in the middle of the script's loop, which sees no exception."""
    flush_output()
    os._exit(status)
