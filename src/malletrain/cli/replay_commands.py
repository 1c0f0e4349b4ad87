"""Commands that replay: what a site would have gained."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import msgspec
import typer
from typer.core import TyperGroup

from malletrain.cli import sweep_command
from malletrain.cli.interruption import (
    INTERRUPTED_STATUS,
    ends_by_interruption,
    interruption_asked,
)
from malletrain.cli.options import print_json
from malletrain.cli.replay_options import (
    ConfigOption,
    check_outputs,
    pairs,
    progress_bar,
    writing,
)
from malletrain.cli.trace_commands import (
    ColumnsOption,
    DrainOption,
    FormatOption,
    NodesOption,
    OutageOption,
    ProcessorsOption,
    TimeZoneOption,
    WarmUpOption,
    trace_options,
)
from malletrain.core.settings import ObjectiveKind
from malletrain.errors import UsageError, UserError
from malletrain.sim.settings import LedgerKind, ModelIdentity
from malletrain.traces.files import named_path

if TYPE_CHECKING:
    from malletrain.replay.compare import Comparison, Progress
    from malletrain.sim.policies import Policy
    from malletrain.sim.results import ReplayResult

#: Against what users would state, and against what needs no curves at all. The oracle is left
#: out: no site has the true curves.
_DEFAULT_POLICIES = "malletrain,freetrain-linear,equal-share,fifo"
#: Of a policy's result: lists as long as the trace or the workload.
_LONG = ("series", "jobs", "curves")


class _DefaultGroup(TyperGroup):
    """Its first command is meant wherever the first word names no other of them."""

    @property
    def default(self) -> str:
        return next(iter(self.commands))

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        if args and args[0] in self.commands and args[0] != self.default:
            return super().make_context(info_name, args, parent, **extra)
        return self.commands[self.default].make_context(info_name, args, parent, **extra)


app = typer.Typer(cls=_DefaultGroup, help="Replay jobs on a machine's idle nodes.")


@app.command()
def replay(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="A log of idle intervals or of jobs; plain, gzip or zstd. (One that is called "
            "sweep is written ./sweep.)",
            show_default=False,
        ),
    ],
    *,
    jobs: Annotated[
        str,
        typer.Option(
            metavar="FILE|GENERATOR",
            help="What is to be trained: a workload file, or a generator such as "
            "hpo:count=200,max_nodes=16.",
            show_default=False,
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(metavar="NAME,...", help="Who decides; the first is held against the others."),
    ] = _DEFAULT_POLICIES,
    max_parallel: Annotated[
        int | None, typer.Option(min=1, help="Jobs in the system at once; the others wait.")
    ] = None,
    repeat: Annotated[
        bool, typer.Option("--repeat", help="The list of jobs starts again when it is exhausted.")
    ] = False,
    endless: Annotated[bool, typer.Option("--endless", help="No job ever finishes.")] = False,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"What is maximised: {', '.join(kind.value for kind in ObjectiveKind)}, or "
            f"weighted, which is samples by the jobs' weights; default: the configuration's.",
        ),
    ] = None,
    horizon: Annotated[
        str | None,
        typer.Option(
            metavar="adaptive|SECONDS",
            help="How far ahead decisions look; default: the configuration's.",
        ),
    ] = None,
    ledger: Annotated[
        LedgerKind,
        typer.Option(
            help="How time and costs are accounted. papers: as the papers' replayer does, which "
            "starts at the first submission unless --from is given."
        ),
    ] = LedgerKind.EXACT,
    models: Annotated[
        ModelIdentity, typer.Option(help="Whether it is known which jobs train the same model.")
    ] = ModelIdentity.UNKNOWN,
    seed: Annotated[int, typer.Option(min=0, help="What chance is drawn from.")] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="Replay with so many seeds, from --seed on.")
    ] = 1,
    from_s: Annotated[
        float | None,
        typer.Option("--from", min=0, help="Seconds of the trace at which to start."),
    ] = None,
    until_s: Annotated[
        float | None, typer.Option("--until", min=0, help="Seconds of the trace at which to end.")
    ] = None,
    world: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="What things cost and how they fail, such as cost_factor=5; repeatable.",
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, for programs: figures of each run.")
    ] = False,
    as_full_json: Annotated[
        bool,
        typer.Option("--json-full", help="The same, with each run's jobs, series and curves."),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a page with plots.", dir_okay=False),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="Write every decision, a line of JSON each; for one policy and one seed.",
            dir_okay=False,
        ),
    ] = None,
    format_: FormatOption = None,
    nodes: NodesOption = None,
    columns: ColumnsOption = None,
    processors_per_node: ProcessorsOption = None,
    time_zone: TimeZoneOption = None,
    warm_up_s: WarmUpOption = None,
    drain_s: DrainOption = None,
    outage_s: OutageOption = None,
) -> None:
    """Say what a machine's idle nodes would have trained, and how policies compare.

    Jobs run on a trace's idle nodes in virtual time, decided about by the controller's own code.
    Ctrl-C ends it early and keeps what there is. For many settings on all cores or a cluster:
    malletrain replay sweep --help.
    """
    if as_json and as_full_json:
        raise UsageError("--json-full is --json with more: give one of them")
    report, journal, config = (path and named_path(path) for path in (report, journal, config))
    with ends_by_interruption():
        from malletrain.replay.compare import Comparison

        check_outputs(
            {"--journal": journal, "--report": report},
            [named_path(trace), *([config] if config else []), *_files(jobs)],
        )
        options = trace_options(
            format_=format_,
            nodes=nodes,
            columns=columns,
            processors_per_node=processors_per_node,
            time_zone=time_zone,
            warm_up_s=warm_up_s,
            drain_s=drain_s,
            outage_s=outage_s,
        )
        request = _asked(
            {
                "max_parallel": max_parallel,
                "repeat": repeat,
                "endless": endless,
                "objective": objective,
                "horizon": _number_or_text(horizon),
                "ledger": ledger,
                "models": models,
                "from": from_s,
                "until": until_s,
                "world": pairs("--world", world or ()),
            },
            config,
        )
        comparison = Comparison(
            trace=_loaded(trace, options),
            workload=_workloads(jobs),
            policies=_policies(policy),
            seeds=range(seed, seed + seeds),
            request=request,
        )
        if journal and len(comparison.policies) * seeds > 1:
            raise UsageError("--journal is of one policy and one seed: give --policy NAME")
        comparison.check()
        write_report = _report_writer(report) if report else None
        result = _run(comparison, journal, is_quiet=as_json or as_full_json)
        _tell(result, as_json=as_json, as_full_json=as_full_json)
        if write_report and report:
            with writing(report) as draft:
                write_report(result, draft)
            typer.echo(f"report: {report}", err=as_json or as_full_json)
    if not result.is_complete:
        typer.echo(f"malletrain: {result.assumptions[0]}", err=True)
        raise typer.Exit(INTERRUPTED_STATUS)


def _asked(table: dict[str, Any], config: Path | None) -> Any:
    from malletrain.config import Config
    from malletrain.replay.request import asked

    return asked(table, Config.load(config).core, is_text=True)


def _number_or_text(text: str | None) -> float | str | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _files(jobs: str) -> list[Path]:
    """Return the workload's file, if it is one."""
    from malletrain.workloads.generate import from_text

    return [] if from_text(jobs) is not None else [named_path(jobs)]


