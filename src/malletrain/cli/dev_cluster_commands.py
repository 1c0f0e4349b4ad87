"""Commands about a Slurm cluster of this machine alone."""

from __future__ import annotations

import enum
import os
import shlex
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from malletrain.cli import words
from malletrain.cli.options import JsonOption, print_json, print_table
from malletrain.devcluster import DevCluster, Preempt, Settings
from malletrain.errors import UsageError
from malletrain.traces.files import named_path

app = typer.Typer(
    help="Run a Slurm cluster on this machine alone, to try things on.", no_args_is_help=True
)

DirOption = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="Where it lives; default: malletrain/dev-cluster of your XDG state directory."
    ),
]


class NodeChange(enum.Enum):
    START = "start"
    STOP = "stop"
    KILL = "kill"


class ControllerChange(enum.Enum):
    START = "start"
    STOP = "stop"


class NodeStatus(msgspec.Struct, frozen=True):
    name: str
    #: What the cluster's controller says; "" where it does not answer.
    state: str
    pid: int | None


class Status(msgspec.Struct, frozen=True):
    directory: str
    slurm_conf: str
    log_dir: str
    #: Daemon -> process id, nodes' left out; None while it does not run.
    daemons: dict[str, int | None]
    nodes: list[NodeStatus]


def _directory(given: Path | None) -> Path:
    if given is not None:
        return named_path(given).absolute()
    state_home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state_home).expanduser() / "malletrain" / "dev-cluster"


def _slurm_keys(given: list[str]) -> dict[str, str]:
    keys = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: it must be Key=Value, such as --set SlurmdTimeout=10")
        keys[key] = value
    return keys


@app.command()
def up(
    *,
    directory: DirOption = None,
    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 8,
    cpus: Annotated[int, typer.Option(help="CPUs that each node claims to have.")] = 8,
    grace_s: Annotated[
        int, typer.Option("--grace-s", help="Grace of preempted jobs: SIGTERM until the end.")
    ] = 10,
    preempt: Annotated[
        Preempt, typer.Option(help="What becomes of preempted jobs.")
    ] = Preempt.CANCEL,
    kill_wait_s: Annotated[
        int, typer.Option("--kill-wait-s", help="Between SIGTERM and SIGKILL of ended jobs.")
    ] = 5,
    switches: Annotated[
        int, typer.Option(help="Spread the nodes over so many switches; 0: no topology.")
    ] = 0,
    accounting: Annotated[
        bool, typer.Option("--accounting", help="Keep accounts in a database, for sacct.")
    ] = False,
    reachable: Annotated[
        bool,
        typer.Option("--reachable", help="Listen everywhere if loopback alone cannot be had."),
    ] = False,
    keys: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A line of slurm.conf; may be repeated."),
    ] = None,
) -> None:
    """Start the cluster, and wait until every node is idle."""
    settings = Settings(
        nodes=nodes,
        cpus=cpus,
        grace_s=grace_s,
        preempt=preempt,
        kill_wait_s=kill_wait_s,
        switches=switches,
        has_accounting=accounting,
        may_be_reachable=reachable,
        slurm=_slurm_keys(keys or []),
    )
    cluster = DevCluster.create(_directory(directory), settings)
    started = cluster.up()
    count = words.count(nodes, "node")
    done = f"{count} up" if started else f"{count} up already"
    typer.echo(
        f'{done}; for your shell: eval "$(malletrain dev-cluster env{_again(directory)})"', err=True
    )


def _again(directory: Path | None) -> str:
    return "" if directory is None else f" --dir {shlex.quote(str(directory))}"


@app.command()
def down(
    *,
    directory: DirOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep its files: logs, jobs, key.")] = False,
) -> None:
    """End the cluster, its jobs included, and delete its files."""
    cluster = DevCluster.open(_directory(directory))
    cluster.down(is_kept=keep)
    what = f"its files are in {cluster.directory}" if keep else "nothing of it is left"
    typer.echo(f"the cluster has ended; {what}", err=True)


@app.command()
def status(*, directory: DirOption = None, as_json: JsonOption = False) -> None:
    """Say which of its daemons run, and what its controller says of the nodes."""
    cluster = DevCluster.open(_directory(directory))
    pids = {daemon.name: daemon.pid() for daemon in cluster.daemons()}
    states = cluster.states() if pids["slurmctld"] else {}
    nodes = [
        NodeStatus(name, states.get(name, ""), pids.pop(f"slurmd-{name}")) for name in cluster.nodes
    ]
    if as_json:
        site = cluster.site
        print_json(Status(str(site.directory), str(site.conf), str(site.log_dir), pids, nodes))
        return
    rows = [(name, "runs" if pid else "ended", _figure(pid)) for name, pid in pids.items()]
    rows += [(node.name, node.state or words.NO_FIGURE, _figure(node.pid)) for node in nodes]
    print_table(("PART", "STATE", "PID"), rows, frozenset({"PID"}))


def _figure(pid: int | None) -> str:
    return words.NO_FIGURE if pid is None else str(pid)


@app.command()
def env(*, directory: DirOption = None) -> None:
    """Print what a shell must evaluate so that Slurm's commands are about this cluster."""
    cluster = DevCluster.open(_directory(directory))
    typer.echo(f"export SLURM_CONF={shlex.quote(str(cluster.site.conf))}")


@app.command()
def node(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node, such as nd01.")],
    change: Annotated[NodeChange, typer.Argument(help="What happens to its daemon.")],
    *,
    directory: DirOption = None,
) -> None:
    """Start, stop or kill a node's daemon; what runs on the node runs on."""
    cluster = DevCluster.open(_directory(directory))
    if change is NodeChange.START:
        cluster.start_node(name)
    elif change is NodeChange.STOP:
        cluster.stop_node(name)
    else:
        cluster.kill_node(name)


@app.command()
def controller(
    change: Annotated[ControllerChange, typer.Argument(help="What happens to slurmctld.")],
    *,
    directory: DirOption = None,
) -> None:
    """Start or stop the cluster's controller; running jobs run on."""
    cluster = DevCluster.open(_directory(directory))
    if change is ControllerChange.START:
        cluster.start_controller()
    else:
        cluster.stop_controller()
