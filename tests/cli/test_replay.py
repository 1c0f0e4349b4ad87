from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from malletrain.cli import words
from malletrain.cli.main import app
from malletrain.sim.results import ReplayResult
from tests.replay.replay_files import write_jobs, write_trace

Run = Callable[..., Result]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_trace(tmp_path / "idle.csv")
    write_jobs(tmp_path / "jobs.toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MALLETRAIN_DEBUG", raising=False)
    return tmp_path


@pytest.fixture
def replay(place: Path) -> Run:
    def invoke(*args: str) -> Result:
        return CliRunner().invoke(app, ["replay", "idle.csv", "--jobs", "jobs.toml", *args])

    assert place.is_dir()
    return invoke


def one_line(result: Result, status: int) -> str:
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_it_tells_what_the_idle_nodes_would_have_trained(replay: Run) -> None:
    result = replay()
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Your machine had")
    assert result.stderr == ""
    for name in ("malletrain", "freetrain-linear", "equal-share", "fifo"):
        assert any(line.startswith(f"{name} ") for line in result.stdout.splitlines())


def test_json_is_one_object_of_figures(replay: Run) -> None:
    result = replay("--json", "--policy", "fifo,equal-share", "--seeds", "2", "--max-parallel", "3")
    found = json.loads(result.stdout)
    assert result.stderr == ""
    assert set(found) == set(ReplayResult.__struct_fields__)
    assert found["settings"] == ["max_parallel = 3", "seeds = 0, 1"]
    assert found["is_complete"] is True
    assert [(run["policy"], run["seed"]) for run in found["policies"]] == [
        ("fifo", 0),
        ("equal-share", 0),
        ("fifo", 1),
        ("equal-share", 1),
    ]
    for run in found["policies"]:
        node_s = run["node_s"]
        uses = {"training", "rescaling", "profiling", "preempted", "idle"}
        assert set(node_s) == {"offered", *uses}
        assert sum(node_s[use] for use in uses) == pytest.approx(node_s["offered"])
        assert run["done_samples"] > 0
        assert run["events"] > 0
        assert "makespan_s" in run
        assert not {"jobs", "series", "curves"} & set(run)


def test_full_json_is_the_whole_result(replay: Run) -> None:
    result = msgspec.json.decode(replay("--json-full").stdout, type=ReplayResult)
    assert all(len(run.jobs) == 5 for run in result.policies)


def test_report_is_written_and_named(replay: Run, place: Path) -> None:
    result = replay("--policy", "malletrain,fifo", "--report", "gain.html")
    assert result.stdout.splitlines()[-1] == "report: gain.html"
    page = (place / "gain.html").read_text()
    assert "idle.csv" in page
    assert "max_parallel" not in page


def test_same_seed_twice_is_the_same_journal(replay: Run, place: Path) -> None:
    def journal(name: str, seed: int) -> tuple[bytes, str]:
        result = replay(
            *("--policy", "malletrain", "--seed", str(seed), "--journal", name, "--json"),
            *("--world", "crashes_per_node_day=50"),
        )
        digest = json.loads(result.stdout)["policies"][0]["journal_sha256"]
        return (place / name).read_bytes(), digest

    first, again, other = journal("a", 3), journal("b", 3), journal("c", 4)
    assert first == again
    assert first != other
    lines = first[0].splitlines()
    assert len(lines) > 10
    assert all("reason" in json.loads(line) for line in lines)


def test_settings_come_from_the_configuration_and_options_win(replay: Run, place: Path) -> None:
    (place / "c.toml").write_text('[core]\nobjective = "fair"\nhorizon.fixed_s = 30\n')
    given = ("--config", "c.toml", "--policy", "malletrain", "--json")
    assert json.loads(replay(*given).stdout)["settings"] == [
        "core.objective = fair",
        "core.horizon.fixed_s = 30",
    ]
    digests = [
        json.loads(replay(*given, *more).stdout)["policies"][0]["journal_sha256"]
        for more in ((), ("--objective", "samples", "--horizon", "adaptive"))
    ]
    plain = replay("--objective", "samples", "--policy", "malletrain", "--json")
    assert digests[1] == json.loads(plain.stdout)["policies"][0]["journal_sha256"]
    assert digests[0] != digests[1]


def test_the_options_of_the_trace_are_heeded(replay: Run) -> None:
    found = json.loads(replay("--nodes", "16", "--policy", "fifo", "--json").stdout)
    assert 0 < found["trace"]["idle_share"] < 1
    assert one_line(replay("--time-zone", "UTC"), 2).startswith("malletrain: --time-zone cannot")


def test_a_part_of_the_trace(replay: Run) -> None:
    found = json.loads(
        replay("--from", "600", "--until", "4200", "--policy", "fifo", "--json").stdout
    )
    assert found["trace"]["length_s"] == 3600
    assert found["settings"] == ["from = 600", "until = 4200"]
    assert found["policies"][0]["node_s"]["offered"] >= found["trace"]["idle_node_s"] * 0.99


