from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from malletrain.batch.commands import CommandKind
from malletrain.cli.main import app
from malletrain.live.state_dir import StateDir
from malletrain.live.store import SqliteStore
from tests.impact.site import DAY_S, NAME, Site

Run = Callable[..., Result]
FROM, TO = f"{DAY_S:.0f}", f"{DAY_S + 3600:.0f}"


@pytest.fixture
def site() -> Site:
    """A pilot from 100 to 1000 s, whose node job 50 takes."""
    made = Site()
    made.run(90, CommandKind.ORDER, "sbatch", f"--job-name={NAME}")
    made.join(100, nd01="7_0")
    made.account("7_0", 95, 1001, "nd01", name=NAME)
    made.leave(1000, "7_0")
    made.lose(1000.5, "7_0")
    made.account("50", 1001, 1500, "nd01", ready=999)
    return made


@pytest.fixture
def state_dir(tmp_path: Path, site: Site) -> StateDir:
    directory = StateDir(tmp_path / "state")
    directory.path.mkdir()
    store = SqliteStore(directory.journal_path)
    store.append(site.events)
    store.close()
    directory.commands_path.parent.mkdir()
    lines = (msgspec.json.encode(record) + b"\n" for record in site.commands)
    directory.commands_path.write_bytes(b"".join(lines))
    return directory


@pytest.fixture
def run(state_dir: StateDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("MALLETRAIN_STATE_DIR", str(state_dir.path))
    monkeypatch.delenv("MALLETRAIN_DEBUG", raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def invoke(*args: str, stdin: str = "") -> Result:
        return CliRunner().invoke(app, ["impact", *args], input=stdin)

    return invoke


def sacct(tmp_path: Path, script: str) -> None:
    program = tmp_path / "bin" / "sacct"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def one_line(result: Result, status: int) -> str:
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def test_a_file_of_accounting(run: Run, site: Site, tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text("\n".join(site.rows) + "\n")
    result = run("--accounting", str(path))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(
        "In 15.0 minutes MalleTrain used 15.0 node-minutes of idle time;"
    )
    assert "1 job took nodes back and waited 1 s" in " ".join(result.stdout.split())
    assert "Note:" not in result.stdout


def test_json_has_all_figures(run: Run, site: Site, tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text("\n".join(site.rows) + "\n")
    result = run("--accounting", str(path), "--json", "--from", FROM, "--to", TO)
    found = msgspec.json.decode(result.stdout)
    # Of the period, what the journal tells of.
    assert (found["from_at_s"], found["to_at_s"]) == (DAY_S + 100, DAY_S + 1000.5)
    assert found["harvested_node_s"] == pytest.approx(900.5)
    assert found["queue"]["takings"][0]["waited_s"] == pytest.approx(1)
    assert found["load"]["orders"] == 0


def test_sacct_is_asked_where_it_is_there(
    run: Run, site: Site, state_dir: StateDir, tmp_path: Path
) -> None:
    answer = tmp_path / "answer"
    answer.write_text("\n".join(site.rows) + "\n")
    sacct(tmp_path, f'[ "$SLURM_TIME_FORMAT" = %s ] && cat {answer}')
    found = msgspec.json.decode(run("--json").stdout)
    assert [taking["job_id"] for taking in found["queue"]["takings"]] == ["50"]
    # It is a query like any other.
    *_, last = state_dir.commands_path.read_text().splitlines()
    assert '"query","command":["sacct","-a","-X","-P"' in last


def test_without_accounting_the_journal_tells_and_a_note_says_how_to_get_the_rest(
    run: Run, tmp_path: Path
) -> None:
    sacct(tmp_path, "echo Slurm accounting storage is disabled >&2; exit 1")
    result = run()
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    assert "1 node was asked back and free within 0.50 s" in words
    assert "sacct ended with 1: Slurm accounting storage is disabled" in words
    assert "> FILE, and --accounting FILE here" in words


def test_only_slurm_is_asked_about_pilots(run: Run, state_dir: StateDir, tmp_path: Path) -> None:
    sacct(tmp_path, "exit 1")
    state_dir.journal_path.unlink()
    other = Site()
    other.join(0, nd01="7[0].server")
    other.lose(10, "7[0].server")
    store = SqliteStore(state_dir.journal_path)
    store.append(other.events)
    store.close()
    assert "of those, Slurm's are read" in " ".join(run().stdout.split())
    assert "sacct" not in state_dir.commands_path.read_text()


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--from", "yesterday"], 2, "--from is 'yesterday': it must be 2026-11-30T14:00"),
        (["--from", TO, "--to", FROM], 2, "is not before --to"),
        (["--to", FROM], 1, "the journal tells of nothing in that period: it has events from"),
        (["--accounting", "nowhere.txt"], 1, "nowhere.txt: No such file or directory"),
        (["--accounting", __file__], 1, "line 1: it is no accounting known here"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(
    run: Run, options: list[str], status: int, said: str
) -> None:
    assert said in one_line(run(*options), status)


def test_a_damaged_log_of_commands_is_said_in_one_line(run: Run, state_dir: StateDir) -> None:
    with state_dir.commands_path.open("a") as log:
        log.write("{}\n")
    line = one_line(run("--accounting", os.devnull), 1)
    assert "commands.jsonl, line 2: it is no record of a command" in line
    # A line that is being written is none yet.
    state_dir.commands_path.write_text('{"at_s"')
    assert "null, line 1: it is empty" in one_line(run("--accounting", os.devnull), 1)


def test_a_journal_without_events_and_none_at_all(run: Run, state_dir: StateDir) -> None:
    state_dir.journal_path.unlink()
    assert "there is no journal at" in one_line(run(), 1)
    SqliteStore(state_dir.journal_path).close()
    assert "holds no event yet" in one_line(run(), 1)
