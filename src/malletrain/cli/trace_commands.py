"""Commands about traces, and the options by which a log is read wherever one is."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from malletrain.cli import words
from malletrain.cli.options import JsonOption, print_json, print_table
from malletrain.traces.files import named_path
from malletrain.traces.trace import TraceFormat, TraceOptions

if TYPE_CHECKING:
    from malletrain.traces.stats import TraceSummary

app = typer.Typer(help="Look at a machine's logs.", no_args_is_help=True)

TraceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A log of idle intervals or of jobs; plain, gzip or zstd.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    TraceFormat | None, typer.Option("--format", help="What the log is; else its first line tells.")
]
NodesOption = Annotated[
    int | None,
    typer.Option("--nodes", min=1, help="The machine's size, where the log names no nodes."),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAME,...",
        help="The columns of a log without a header line, such as JobID,Start,End,NodeList.",
    ),
]
ProcessorsOption = Annotated[
    int | None,
    typer.Option(
        "--processors-per-node", min=1, help="For SWF logs whose header does not tell it."
    ),
]
TimeZoneOption = Annotated[
    str | None,
    typer.Option(
        "--time-zone",
        metavar="ZONE",
        help="Where the log's clock was, such as Europe/Berlin or +01:00; else UTC is assumed.",
    ),
]
WarmUpOption = Annotated[
    float | None,
    typer.Option(
        "--warm-up-s",
        min=0,
        help="What to cut off from a job log's first start on; else by rule.",
    ),
]
DrainOption = Annotated[
    float | None,
    typer.Option(
        "--drain-s", min=0, help="What to cut off before a job log's last end; else by rule."
    ),
]
OutageOption = Annotated[
    float | None,
    typer.Option(
        "--outage-s",
        min=1,
        help="As long as this without any job is an outage, not idle time; else 6 hours.",
    ),
]


def trace_options(
    *,
    format_: TraceFormat | None,
    nodes: int | None,
    columns: str | None,
    processors_per_node: int | None,
    time_zone: str | None,
    warm_up_s: float | None,
    drain_s: float | None,
    outage_s: float | None,
) -> TraceOptions:
    names = (columns or "").split(",")
    return TraceOptions(
        format=format_,
        nodes=nodes,
        columns=tuple(name.strip() for name in names) if columns else (),
        processors_per_node=processors_per_node,
        time_zone=time_zone,
        warm_up_s=warm_up_s,
        drain_s=drain_s,
        outage_s=outage_s,
    )


@app.command()
def stats(
    file: TraceArgument,
    *,
    format_: FormatOption = None,
    nodes: NodesOption = None,
    columns: ColumnsOption = None,
    processors_per_node: ProcessorsOption = None,
    time_zone: TimeZoneOption = None,
    warm_up_s: WarmUpOption = None,
    drain_s: DrainOption = None,
    outage_s: OutageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how much of a machine is idle, in what pieces, and how it comes and goes."""
    from malletrain.traces.load import load  # numpy takes a while to load
    from malletrain.traces.stats import summary

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
    trace = load(named_path(file), options)
    found = summary(trace)
    if as_json:
        print_json({**msgspec.structs.asdict(found), "notes": trace.notes})
        return
    print_table(("FIGURE", "VALUE"), _rows(found), frozenset({"VALUE"}))
    for note in trace.notes:
        typer.echo(note, err=True)


def _rows(found: TraceSummary) -> list[tuple[str, str]]:
    from malletrain.traces.stats import size_at

    def sizes(of: tuple[tuple[int, int], ...]) -> str:
        return f"{size_at(of, 0.5):,} / {size_at(of, 1.0):,}"

    ages = zip(found.ages_s, found.share_leaving_by_age, strict=True)
    return [
        ("length", words.duration(found.length_s)),
        ("nodes that are ever idle", f"{found.nodes:,}"),
        ("idle node-hours", f"{found.idle_node_s / 3600:,.0f}"),
        ("share of the machine's time", _share(found.idle_share)),
        ("idle nodes, mean over time", f"{found.mean_idle_nodes:,.1f}"),
        ("idle nodes, median over time", f"{found.median_idle_nodes:,.0f}"),
        ("moments at which nodes join or leave", f"{found.events:,}"),
        ("time between two of them, median", words.duration(found.median_event_gap_s)),
        ("nodes that join at one, median / most", sizes(found.join_sizes)),
        ("nodes that leave at one, median / most", sizes(found.leave_sizes)),
        ("fragments (one node's idle intervals)", f"{found.intervals:,}"),
        ("fragment, median", words.duration(found.median_interval_s)),
        ("fragment, mean", words.duration(found.mean_interval_s)),
        ("fragment, 95th percentile", words.duration(found.p95_interval_s)),
        *_class_rows(found),
        *(
            (f"leaves within a minute, once idle for {words.duration(age_s)}", _share(share))
            for age_s, share in ages
        ),
    ]


def _class_rows(found: TraceSummary) -> list[tuple[str, str]]:
    """Return the duration classes: their shares of the fragments and of the idle time."""
    bounds = [words.duration(bound_s) for bound_s in found.duration_bounds_s]
    titles = [f"under {bounds[0]}"]
    titles += [f"{low} to {high}" for low, high in pairwise(bounds)]
    titles += [f"{bounds[-1]} or more"]
    shares = zip(titles, found.share_of_count, found.share_of_time, strict=True)
    return [
        (f"fragments of {title}: of all / of idle time", f"{_share(count)} / {_share(time)}")
        for title, count, time in shares
    ]


def _share(share: float | None) -> str:
    return words.NO_FIGURE if share is None else f"{share:.1%}"
