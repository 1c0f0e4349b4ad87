"""Commands about nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from malletrain.cli import words
from malletrain.cli.options import (
    DEFAULT_STATE_DIR,
    JsonOption,
    NodeArgument,
    StateDirOption,
    connected,
    print_json,
    print_table,
)
from malletrain.live.views import NodeView

app = typer.Typer(help="Add and remove local nodes by hand.", no_args_is_help=True)


def nodes(state_dir: StateDirOption = DEFAULT_STATE_DIR, as_json: JsonOption = False) -> None:
    """List the nodes at hand, and who holds each."""
    with connected(state_dir) as client:
        view = client.state()
    if as_json:
        print_json(view.nodes)
    elif view.nodes:
        names = {job.id: job.name for job in view.jobs}
        rows = [_row(node, names, view.now_s) for node in words.in_order(view.nodes)]
        print_table(
            ("NODE", "GROUP", "CLASS", "GPUS", "STATE", "JOB", "HERE FOR", "FOR ANOTHER"),
            rows,
            frozenset({"GPUS", "HERE FOR", "FOR ANOTHER"}),
        )
    else:
        typer.echo("no node at the moment", err=True)
    if view.pilots_waiting:
        waiting = words.count(view.pilots_waiting, "pilot")
        typer.echo(f"{waiting} in the batch system's queue", err=True)
    if view.trouble:
        typer.echo(f"trouble: {view.trouble}", err=True)


def _row(node: NodeView, names: dict[str, str], now_s: float) -> tuple[str, ...]:
    state = node.state
    if node.leaving_at_s is not None:
        state = f"leaving in {words.duration(max(node.leaving_at_s - now_s, 0.0))}"
    return (
        node.id,
        node.group or "-",
        node.node_class or "-",
        str(node.gpus),
        state,
        names.get(node.job_id, node.job_id) if node.job_id else "-",
        words.duration(float(round(max(now_s - node.opened_at_s, 0.0)))),
        _left(node.expected_end_at_s, now_s),
    )


def _left(end_at_s: float | None, now_s: float) -> str:
    return "-" if end_at_s is None else words.duration(float(round(max(end_at_s - now_s, 0.0))))


@app.command()
def add(
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 1,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Start local nodes."""
    with connected(state_dir) as client:
        client.add_nodes(count)
    typer.echo(f"{words.count(count, 'node')} asked for; see `malletrain nodes`", err=True)


@app.command()
def remove(
    node: NodeArgument,
    abrupt: Annotated[
        bool, typer.Option("--abrupt", help="Kill it at once, without a grace period.")
    ] = False,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Take a local node back, as a batch system would."""
    with connected(state_dir) as client:
        client.remove_node(node, is_abrupt=abrupt)
    typer.echo(f"{node} {'is killed' if abrupt else 'is told to leave'}", err=True)
