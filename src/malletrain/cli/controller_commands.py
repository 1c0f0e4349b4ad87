"""Commands about the controller as a whole: start, end, report, and the machine's health."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from malletrain.cli.options import (
    DEFAULT_STATE_DIR,
    JsonOption,
    StateDirOption,
    connected,
    open_state_dir,
    print_json,
)
from malletrain.config import BatchName
from malletrain.errors import UsageError, UserError

if TYPE_CHECKING:
    from malletrain.config import Config
    from malletrain.live.state_dir import StateDir

#: Agents that come back, jobs that save and nodes that end have some time each.
_END_WITHIN_S = 120.0
_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="A TOML file; default: all its defaults.", dir_okay=False),
]


def up(
    *,
    batch: Annotated[BatchName, typer.Option(help="Where nodes come from.")] = BatchName.LOCAL,
    nodes: Annotated[
        int | None, typer.Option(min=0, help="Open this many local nodes at once.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Local nodes come and go as this file says.", dir_okay=False),
    ] = None,
    speed: Annotated[
        float | None, typer.Option(help="Seconds of the trace that pass in one second.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where to listen; 0: a free port.")
    ] = 0,
    config: ConfigOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once it answers; it runs on.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Take a state directory on a network file system.")
    ] = False,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Start the controller; nodes are local ones, or those of a batch system's idle times."""
    settings = _up_settings(batch, config, nodes, trace, speed)
    directory = _shared(open_state_dir(state_dir), batch, settings)
    if not detach:
        from malletrain.cli.site_checks import refuse_bad_site
        from malletrain.live.main import run_controller

        refuse_bad_site(batch, directory, settings)
        typer.echo(f"starting on {directory.path}; Ctrl-C ends it, and saves its jobs", err=True)
        run_controller(directory, settings, batch=batch, port=port, is_forced=force)
        return
    from malletrain.cli.background import start

    given = {
        "--batch": batch.value,
        "--nodes": nodes,
        "--trace": trace and trace.absolute(),
        "--speed": speed,
        "--port": port,
        "--config": config and config.absolute(),
        "--state-dir": directory.path,
    }
    words = [word for name, value in given.items() if value is not None for word in (name, value)]
    endpoint = start(directory, [*map(str, words), *(["--force"] if force else [])])
    typer.echo(f"controller {endpoint.pid} answers at {endpoint.url}", err=True)


def _shared(directory: StateDir, batch: BatchName, settings: Config) -> StateDir:
    """Return the state directory with what nodes read and write where they can."""
    shared = settings.scavenge.shared_dir
    if batch is BatchName.LOCAL or not shared:
        return directory
    return type(directory)(directory.path, Path(shared).expanduser())


def _up_settings(
    batch: BatchName,
    config: Path | None,
    nodes: int | None,
    trace: Path | None,
    speed: float | None,
) -> Config:
    """Return the configuration file's settings under those of the command line."""
    from malletrain.config import Config

    if batch is not BatchName.LOCAL:
        given = {"--nodes": nodes, "--trace": trace, "--speed": speed}
        if moot := [name for name, value in given.items() if value is not None]:
            raise UsageError(
                f"{moot[0]} is about local nodes: with --batch {batch.value} the queue gives them; "
                f"leave it out"
            )
    if trace is not None and nodes is not None:
        raise UsageError("--nodes and --trace both say which nodes there are: give one of them")
    if trace is not None and not trace.is_file():
        raise UsageError(f"--trace {trace} is no file: check its name")
    if speed is not None and not 0 < speed < float("inf"):
        raise UsageError(f"--speed is {speed:g}: it must be above 0; 1 is real time")
    settings = Config.load(config)
    local = settings.local
    if nodes is not None:
        local = replace(local, nodes=nodes, trace="", max_nodes=max(nodes, local.max_nodes))
    if trace is not None:
        local = replace(local, trace=str(trace.absolute()), nodes=0)
    if speed is not None:
        local = replace(local, speed=speed)
    return replace(settings, local=local)


def down(state_dir: StateDirOption = DEFAULT_STATE_DIR) -> None:
    """End the controller; jobs are saved and go on at the next `up`."""
    with connected(state_dir) as client:
        endpoint = open_state_dir(state_dir).endpoint()
        with _watched(endpoint.pid if endpoint else 0) as has_ended:
            client.shutdown()
            # Nothing of it is left then: neither its lock nor its journal is in use.
            if not has_ended(_END_WITHIN_S):
                raise UserError(
                    f"the controller has not ended within {_END_WITHIN_S:g} s: jobs may be saving "
                    f"large states; look again with `malletrain doctor`"
                )
    typer.echo("the controller has ended; its jobs go on at the next `malletrain up`", err=True)


@contextlib.contextmanager
def _watched(pid: int) -> Iterator[Callable[[float], bool]]:
    """Give what waits, for a time, for the end of this very process, whoever bears its id later."""
    try:
        fd = os.pidfd_open(pid)
    except (ProcessLookupError, ValueError):
        yield lambda _: True
        return
    try:
        yield lambda limit_s: bool(select.select([fd], [], [], limit_s)[0])
    finally:
        os.close(fd)


def report(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write it.", dir_okay=False)
    ] = Path("report.html"),
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Write a page with plots and figures of all that the journal holds."""
    try:
        from malletrain.report.page import write_report
    except ModuleNotFoundError as error:
        raise UserError(
            f"the report needs {error.name}, which is not installed: "
            f"pip install 'malletrain[report]'"
        ) from error
    journal = open_state_dir(state_dir).journal_path
    try:
        write_report(journal, output)
    except OSError as error:
        raise UserError(
            f"cannot write {output}: {error.strerror}; name another --output"
        ) from error
    typer.echo(str(output))


def doctor(
    batch: Annotated[
        BatchName, typer.Option(help="Where nodes are to come from.")
    ] = BatchName.LOCAL,
    config: ConfigOption = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port that `up` is to listen on.")
    ] = None,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
    as_json: JsonOption = False,
) -> None:
    """Say what is wrong with this machine's set-up, and what to do about it."""
    from malletrain.cli.doctor import Verdict, diagnose
    from malletrain.cli.probes import gather
    from malletrain.cli.site_checks import pilot_findings, site_findings
    from malletrain.config import Config

    settings = Config.load(config)
    directory = _shared(open_state_dir(state_dir), batch, settings)
    findings = (
        *diagnose(gather(directory, port)),
        *site_findings(batch, directory, settings),
        *pilot_findings(batch, directory, settings),
    )
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            typer.echo(f"{_MARKS[finding.verdict.value]}  {finding.check}: {finding.found}")
            if finding.advice:
                typer.echo(f"      -> {finding.advice}")
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(1)
