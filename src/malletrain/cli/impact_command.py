"""The command that says what MalleTrain meant for the machine and its other users."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from malletrain.cli.options import (
    DEFAULT_STATE_DIR,
    JsonOption,
    StateDirOption,
    open_state_dir,
    print_json,
)
from malletrain.errors import BatchError, TraceError, UsageError, UserError

if TYPE_CHECKING:
    from malletrain.impact.accounting import BatchJob
    from malletrain.impact.stays import Held
    from malletrain.live.state_dir import StateDir

_AGO = re.compile(r"(\d{1,9}(?:\.\d+)?)([smhd])")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_EPOCH = re.compile(r"\d{9,11}(\.\d*)?")
_SLURM_ID = re.compile(r"\d+(_\d+)?")
#: A job that a node was given back for may start a little later than the period ends.
_LATER_S = 120.0

_TIME_HELP = "2026-11-30T14:00, 2026-11-30, epoch seconds, or how long ago: 90m, 24h, 7d"


def impact(
    *,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help=f"{_TIME_HELP}; default: the journal's first event."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="The same; default: the journal's last event."),
    ] = None,
    accounting: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What `sacct -a -X -P` printed, or Slurm's jobcomp/filetxt; - is standard input. "
            "Default: sacct is run where it is there.",
            dir_okay=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Say what was harvested in a period, and what it cost the machine's other users."""
    from malletrain.impact.impact import impact as of
    from malletrain.impact.load import read_commands
    from malletrain.impact.words import text

    directory = open_state_dir(state_dir)
    held = _held(directory, from_, to)
    commands = read_commands(directory.commands_path)
    jobs, notes = _jobs(accounting, held, directory)
    found = of(held, commands, jobs, notes)
    if as_json:
        print_json(found)
    else:
        typer.echo(text(found), nl=False)


def _held(directory: StateDir, from_: str | None, to: str | None) -> Held:
    """Read the journal for the part of the period that it tells of."""
    from malletrain.impact.stays import held, span
    from malletrain.live.store import read_history

    now_s = time.time()
    from_s, to_s = _moment(from_, "--from", now_s), _moment(to, "--to", now_s)
    if from_s is not None and to_s is not None and from_s >= to_s:
        raise UsageError(f"--from {from_} is not before --to {to}: there is nothing between them")
    history = read_history(directory.journal_path)
    known = span(history.snapshot, history.events)
    if known is None:
        raise UserError(f"the journal {directory.journal_path} holds no event yet")
    first_s, last_s = known
    begin_s = first_s if from_s is None else max(first_s, from_s)
    end_s = last_s if to_s is None else min(last_s, to_s)
    if begin_s >= end_s:
        raise UserError(
            f"the journal tells of nothing in that period: it has events from "
            f"{_shown(first_s)} to {_shown(last_s)}; change --from or --to"
        )
    return held(history.snapshot, history.events, begin_s, end_s)


def _jobs(
    path: Path | None, held: Held, directory: StateDir
) -> tuple[tuple[BatchJob, ...] | None, list[str]]:
    """Return the accounting, None where there is none, and what is to be said about it."""
    from malletrain.impact.accounting import read
    from malletrain.traces.files import named_path, open_lines

    if path is not None:
        with open_lines(Path("/dev/stdin") if str(path) == "-" else named_path(path)) as lines:
            return read(lines), []
    if not any(_SLURM_ID.fullmatch(stay.pilot_id) for stay in held.stays):
        return None, ["how long jobs waited only an accounting knows; of those, Slurm's are read"]
    try:
        return _sacct(held, directory), []
    except (BatchError, TraceError) as error:
        return None, [_how_to_account(held, str(error))]


def _sacct(held: Held, directory: StateDir) -> tuple[BatchJob, ...]:
    """Ask the accounting on this machine."""
    import asyncio
    import io

    from malletrain.batch.commands import CommandKind, Commands
    from malletrain.batch.slurm.build import environment
    from malletrain.clock import WallClock
    from malletrain.impact.accounting import read
    from malletrain.traces.files import Lines

    commands = Commands(directory.commands_path, WallClock(), environment(os.environ))
    answer = asyncio.run(commands.run(CommandKind.QUERY, _sacct_command(held)))
    return read(Lines("sacct", io.BufferedReader(io.BytesIO(answer.encode()))))


def _sacct_command(held: Held) -> list[str]:
    from malletrain.impact.accounting import COLUMNS

    begin, end = (_shown(at_s) for at_s in (held.from_s, held.to_s + _LATER_S))
    return ["sacct", "-a", "-X", "-P", "-D", "-S", begin, "-E", end, "-o", COLUMNS]


def _how_to_account(held: Held, why: str) -> str:
    return (
        f"how long jobs waited, and how pilots ended, only the accounting knows, and there was "
        f"none ({' '.join(why.split())}). On a machine that has it: SLURM_TIME_FORMAT=%s "
        f"{' '.join(_sacct_command(held))} > FILE, and --accounting FILE here; Slurm's "
        f"jobcomp/filetxt does as well"
    )


def _moment(text: str | None, option: str, now_s: float) -> float | None:
    if text is None:
        return None
    if match := _AGO.fullmatch(text):
        return now_s - float(match[1]) * _UNITS_S[match[2]]
    if _EPOCH.fullmatch(text):
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{option} is {text[:40]!r}: it must be {_TIME_HELP}") from error


def _shown(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).strftime("%Y-%m-%dT%H:%M:%S")  # noqa: DTZ006 - local
