"""docs/replay.md can be followed: its commands run in their order, its log can be read."""

from __future__ import annotations

import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from malletrain.cli.main import app
from malletrain.traces import table
from malletrain.traces.load import load
from malletrain.traces.trace import TraceOptions
from malletrain.workloads.generate import from_text

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "replay.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


def commands(program: str) -> list[list[str]]:
    lines = "".join(blocks("bash")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [one for one in words if program in one[:2]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that holds what the page says to save."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for text in blocks("toml"):
        (name,) = re.findall(r"^# Save this as (\S+)\.$", text, re.MULTILINE)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_runs_and_prints_what_the_page_shows(place: Path) -> None:
    (copy,) = commands("cp")
    shutil.copy(*copy[1:])
    printed = ""
    for words in commands("malletrain"):
        # One seed of three shows as well that it runs.
        quick = ["1" if before == "--seeds" else word for before, word in pairwise(words)]
        result = CliRunner().invoke(app, quick)
        assert result.exit_code == 0, (words, result.output)
        printed += result.output
    assert (place / "gain.html").stat().st_size > 100_000
    assert len((place / "decisions.jsonl").read_text().splitlines()) > 100
    shown = [line.split() for text in blocks("") for line in text.splitlines()]
    heads = [words[0] for words in shown if words and words != ["..."]]
    assert set(heads) <= set(printed.split())
    for heading in ("FIGURE VALUE", "work first samples", "policy nodes gains billion done train"):
        words = heading.split()
        assert words in [line[: len(words)] for line in shown]
        assert words in [line.split()[: len(words)] for line in printed.splitlines()]


def test_the_dump_that_sacct_is_asked_for_can_be_read(tmp_path: Path) -> None:
    (asked,) = commands("sacct")
    (format_,) = [word for word in asked if word.startswith("--format=")]
    columns = format_.removeprefix("--format=").split(",")
    known = {name for names in table._NAMES.values() for name in names}
    assert {column.lower() for column in columns} <= known
    job = {
        "JobID": "12_3",
        "Submit": "2026-09-07T00:00:00",
        "Start": "2026-09-07T00:10:00",
        "End": "2026-09-07T01:10:00",
        "Elapsed": "01:00:00",
        "State": "COMPLETED",
        "NNodes": "2",
        "NodeList": "nd[1-2]",
    }
    later = {
        **job,
        "JobID": "13",
        "Submit": "2026-09-07T02:00:00",
        "Start": "2026-09-07T02:00:00",
        "End": "2026-09-07T03:00:00",
    }
    rows = [columns, *([one.get(column, "") for column in columns] for one in (job, later))]
    path = tmp_path / "jobs.txt"
    path.write_text("".join("|".join(row) + "\n" for row in rows))
    trace = load(path, TraceOptions())
    assert [(piece.node, piece.to_s - piece.from_s) for piece in trace.intervals] == [
        ("nd1", 3000.0),
        ("nd2", 3000.0),
    ]


def test_the_notes_that_are_explained_are_those_that_are_given() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src/malletrain/traces").glob("*.py"))
    listed = PAGE[PAGE.index("| note |") : PAGE.index("## 3.")]
    rows = re.findall(r"^\| (`.*?) \|", listed, re.MULTILINE)
    notes = [re.sub(r": \d+$", "", note) for row in rows for note in re.findall(r"`(.+?)`", row)]
    notes = [note for note in notes if ":" not in note and "=" not in note]
    assert len(notes) >= 12
    given = source.replace("{which}", "start") + source.replace("{which}", "end")
    assert [note for note in notes if note not in given] == []


def test_the_generators_that_are_named_exist() -> None:
    kinds = re.findall(r"`((?:hpo|nas|mixed|powers)[:=\w,.]*)`", PAGE)
    assert len(kinds) >= 4
    assert all(from_text(kind) is not None for kind in kinds)
