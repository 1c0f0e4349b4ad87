from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from malletrain.cli.main import app

REFERENCE = Path(__file__).parents[2] / "docs" / "cli.md"


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            is_default = name == getattr(group, "default", None)
            yield words if is_default else (*words, name), command


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_is_in_the_reference(words: tuple[str, ...]) -> None:
    assert f"`malletrain {' '.join(words)}" in REFERENCE.read_text()


def test_the_reference_names_no_other_command() -> None:
    named = re.findall(r"^\| `malletrain ((?:[a-z]+[ -]?)+)", REFERENCE.read_text(), re.MULTILINE)
    assert {tuple(words.split()) for words in named} == set(COMMANDS)


def test_options_of_the_reference_exist() -> None:
    options = {option for command in COMMANDS.values() for p in command.params for option in p.opts}
    options |= {"--help", "--version", "--install-completion"}
    named = set(re.findall(r"(?<![\w-])--[a-z-]+[a-z]", REFERENCE.read_text()))
    assert named <= options


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_and_option_has_help(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, result.output
    assert COMMANDS[words].help
    undocumented = [param.name for param in COMMANDS[words].params if not param.help]
    assert undocumented == []
