"""Check a job before it is submitted: what can be known here is told here, in one line."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from malletrain.errors import UsageError
from malletrain.live.requests import MAX_WEIGHT, MIN_WEIGHT

_INTERPRETERS = {".py": "python", ".sh": "sh", ".bash": "bash"}
_PYTHON = re.compile(r"python[0-9.]*")
_SHELL = re.compile(r"(ba|da|k|z)?sh")
#: Options that take the next word as their value.
_PYTHON_VALUES = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_SHELL_VALUES = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
#: Options, alone or bundled (`-uc`), after which no script file follows.
_PYTHON_NO_SCRIPT = re.compile(r"-|-[^-WX]*[cm].*")
_SHELL_NO_SCRIPT = re.compile(r"-|-[^-]*[cs].*")


def check_bounds(min_nodes: int, max_nodes: int, weight: float, samples: float | None) -> None:
    """Raise `UsageError` for numbers that no job can have."""
    if min_nodes < 1:
        raise UsageError(f"--min-nodes is {min_nodes}: a job needs at least 1 node; give 1 or more")
    if max_nodes < min_nodes:
        raise UsageError(
            f"--max-nodes is {max_nodes}, below --min-nodes {min_nodes}: raise one or lower the "
            f"other"
        )
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise UsageError(
            f"--weight is {weight:g}: give {MIN_WEIGHT:g} to {MAX_WEIGHT:g}; 1 is the usual weight"
        )
    if samples is not None and not 0 < samples < float("inf"):
        raise UsageError(
            f"--samples is {samples:g}: it must be above 0; leave it out where the script ends "
            f"by itself"
        )


def parse_env(assignments: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Split `K=V` words.

    Raises:
        UsageError: one is not of this form.
    """
    pairs = []
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            raise UsageError(f"--env {assignment!r} is not NAME=VALUE, with a name like BATCH_SIZE")
        pairs.append((key, value))
    return tuple(pairs)


def resolve_command(command: Sequence[str], cwd: Path) -> tuple[str, ...]:
    """Return the command with its program's full path, so that nodes run what this shell would.

    Raises:
        UsageError: the working directory, the program or the script is not there, or the
            program cannot be executed.
    """
    if not cwd.is_dir():
        raise UsageError(f"--cwd {cwd} is no directory here: name one that exists on the nodes too")
    program = _resolve_program(command[0], cwd)
    script = _script_of(command)
    if script is not None and not (cwd / script).is_file():
        raise UsageError(
            f"{script} is no file in {cwd}: check its name, or set --cwd to where it lies"
        )
    return (program, *command[1:])


def default_name(command: Sequence[str]) -> str:
    """Return the name of the script that runs, or of the program where there is none."""
    return Path(_script_of(command) or command[0]).stem


def default_model(command: Sequence[str], cwd: Path) -> str:
    """Return the script's path: one script is one model until its user says otherwise."""
    return str(cwd / (_script_of(command) or command[0]))


def _resolve_program(program: str, cwd: Path) -> str:
    here = cwd / program
    if os.sep not in program:
        found = shutil.which(program)
        if found is not None:
            return str(Path(found).absolute())
        if here.is_file():
            raise UsageError(f"{program} is not on PATH: {_ways_to_run(here, f'./{program}')}")
        raise UsageError(f"{program} is neither on PATH nor in {cwd}: check its name")
    if not here.is_file():
        raise UsageError(f"{program} is no file in {cwd}: check its name, or set --cwd")
    if not os.access(here, os.X_OK):
        raise UsageError(f"{program} is not executable: {_ways_to_run(here, program)}")
    return str(here.absolute())


def _ways_to_run(file: Path, program: str) -> str:
    if os.access(file, os.X_OK):
        return f"run it as `{program}`"
    if interpreter := _interpreter_in(file):
        return f"chmod +x {program}, or put its interpreter in front: {interpreter} {program}"
    # The kernel runs no script that does not name its interpreter.
    if interpreter := _INTERPRETERS.get(file.suffix, ""):
        return f"put its interpreter in front: {interpreter} {program}"
    return f"chmod +x {program}"


def _interpreter_in(file: Path) -> str:
    """Return the name of the program in the file's first line, "" where there is none."""
    try:
        with file.open("rb") as script:
            first = script.readline(256).decode(errors="replace")
    except OSError:
        return ""
    words = first[2:].split() if first.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return Path(words[0]).name if words else ""


def _script_of(command: Sequence[str]) -> str | None:
    """Return the script file that an interpreter is to run; None where it is none or unknown."""
    name = Path(command[0]).name
    if _PYTHON.fullmatch(name):
        takes_value, has_no_script = _PYTHON_VALUES, _PYTHON_NO_SCRIPT
    elif _SHELL.fullmatch(name):
        takes_value, has_no_script = _SHELL_VALUES, _SHELL_NO_SCRIPT
    else:
        return None
    words = iter(command[1:])
    for word in words:
        if word in takes_value:
            next(words, None)
        elif has_no_script.fullmatch(word):
            return None
        elif not word.startswith(("-", "+")):
            return word
    return None
