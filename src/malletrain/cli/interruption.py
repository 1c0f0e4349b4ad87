"""Ctrl-C: keep what there is, and end as shells expect it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

#: As a shell has it for a process that SIGINT ended.
INTERRUPTED_STATUS = 130


@contextmanager
def ends_by_interruption() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED_STATUS) from None


@contextmanager
def interruption_asked() -> Iterator[Callable[[], bool]]:
    """Give what says whether Ctrl-C was pressed; pressed again, it interrupts at once."""
    is_asked = False

    def ask(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked:
            raise KeyboardInterrupt
        is_asked = True

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: is_asked
    finally:
        signal.signal(signal.SIGINT, before)
