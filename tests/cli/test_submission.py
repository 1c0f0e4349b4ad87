from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest

from malletrain.cli.submission import check_bounds, parse_env, resolve_command
from malletrain.errors import UsageError


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((0, 4, 1.0, None), "--min-nodes is 0: a job needs at least 1"),
        ((4, 2, 1.0, None), "--max-nodes is 2, below --min-nodes 4"),
        ((1, 2, 0.0, None), "--weight is 0: give 1e-06"),
        ((1, 2, math.nan, None), "--weight is nan"),
        ((1, 2, 1e300, None), "--weight is 1e+300: give"),
        ((1, 2, 1.0, -5.0), "--samples is -5: it must be above 0"),
    ],
)
def test_impossible_numbers(bounds: tuple[int, int, float, float | None], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        check_bounds(*bounds)


def test_possible_numbers() -> None:
    check_bounds(1, 1, 0.5, None)
    check_bounds(2, 8, 1.0, 50_000.0)


def test_env() -> None:
    assert parse_env(["A=1", "B=x=y", "C="]) == (("A", "1"), ("B", "x=y"), ("C", ""))


@pytest.mark.parametrize("word", ["A", "=1", "1A=2", "A B=3"])
def test_env_of_another_form(word: str) -> None:
    with pytest.raises(UsageError, match="is not NAME=VALUE"):
        parse_env([word])


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / "job.sh").write_text("#!/bin/dash\n")
    (tmp_path / "launch").write_text("#!/usr/bin/env -S bash -u\n")
    (tmp_path / "binary").write_bytes(b"\x7fELF")
    runnable = tmp_path / "run"
    runnable.write_text("#!/bin/sh\n")
    runnable.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ("python", "train.py", "--lr", "0.1"),
        ("python", "-u", "-W", "error", "train.py"),
        ("python", "-m", "package.train"),
        ("python", "-um", "package.train"),
        ("python", "-c", "print()"),
        ("sh", "-ec", "exec python train.py"),
        ("sh", "-e", "run"),
        ("env", "A=1", "python", "anything.py"),
        ("./run", "--fast"),
        (sys.executable, "train.py"),
    ],
)
def test_commands_that_can_run(
    command: tuple[str, ...], scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    resolved = resolve_command(command, scripts)
    assert Path(resolved[0]).is_absolute()
    assert Path(resolved[0]).name == Path(command[0]).name
    assert resolved[1:] == command[1:]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("python", "trian.py"), "trian.py is no file in"),
        (("python", "-X", "dev", "trian.py"), "trian.py is no file in"),
        (("sh", "-o", "errexit", "trian.sh"), "trian.sh is no file in"),
        (("train.py",), "not on PATH: put its interpreter in front: python ./train.py"),
        (("run",), "run is not on PATH: run it as `./run`"),
        (("./train.py",), "not executable: put its interpreter in front: python ./train.py"),
        (("./job.sh",), "chmod +x ./job.sh, or put its interpreter in front: dash ./job.sh"),
        (("./launch",), "chmod +x ./launch, or put its interpreter in front: bash ./launch"),
        (("./binary",), "./binary is not executable: chmod +x ./binary"),
        (("./absent",), "./absent is no file in"),
        (("no-such-program",), "no-such-program is neither on PATH nor in"),
    ],
)
def test_commands_that_cannot(
    command: tuple[str, ...], message: str, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    with pytest.raises(UsageError, match=re.escape(message)):
        resolve_command(command, scripts)


def test_a_working_directory_that_is_none(scripts: Path) -> None:
    with pytest.raises(UsageError, match="is no directory here"):
        resolve_command(("python", "train.py"), scripts / "absent")