def _loaded(path: Path, options: Any) -> Any:
    from malletrain.traces.load import load

    return load(named_path(path), options)


def _workloads(text: str) -> Callable[[int], Any]:
    from malletrain.replay.request import workload

    return cache(partial(workload, text))


def _policies(names: str) -> list[Policy]:
    from malletrain.sim.policies import policy

    listed = [name.strip() for name in names.split(",")]
    for name in listed:
        if listed.count(name) > 1:
            raise UsageError(f"--policy names {name} twice")
    return [policy(name) for name in listed]


def _report_writer(path: Path) -> Callable[[ReplayResult, Path], None]:
    """Find before the work begins what would keep its page from being written."""
    try:
        from malletrain.report.replay_page import write_replay_report
    except ModuleNotFoundError as error:
        raise UserError(
            f"the report needs {error.name}, which is not installed: "
            f"pip install 'malletrain[report]'"
        ) from error
    if not path.parent.is_dir():
        raise UsageError(f"--report {path}: there is no directory {path.parent}")
    return write_replay_report


def _run(comparison: Comparison, journal: Path | None, *, is_quiet: bool) -> ReplayResult:
    from malletrain.sim.engine import Interrupted

    with contextlib.ExitStack() as stack:
        file: BinaryIO | None = None
        if journal:
            draft = stack.enter_context(writing(journal))
            file = stack.enter_context(draft.open("wb"))
        show = stack.enter_context(progress_bar(is_quiet=is_quiet))
        is_interrupted = stack.enter_context(interruption_asked())

        def on_progress(progress: Progress) -> None:
            show(f"{progress.policy}, seed {progress.seed}", progress.share)
            if is_interrupted():
                raise Interrupted

        return comparison.run(on_progress, file)


def _tell(result: ReplayResult, *, as_json: bool, as_full_json: bool) -> None:
    if as_full_json:
        print_json(result)
    elif as_json:
        plain = msgspec.to_builtins(result)
        for run in plain["policies"]:
            for name in _LONG:
                del run[name]
        print_json(plain)
    else:
        from rich.console import Console

        from malletrain.report.replay_table import headline, table

        console = Console()
        console.print(headline(result), markup=False, highlight=False)
        console.print()
        console.print(table(result))
        rests_on = f"{len(result.assumptions)} things were assumed, mended or left out"
        console.print(f"{rests_on}: --report and --json list them.", highlight=False)


app.command()(sweep_command.sweep)
