from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from malletrain.cli.main import app
from malletrain.config import BatchName, Config
from malletrain.live.state_dir import StateDir


class Started:
    """What `up` hands to the controller, which is not started here."""

    def __init__(self) -> None:
        self.state_dir: StateDir | None = None
        self.config = Config()
        self.batch: BatchName | None = None
        self.port = -1
        self.is_forced = False

    def run_controller(
        self,
        state_dir: StateDir,
        config: Config,
        *,
        batch: BatchName,
        port: int,
        is_forced: bool,
    ) -> None:
        self.state_dir, self.config, self.batch = state_dir, config, batch
        self.port, self.is_forced = port, is_forced


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    started = Started()
    monkeypatch.setattr("malletrain.live.main.run_controller", started.run_controller)
    return started


def up(tmp_path: Path, *args: str) -> Result:
    return CliRunner().invoke(app, ["up", "--state-dir", str(tmp_path / "state"), *args])


def test_defaults_are_those_of_the_configuration(started: Started, tmp_path: Path) -> None:
    result = up(tmp_path)
    assert result.exit_code == 0
    assert (
        result.stderr == f"starting on {tmp_path / 'state'}; Ctrl-C ends it, and saves its jobs\n"
    )
    assert started.state_dir is not None
    assert started.state_dir.path == tmp_path / "state"
    assert started.config == Config()
    assert started.batch is BatchName.LOCAL
    assert (started.port, started.is_forced) == (0, False)


def test_options_go_over_the_file(started: Started, tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    config.write_text("[local]\nmax_nodes = 4\nnodes = 1\ngrace_s = 9.0\n")
    result = up(tmp_path, "--config", str(config), "--nodes", "6", "--port", "4711", "--force")
    assert result.exit_code == 0, result.output
    local = started.config.local
    assert (local.nodes, local.max_nodes, local.grace_s) == (6, 6, 9.0)
    assert (started.port, started.is_forced) == (4711, True)


def test_a_trace_and_its_speed(started: Started, tmp_path: Path) -> None:
    trace = tmp_path / "idle.csv"
    trace.touch()
    assert up(tmp_path, "--trace", str(trace), "--speed", "60").exit_code == 0
    assert (started.config.local.trace, started.config.local.speed) == (str(trace), 60.0)


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["--nodes", "2", "--trace", "x"], 2, "give one of them"),
        (["--trace", "/no/such/trace"], 2, "--trace /no/such/trace is no file"),
        (["--batch", "slurm", "--nodes", "2"], 2, "--nodes is about local nodes"),
        (["--speed", "0"], 2, "--speed is 0: it must be above 0"),
        (["--config", "/no/such.toml"], 1, "cannot read /no/such.toml"),
        (["--nodes", "2", "--trace", "x", "--detach"], 2, "give one of them"),
    ],
)
@pytest.mark.usefixtures("started")
def test_what_up_refuses(args: list[str], status: int, message: str, tmp_path: Path) -> None:
    result = up(tmp_path, *args)
    assert result.exit_code == status
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
