"""The `malletrain` command."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from malletrain import __version__
from malletrain.cli import (
    controller_commands,
    dev_cluster_commands,
    impact_command,
    job_commands,
    node_commands,
    replay_commands,
    trace_commands,
    watch,
)
from malletrain.errors import MalleTrainError, UsageError, UserError


class _OneLineErrors(TyperGroup):
    """Prints each fault as one line on stderr; status 2 for a wrong command line, else 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except MalleTrainError as error:
            if os.environ.get("MALLETRAIN_DEBUG"):
                raise
            lines = [" ".join(line.split()) for line in str(error).splitlines()] or [""]
            if not isinstance(error, UserError):
                lines[-1] += " (MALLETRAIN_DEBUG=1 shows where)"
            for line in lines:
                typer.echo(f"malletrain: {line}", err=True)
            raise typer.Exit(2 if isinstance(error, UsageError) else 1) from error
        except BrokenPipeError:
            # Who read the output has enough of it.
            raise
        except OSError as error:
            if os.environ.get("MALLETRAIN_DEBUG"):
                raise
            where = f"{error.filename}: " if error.filename else ""
            why = f"{where}{error.strerror or error} (MALLETRAIN_DEBUG=1 shows where)"
            typer.echo(f"malletrain: {why}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_OneLineErrors,
    help="Train malleable PyTorch jobs on the transiently idle nodes of batch-scheduled machines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"malletrain {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    pass


_CONTROLLER = "Controller"
_JOBS = "Jobs"
_NODES = "Nodes"
_REPLAY = "Replay"
_SLURM = "Slurm"
#: What follows the first word that is no option belongs to the job's command.
_COMMAND_FOLLOWS = {"allow_interspersed_args": False}

app.command(rich_help_panel=_CONTROLLER)(controller_commands.up)
app.command(rich_help_panel=_CONTROLLER)(controller_commands.down)
app.command(rich_help_panel=_CONTROLLER)(watch.top)
app.command(rich_help_panel=_CONTROLLER)(controller_commands.report)
app.command(rich_help_panel=_CONTROLLER)(impact_command.impact)
app.command(rich_help_panel=_CONTROLLER)(controller_commands.doctor)
app.command(rich_help_panel=_JOBS, context_settings=_COMMAND_FOLLOWS)(job_commands.submit)
app.command(rich_help_panel=_JOBS)(job_commands.jobs)
app.command(rich_help_panel=_JOBS)(job_commands.logs)
app.command(rich_help_panel=_JOBS)(job_commands.explain)
app.command(rich_help_panel=_JOBS)(job_commands.cancel)
app.command(rich_help_panel=_JOBS)(job_commands.suspend)
app.command(rich_help_panel=_JOBS)(job_commands.resume)
app.command(rich_help_panel=_NODES)(node_commands.nodes)
app.add_typer(node_commands.app, name="node", rich_help_panel=_NODES)
app.add_typer(replay_commands.app, name="replay", rich_help_panel=_REPLAY)
app.add_typer(trace_commands.app, name="trace", rich_help_panel=_REPLAY)
app.add_typer(dev_cluster_commands.app, name="dev-cluster", rich_help_panel=_SLURM)
