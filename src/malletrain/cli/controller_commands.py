"""Commands about the controller as a whole: start, end, report, and the machine's health."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.options import (
    DEFAULT_STATE_DIR,
    JsonOption,
    StateDirOption,
    connected,
    open_state_dir,
    print_json,
)
from malletrain.errors import UserError

_POLL_EVERY_S = 0.1
_END_WITHIN_S = 60.0
_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="A TOML file; default: all its defaults.", dir_okay=False),
]


def up(
    config: ConfigOption = None,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Start the controller, and local nodes."""


def down(state_dir: StateDirOption = DEFAULT_STATE_DIR) -> None:
    """End the controller; jobs are saved and go on at the next `up`."""
    directory = open_state_dir(state_dir)
    with connected(state_dir) as client:
        client.shutdown()
    ends_at_s = time.monotonic() + _END_WITHIN_S
    # It removes the file as its last act.
    while directory.endpoint_path.exists():
        if time.monotonic() > ends_at_s:
            raise UserError(
                f"the controller has not ended within {_END_WITHIN_S:.0f} s: jobs may be saving "
                f"large states; look again with `malletrain doctor`"
            )
        time.sleep(_POLL_EVERY_S)


def report(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write it.", dir_okay=False)
    ] = Path("report.html"),
    config: ConfigOption = None,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Write a page with plots and figures of all that the journal holds."""
    from malletrain.config import Config

    try:
        from malletrain.report import write_report
    except ModuleNotFoundError as error:
        raise UserError(
            f"the report needs {error.name}, which is not installed: "
            f"pip install 'malletrain[report]'"
        ) from error
    journal = open_state_dir(state_dir).journal_path
    try:
        write_report(journal, output, settings=Config.load(config).core)
    except OSError as error:
        raise UserError(
            f"cannot write {output}: {error.strerror}; name another --output"
        ) from error
    typer.echo(str(output))


def doctor(
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port that `up` is to listen on.")
    ] = None,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
    as_json: JsonOption = False,
) -> None:
    """Say what is wrong with this machine's set-up, and what to do about it."""
    from malletrain.cli.doctor import Verdict, diagnose
    from malletrain.cli.probes import gather

    findings = diagnose(gather(open_state_dir(state_dir), port))
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            typer.echo(f"{_MARKS[finding.verdict.value]}  {finding.check}: {finding.found}")
            if finding.advice:
                typer.echo(f"      -> {finding.advice}")
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(1)
