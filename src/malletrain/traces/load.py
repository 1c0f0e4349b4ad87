"""Load a log of any known format as the trace of a machine's idle nodes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from malletrain.errors import TraceError, UsageError
from malletrain.traces import intervals, sacct_json, swf, table
from malletrain.traces.clock import Clock
from malletrain.traces.derive import derive
from malletrain.traces.files import Lines, open_lines, without_cut_line
from malletrain.traces.intervals import IdleInterval
from malletrain.traces.jobs import MOST_NODES, MOST_S, JobLog
from malletrain.traces.tally import Tally
from malletrain.traces.trace import Trace, TraceFormat, TraceOptions

#: What may be said of a log beside its format.
_JOB_LOG = {"nodes", "warm_up_s", "drain_s", "outage_s"}
_APPLICABLE = {
    TraceFormat.IDLE: {"nodes"},
    TraceFormat.SWF: {*_JOB_LOG, "processors_per_node"},
    TraceFormat.SACCT: {*_JOB_LOG, "columns", "time_zone"},
    TraceFormat.SACCT_JSON: _JOB_LOG,
    TraceFormat.CSV: {*_JOB_LOG, "columns", "time_zone"},
}
_EXPECTED = (
    "it is none of the logs known: idle intervals (a first line node,idle_from_s,idle_to_s), "
    "SWF (18 numbers a line, comments begin with ;), sacct -P (a first line with JobID|...; "
    "without it name the --columns), sacct --json, or CSV (a first line with job_id,...); "
    "--format says which it is meant to be"
)


def load(path: Path, options: TraceOptions) -> Trace:
    """Return the trace of a log.

    Raises:
        TraceError: a line of it is wrong, or no node is ever idle.
        UsageError: an option cannot apply to it.
    """
    tally = Tally()
    with open_lines(path) as lines:
        format_ = options.format or _format(lines, options)
        _check(options, format_)
        if format_ is TraceFormat.IDLE:
            trace = _idle_log(lines, options, tally)
        else:
            log = _job_log(lines, format_, options, tally)
            try:
                trace = derive(log, lines.source, options, tally)
            except TraceError as error:
                raise TraceError(f"{lines.source}: {error}") from error
    if not trace.intervals:
        notes = f" ({'; '.join(trace.notes)})" if trace.notes else ""
        raise TraceError(
            f"{path.name}: no node is ever idle in it, so there is nothing to gain{notes}"
        )
    return trace


def _format(lines: Lines, options: TraceOptions) -> TraceFormat:
    first = lines.first()
    if first.startswith("{"):
        return TraceFormat.SACCT_JSON
    if first.startswith(";") or swf.is_job(first):
        return TraceFormat.SWF
    if "idle_from_s" in first:
        return TraceFormat.IDLE
    for delimiter, format_ in (("|", TraceFormat.SACCT), (",", TraceFormat.CSV)):
        if delimiter in first and (options.columns or table.is_header(first, delimiter)):
            return format_
    raise TraceError(f"{lines.source}, line 1: {_EXPECTED if first else 'it is empty'}")


def _check(options: TraceOptions, format_: TraceFormat) -> None:
    for name in options.__struct_fields__:
        value = getattr(options, name)
        if name == "format" or value is None or value == ():
            continue
        option = f"--{name.replace('_', '-')}"
        if name not in _APPLICABLE[format_]:
            raise UsageError(f"{option} cannot apply to a log of the format {format_.value}")
        if isinstance(value, int | float):
            least, most = _bounds(name)
            if not least <= value <= most:
                shown = str(value)[:20]
                raise UsageError(f"{option} is {shown}: it must be from {least} to {most:.12g}")


def _bounds(name: str) -> tuple[int, float]:
    """Return the least and the most that an option may be."""
    if name in ("nodes", "processors_per_node"):
        return 1, MOST_NODES
    return (1 if name == "outage_s" else 0), MOST_S


def _job_log(lines: Lines, format_: TraceFormat, options: TraceOptions, tally: Tally) -> JobLog:
    if format_ is TraceFormat.SWF:
        return swf.read(lines, options.processors_per_node, tally)
    if format_ is TraceFormat.SACCT_JSON:
        return sacct_json.read(lines, tally)
    clock = Clock(options.time_zone, tally)
    read = table.read_sacct if format_ is TraceFormat.SACCT else table.read_csv
    log = read(lines, options.columns, clock, tally)
    clock.close()
    return log


def _idle_log(lines: Lines, options: TraceOptions, tally: Tally) -> Trace:
    read = without_cut_line(intervals.read(lines, lines.source), lines, tally)
    joined = _joined(read, tally)
    num_nodes = len({interval.node for interval in joined})
    if options.nodes is not None and options.nodes < num_nodes:
        raise UsageError(f"--nodes is {options.nodes}, and the log has {num_nodes} nodes")
    return Trace(
        source=lines.source,
        origin_epoch_s=None,
        length_s=max((interval.to_s for interval in joined), default=0.0),
        num_machine_nodes=options.nodes,
        intervals=joined,
        notes=tally.notes(),
    )


def _joined(in_order: Iterable[IdleInterval], tally: Tally) -> tuple[IdleInterval, ...]:
    """Make one interval of those of a node of which each begins as the one before ends."""
    done: list[IdleInterval] = []
    last_of: dict[str, IdleInterval] = {}
    for interval in in_order:
        last = last_of.get(interval.node)
        if last is not None and last.to_s == interval.from_s:
            tally.add("intervals that begin as the node's one before ends, joined to it")
            last_of[interval.node] = replace(last, to_s=interval.to_s, end=interval.end)
            continue
        if last is not None:
            done.append(last)
        last_of[interval.node] = interval
    done.extend(last_of.values())
    done.sort(key=lambda interval: (interval.from_s, interval.node))
    return tuple(done)
