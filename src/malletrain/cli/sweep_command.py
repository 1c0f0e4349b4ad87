"""`replay sweep`: many replays, on all cores or on a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from malletrain.cli import words
from malletrain.cli.interruption import INTERRUPTED_STATUS, ends_by_interruption, interruption_asked
from malletrain.cli.replay_options import (
    ConfigOption,
    check_outputs,
    pairs,
    progress_bar,
    writing,
)
from malletrain.errors import SweepError, UsageError
from malletrain.replay.sweep_table import TableFormat
from malletrain.traces.files import named_path

if TYPE_CHECKING:
    from malletrain.replay.sweep import Store
    from malletrain.replay.workers import Failure

_MOST_TASKS = 100


def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="SWEEP.toml", help="What to run.", show_default=False)
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(help="Where results go; default: the file's name.", file_okay=False),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes, or tasks on a cluster; default: all cores, or 100 tasks."
        ),
    ] = None,
    format_: Annotated[
        TableFormat, typer.Option("--format", help="What the table of results is.")
    ] = TableFormat.CSV,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Run as the tasks of a Slurm array; waits for them.")
    ] = False,
    slurm_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="One of sbatch, such as partition=batch; repeatable."
        ),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Replay every combination of policies, seeds and settings that a file lists.

    Each run is kept once it is done: after Ctrl-C, the same command goes on where it was; what
    was changed is run anew.
    """
    from malletrain.replay import sweep_table

    options = pairs("--slurm-option", slurm_option or ())
    if options and not slurm:
        raise UsageError("--slurm-option cannot apply without --slurm")
    sweep_table.check_format(format_)
    file, config = named_path(file), config and named_path(config)
    directory = named_path(out) if out else Path(file.stem)
    table = directory / f"results.{format_.value}"
    with ends_by_interruption():
        store = _store(file, config, directory)
        check_outputs({"--out": table}, [file, *([config] if config else []), *store.inputs()])
        ending = _run(store, workers, directory, options if slurm else None)
    rows = list(store.rows())
    total = len(store.sweep.runs)
    with writing(table) as draft:
        sweep_table.write(rows, draft, format_)
    typer.echo(f"{table}: {words.count(len(rows), 'row')} of {total:,}")
    if ending is None:
        typer.echo("malletrain: it was interrupted; the same command goes on with it", err=True)
        raise typer.Exit(INTERRUPTED_STATUS)
    if ending:
        raise SweepError(
            f"{words.count(len(ending), 'run')} of {total:,} failed; the same command tries again; "
            f"the first: {ending[0].run.label}: {ending[0].why}"
        )


def _store(file: Path, config: Path | None, directory: Path) -> Store:
    from malletrain.config import Config, core_settings
    from malletrain.replay.sweep import Store
    from malletrain.replay.sweep_file import read

    base = Config.load(config).core
    store = Store(directory, read(file, lambda table: core_settings(base, table)))
    store.check()
    return store


def _run(
    store: Store, workers: int | None, directory: Path, slurm_options: Mapping[str, str] | None
) -> list[Failure] | None:
    """Run what is not done yet; return the runs that failed, or None after Ctrl-C."""
    runs = [run for run in store.sweep.runs if not store.is_done(run)]
    if done := len(store.sweep.runs) - len(runs):
        typer.echo(f"{words.count(done, 'run')} of {len(store.sweep.runs):,} done before", err=True)
    if not runs:
        return []
    try:
        with progress_bar() as show:
            count = _counter(show, len(runs))
            if slurm_options is not None:
                from malletrain.replay.cluster import run_on_cluster

                tasks = workers or _MOST_TASKS
                return run_on_cluster(
                    store, runs, tasks, slurm_options, folder=directory / "slurm", on_done=count
                )
            from malletrain.replay.workers import run_all

            with interruption_asked() as is_interrupted:

                def count_or_stop(more: int) -> None:
                    count(more)
                    # Here nothing is held that an interruption anywhere could leave locked.
                    if is_interrupted():
                        raise KeyboardInterrupt  # noqa: TRY301

                num_workers = workers or len(os.sched_getaffinity(0))
                return run_all(store, runs, num_workers, count_or_stop)
    except KeyboardInterrupt:
        return None


def _counter(show: Callable[[str, float], None], total: int) -> Callable[[int], None]:
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        show(f"{done:,} of {total:,} runs", done / total)

    count(0)
    return count
