"""Commands about jobs: submit, list, read, explain, order."""

from __future__ import annotations

import getpass
import os
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from malletrain.cli import words
from malletrain.cli.options import (
    DEFAULT_STATE_DIR,
    JobArgument,
    JsonOption,
    StateDirOption,
    connected,
    print_json,
    print_table,
)
from malletrain.cli.submission import (
    check_bounds,
    default_model,
    default_name,
    parse_env,
    resolve_command,
)
from malletrain.live.requests import Submission

if TYPE_CHECKING:
    from malletrain.live.views import JobView

_FOLLOW_EVERY_S = 0.5
_ORDERED = {
    "cancel": "is cancelled",
    "suspend": "saves its state and gives its nodes back",
    "resume": "may have nodes again",
}
_RIGHT_ALIGNED = frozenset({"NODES", "MIN-MAX", "SAMPLES/S", "DONE", "LOSS", "+/-/LOST", "STALL"})


def submit(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND", help="What starts one worker: -- python train.py --lr 0.1"
        ),
    ],
    *,
    min_nodes: Annotated[int, typer.Option(help="Fewest nodes it can train on.")] = 1,
    max_nodes: Annotated[
        int | None,
        typer.Option(
            help="Most nodes it can make use of; default: --min-nodes, so that it cannot grow."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="How to call it; default: the script's name.")] = "",
    weight: Annotated[float, typer.Option(help="Its worth against other jobs.")] = 1.0,
    samples: Annotated[
        float | None,
        typer.Option(help="Done after this many samples; default: when the script ends."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="Jobs of one model at one global batch share what is learned of its scaling; "
            "default: jobs of one --name, or of one script."
        ),
    ] = "",
    cwd: Annotated[
        Path | None, typer.Option(help="Where workers start; default: here.", file_okay=False)
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="For its workers; repeatable.")
    ] = None,
    deadline: Annotated[
        datetime | None,
        typer.Option(help="When it should be done, local time; the deadline objective uses it."),
    ] = None,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
    as_json: JsonOption = False,
) -> None:
    """Submit a training job.

    Everything after -- starts one worker on a node. The program is looked up on this shell's PATH.
    """
    most_nodes = min_nodes if max_nodes is None else max_nodes
    check_bounds(min_nodes, most_nodes, weight, samples)
    directory = (cwd or Path.cwd()).absolute()
    submission = Submission(
        name=name or default_name(command),
        min_nodes=min_nodes,
        max_nodes=most_nodes,
        weight=weight,
        samples=samples,
        command=resolve_command(command, directory),
        cwd=str(directory),
        env=parse_env(env or []),
        model_key=model or name or default_model(command, directory),
        deadline_at_s=deadline.timestamp() if deadline else None,
        owner=_user(),
    )
    with connected(state_dir) as client:
        submitted = client.submit(submission)
        is_name_shared = any(
            job.name == submission.name and job.id != submitted.job_id and job.activity != "over"
            for job in client.jobs()
        )
    if max_nodes is None:
        typer.echo(
            f"warning: this job can use {words.count(min_nodes, 'node')} only: "
            f"give --max-nodes N to let it grow",
            err=True,
        )
    if is_name_shared:
        typer.echo(
            f"warning: another job of the name {submission.name} lives: the name means the newest "
            f"that lives, now {submitted.job_id}; the ids of both are in `malletrain jobs`",
            err=True,
        )
    for warning in submitted.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if as_json:
        print_json(submitted)
    else:
        typer.echo(submitted.job_id)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # containers have users without a name
        return str(os.getuid())


def jobs(state_dir: StateDirOption = DEFAULT_STATE_DIR, as_json: JsonOption = False) -> None:
    """List all jobs, those that are over too."""
    with connected(state_dir) as client:
        listed = client.jobs()
    if as_json:
        print_json(listed)
    elif listed:
        titles = ("JOB", "ID", "STATUS", "NODES", "MIN-MAX", "SAMPLES/S", "DONE", "LOSS")
        print_table(
            (*titles, "+/-/LOST", "STALL", "NOTE"),
            [_job_row(job) for job in listed],
            _RIGHT_ALIGNED,
        )
    else:
        typer.echo(
            "no job yet; submit one: malletrain submit --max-nodes 4 -- python train.py", err=True
        )


def _job_row(job: JobView) -> tuple[str, ...]:
    return (
        job.name,
        job.id,
        words.status(job),
        words.node_counts(job),
        f"{job.min_nodes}-{job.max_nodes}",
        words.rate(job),
        words.progress(job),
        words.loss(job.loss),
        words.rescales(job),
        words.duration(job.stall_s),
        words.headline(job.note),
    )


def logs(
    job: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print what comes, until the job is over.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Start this many lines from the end.")
    ] = 100,
    state_dir: StateDirOption = DEFAULT_STATE_DIR,
) -> None:
    """Print what the job's workers wrote."""
    with connected(state_dir) as client:
        page = client.logs(job, lines=lines)
        typer.echo(page.text, nl=False)
        while follow:
            # Asked before reading: what it wrote before it was over is still read.
            is_over = client.job(job).activity == "over"
            page = client.logs(job, after=page)
            typer.echo(page.text, nl=False)
            if page.text:
                continue
            if is_over:
                return
            time.sleep(_FOLLOW_EVERY_S)


def explain(
    job: JobArgument, state_dir: StateDirOption = DEFAULT_STATE_DIR, as_json: JsonOption = False
) -> None:
    """Say why a job has the nodes it has, and what it would do with more."""
    with connected(state_dir) as client:
        explanation = client.explain(job)
    if as_json:
        print_json(explanation)
    else:
        typer.echo(explanation.text)


def cancel(job: JobArgument, state_dir: StateDirOption = DEFAULT_STATE_DIR) -> None:
    """End a job for good; its state is not kept."""
    _order(job, "cancel", state_dir)


def suspend(job: JobArgument, state_dir: StateDirOption = DEFAULT_STATE_DIR) -> None:
    """Save a job's state and take its nodes away until it is resumed."""
    _order(job, "suspend", state_dir)


def resume(job: JobArgument, state_dir: StateDirOption = DEFAULT_STATE_DIR) -> None:
    """Let a suspended job have nodes again."""
    _order(job, "resume", state_dir)


def _order(job: str, verb: str, state_dir: Path) -> None:
    with connected(state_dir) as client:
        client.order(job, verb)
    typer.echo(f"{job} {_ORDERED[verb]}", err=True)
