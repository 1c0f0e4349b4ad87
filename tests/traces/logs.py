"""Write a log and load it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from malletrain.traces.load import load
from malletrain.traces.trace import Trace, TraceOptions

ROOT = Path(__file__).parents[2]
#: Keeps all of a job log, so that a test sees what it wrote.
WHOLE: dict[str, Any] = {"warm_up_s": 0.0, "drain_s": 0.0}


def load_text(directory: Path, text: str, **options: Any) -> Trace:
    path = directory / "log.txt"
    path.write_text(text)
    return load(path, TraceOptions(**options))


def idle(trace: Trace) -> list[tuple[str, float, float]]:
    return [(i.node, i.from_s, i.to_s) for i in trace.intervals]


def note(trace: Trace, rule: str) -> str:
    """Return the one note with these words."""
    (found,) = [note for note in trace.notes if rule in note]
    return found


def shared(name: str) -> Path:
    """Return a real log that is no part of the project, or skip."""
    directory = os.environ.get("MALLETRAIN_SHARED_DATA", ROOT.parent / "shared" / "data")
    path = Path(directory, name)
    if not path.exists():
        pytest.skip(f"{name} is not there; MALLETRAIN_SHARED_DATA names its directory")
    return path