REFUSED: dict[str, tuple[list[str], str]] = {
    "policy": (["--policy", "maletrain"], "no policy 'maletrain': did you mean malletrain?"),
    "no-policy": (["--policy", "malletrain,"], "there is no policy ''"),
    "policy-twice": (["--policy", "fifo,fifo"], "--policy names fifo twice"),
    "json": (["--json", "--json-full"], "give one of them"),
    "journal": (["--journal", "j"], "--journal is of one policy and one seed"),
    "journal-seeds": (["--journal", "j", "--policy", "fifo", "--seeds", "2"], "one seed"),
    "report": (["--report", "nowhere/r.html"], "there is no directory nowhere"),
    "objective": (
        ["--objective", "sampels"],
        "objective = 'sampels' is none: did you mean samples",
    ),
    "horizon": (["--horizon", "soon"], "horizon = 'soon': it must be adaptive, or seconds"),
    "heedless": (["--horizon", "60", "--policy", "fifo"], "--horizon cannot apply: fifo"),
    "repeat": (["--repeat"], "--max-parallel N"),
    "world": (["--world", "grace_s"], "write --world KEY=VALUE"),
    "world-twice": (["--world", "grace_s=1", "--world", "grace_s=2"], "grace_s is given twice"),
    "world-key": (["--world", "grase_s=1"], "world: unknown key 'grase_s': did you mean grace_s?"),
    "world-value": (["--world", "grace_s=x"], "world: grace_s = 'x': it must be a number"),
    "journal-over-trace": (["--journal", "idle.csv", "--policy", "fifo"], "this file is read"),
    "report-over-jobs": (["--report", "./jobs.toml"], "--report jobs.toml: this file is read"),
    "one-file": (["--report", "j", "--journal", "j", "--policy", "fifo"], "by another option"),
    "home": (["--report", "~nobody-of-this-name/r.html"], "there is no such home directory"),
    "too-large": (["--jobs", "hpo:min_nodes=40"], "the least that one needs is 40 nodes"),
    "until": (["--from", "900", "--until", "800"], "--until 800 must be after --from 900"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(name: str, replay: Run, place: Path) -> None:
    args, said = REFUSED[name]
    assert said in one_line(replay(*args), 2)
    assert not (place / "j").exists()


def test_wrong_inputs_are_named(place: Path) -> None:
    def said(*args: str) -> str:
        return one_line(CliRunner().invoke(app, ["replay", *args]), 1)

    assert place.is_dir()
    assert "nothing.csv" in said("nothing.csv", "--jobs", "jobs.toml")
    assert "nothing.toml" in said("idle.csv", "--jobs", "nothing.toml")
    assert "generator hpo:cout=3" in said("idle.csv", "--jobs", "hpo:cout=3")
    assert "jobs.toml, line 1" in said("jobs.toml", "--jobs", "jobs.toml")
    assert "c.toml" in said("idle.csv", "--jobs", "jobs.toml", "--config", "c.toml")


def test_a_result_that_cannot_be_written_is_one_line(replay: Run) -> None:
    said = one_line(replay("--policy", "fifo", "--journal", "/dev/full"), 1)
    assert said == "malletrain: cannot write /dev/full: No space left on device; name another file"


def test_output_that_cannot_be_written_is_one_line(place: Path) -> None:
    command = [sys.executable, "-m", "malletrain.cli", "trace", "stats", "idle.csv"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=place, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].startswith("malletrain: No space left on device")
    assert "Traceback" not in done.stderr


def test_jobs_that_never_fit_are_told(replay: Run, place: Path) -> None:
    text = (place / "jobs.toml").read_text()
    large = text.replace("max_nodes = 8", "max_nodes = 8\nmin_nodes = 8", 1)
    (place / "jobs.toml").write_text(large)
    found = json.loads(replay("--policy", "fifo", "--json").stdout)
    rule = "Jobs that need more nodes than the"
    assert any(said.startswith(rule) for said in found["assumptions"])


def test_a_report_needs_its_extra(replay: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "malletrain.report.replay_page", None)
    assert "pip install 'malletrain[report]'" in one_line(replay("--report", "r.html"), 1)


def test_a_trace_called_sweep_is_written_with_its_directory(place: Path) -> None:
    (place / "sweep").write_text((place / "idle.csv").read_text())
    args = ["--jobs", "jobs.toml", "--policy", "fifo", "--json"]
    found = CliRunner().invoke(app, ["replay", "./sweep", *args])
    assert json.loads(found.stdout)["trace"]["source"] == "sweep"
    assert CliRunner().invoke(app, ["replay", "sweep", *args]).exit_code == 2


# -- Ctrl-C ----------------------------------------------------------------------------------------


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "malletrain.cli", "replay", *args]


@pytest.fixture
def endless(place: Path) -> list[str]:
    """Arguments of a replay that takes far longer than any test."""
    write_trace(place / "long.csv", nodes=32, rounds=3000)
    return ["long.csv", "--jobs", "jobs.toml", "--repeat", "--max-parallel", "4"]


@contextmanager
def on_a_terminal(place: Path, *args: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a command whose stderr is a terminal, in a process group of its own."""
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        command(*args),
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        cwd=place,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        process_group=0,
    )
    os.close(theirs)
    with process:
        try:
            yield process, terminal
        finally:
            process.kill()
    os.close(terminal)


def read_until(terminal: int, pattern: bytes) -> None:
    seen = b""
    while not re.search(pattern, seen):
        seen += os.read(terminal, 1024)


def test_ctrl_c_writes_table_and_report(endless: list[str], place: Path) -> None:
    with on_a_terminal(place, *endless, "--report", "gain.html") as (process, terminal):
        read_until(terminal, b"malletrain, seed 0")
        process.send_signal(signal.SIGINT)
        stderr = read_to_end(terminal)
        stdout, _ = process.communicate()
    assert process.returncode == 130, stderr
    assert "Your machine had" in stdout
    assert "report: gain.html" in stdout
    assert b"interrupted" in stderr
    assert "This replay was interrupted" in (place / "gain.html").read_text()


def read_to_end(terminal: int) -> bytes:
    read = b""
    try:
        while more := os.read(terminal, 1024):
            read += more
    except OSError:  # how a terminal says that nobody is there any more
        pass
    return read


def test_ctrl_c_writes_json_and_journal(endless: list[str], place: Path) -> None:
    os.mkfifo(place / "journal")
    with subprocess.Popen(
        command(*endless, "--policy", "malletrain", "--json", "--journal", "journal"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
    ) as process:
        with (place / "journal").open() as journal:
            first = journal.readline()
            process.send_signal(signal.SIGINT)
            rest = journal.readlines()
        stdout, stderr = process.communicate()
    assert process.returncode == 130, stderr
    found = json.loads(stdout)
    assert found["is_complete"] is False
    assert "malletrain with seed 0 goes up to" in found["assumptions"][0]
    assert found["policies"][0]["decisions"] == len([first, *rest])
    assert len(stderr.splitlines()) == 1


# -- sweeps ----------------------------------------------------------------------------------------

SWEEP = """
trace = "idle.csv"
jobs = ["jobs.toml"]
policies = ["malletrain", "fifo"]
seeds = [{seeds}]
[grid]
max_parallel = [2, 3]
"""


def test_a_sweep_makes_one_table_and_goes_on_where_it_was(place: Path) -> None:
    (place / "s.toml").write_text(SWEEP.format(seeds="0"))
    first = CliRunner().invoke(app, ["replay", "sweep", "s.toml", "--workers", "2"])
    assert first.exit_code == 0, first.output
    assert first.stdout == "s/results.csv: 4 rows of 4\n"
    (place / "s.toml").write_text(SWEEP.format(seeds="0, 1"))
    args = ["replay", "sweep", "s.toml", "--format", "parquet"]
    second = CliRunner().invoke(app, args)
    assert "4 runs of 8 done before" in second.stderr
    assert second.stdout == "s/results.parquet: 8 rows of 8\n"
    assert len(list((place / "s" / "runs").iterdir())) == 8


def test_ctrl_c_keeps_the_rows_of_a_sweep(place: Path) -> None:
    (place / "s.toml").write_text(SWEEP.format(seeds=", ".join(map(str, range(2000)))))
    with on_a_terminal(place, "sweep", "s.toml", "--out", "o") as (process, terminal):
        read_until(terminal, rb"[1-9]\d* of 8,000 runs")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: its workers get it too
        stderr = read_to_end(terminal)
        stdout, _ = process.communicate()
    assert process.returncode == 130, stderr
    assert b"Traceback" not in stderr
    assert b"the same command goes on" in stderr
    rows = (place / "o" / "results.csv").read_text().splitlines()[1:]
    assert len(rows) == len(set(rows)) >= 1
    assert f"{words.count(len(rows), 'row')} of 8,000" in stdout


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (["--slurm-option", "partition=x"], 2, "--slurm-option cannot apply without --slurm"),
        (["--slurm", "--slurm-option", "x"], 2, "write --slurm-option KEY=VALUE"),
        (["--slurm"], 1, "without it, this machine's cores do the work"),
    ],
)
def test_what_a_sweep_cannot_do(
    args: list[str], status: int, said: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (place / "s.toml").write_text(SWEEP.format(seeds="0"))
    assert said in one_line(CliRunner().invoke(app, ["replay", "sweep", "s.toml", *args]), status)


def test_a_sweep_does_not_write_over_what_it_reads(place: Path) -> None:
    (place / "idle.csv").rename(place / "results.csv")
    text = (place / "results.csv").read_text()
    (place / "s.toml").write_text(SWEEP.format(seeds="0").replace("idle.csv", "results.csv"))
    said = one_line(CliRunner().invoke(app, ["replay", "sweep", "s.toml", "--out", "."]), 2)
    assert "--out results.csv: this file is read" in said
    assert (place / "results.csv").read_text() == text


def test_a_sweep_that_is_wrong_is_named(place: Path) -> None:
    (place / "s.toml").write_text(SWEEP.format(seeds="") + "repeat = [true]")
    said = one_line(CliRunner().invoke(app, ["replay", "sweep", "s.toml"]), 1)
    assert said == "malletrain: s.toml: seeds is empty: there is nothing to run"
