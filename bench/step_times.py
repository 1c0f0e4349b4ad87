"""When steps began and ended, written by workers: CLOCK_MONOTONIC is the whole machine's."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path


class StepLog:
    """One worker's file: a line for each step it begins or ends."""

    def __init__(self, directory: Path) -> None:
        path = directory / f"{os.getpid()}.steps"
        self._file = path.open("a", buffering=1)

    def begin(self, step: int) -> None:
        self._file.write(f"{time.monotonic()} {step} begin\n")

    def end(self, step: int) -> None:
        self._file.write(f"{time.monotonic()} {step} end\n")


@dataclass(frozen=True, slots=True)
class Mark:
    at_s: float
    step: int
    is_begin: bool


def read(directory: Path) -> dict[int, list[Mark]]:
    """Return every worker's marks, by pid, oldest first."""
    found = {}
    for path in directory.glob("*.steps"):
        lines = [line.split() for line in path.read_text().splitlines()]
        found[int(path.stem)] = [
            Mark(float(line[0]), int(line[1]), line[2] == "begin") for line in lines if line[2:]
        ]
    return found


def stall_s(marks: list[Mark], since_s: float) -> float:
    """Return the longest time since then that was spent between steps, or in one begun twice."""
    longest = 0.0
    first_begins: dict[int, float] = {}
    last_end_s: float | None = None
    for mark in marks:
        if not mark.is_begin:
            last_end_s = mark.at_s
            continue
        begun_s = first_begins.setdefault(mark.step, mark.at_s)
        if mark.at_s >= since_s:
            idle_since_s = begun_s if begun_s < mark.at_s else last_end_s
            longest = max(longest, mark.at_s - (idle_since_s or mark.at_s))
    return longest
