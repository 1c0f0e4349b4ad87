"""The interference report as plain text of 80 columns, to be pasted into a mail."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from datetime import datetime

from malletrain.impact.accounting import RESOLUTION_S
from malletrain.impact.impact import Impact, QueueImpact, Spread
from malletrain.impact.load import SchedulerLoad
from malletrain.impact.stays import Leave
from malletrain.impact.takings import Taking
from malletrain.report.quantities import duration, node_time, percent

_COLUMNS = 80
#: The rest is in the JSON.
_MOST_ROWS = 20


def text(impact: Impact) -> str:
    """Write the report: the verdict, then one paragraph a subject."""
    paragraphs = [
        verdict(impact),
        f"From {_moment(impact.from_at_s)} to {_moment(impact.to_at_s)}.",
        _harvest(impact),
        _taken(impact),
        _service(impact),
        _load(impact.load),
        *(f"Note: {note}." for note in impact.notes),
    ]
    parts = [_wrapped(paragraph) for paragraph in paragraphs]
    if impact.queue and impact.queue.takings:
        parts.insert(4, _table(impact.queue.takings))
    return "\n\n".join(parts) + "\n"


def verdict(impact: Impact) -> str:
    """Say in one sentence what the period meant for others."""
    load, unfit = impact.load, len(impact.unfit)
    lost_nodes = impact.leaves.get(Leave.LOST.value, 0)
    # Its host may have been down: an honest verdict does not pass it over.
    lost = f", {lost_nodes:,} lost without notice" if lost_nodes else ""
    period, used = duration(impact.to_at_s - impact.from_at_s), node_time(impact.harvested_node_s)
    parts = [
        f"In {period} MalleTrain used {used} of idle time",
        _taken_in_short(impact),
        f"{_count(unfit, 'node')} {_were(unfit)} drained or down while it had them{lost}",
        f"{_rate(load.queries_a_minute)} queries a minute" if load else "queries are not known",
    ]
    return "; ".join(parts) + "."


def _taken_in_short(impact: Impact) -> str:
    if impact.queue is not None:
        jobs = len(impact.queue.takings)
        waited = impact.queue.waited
        took = f"{_count(jobs, 'job')} took nodes back"
        rounded = f"up to {RESOLUTION_S:g} s more as accounting has whole seconds"
        return f"{took} and waited {_spread(waited)} ({rounded})" if waited else took
    asked = impact.leaves.get(Leave.ASKED.value, 0)
    took = f"{_count(asked, 'node')} {_were(asked)} asked back"
    return f"{took} and free within {_spread(impact.released)}" if impact.released else took


def _harvest(impact: Impact) -> str:
    node_s = impact.node_s
    parts = {
        "training": node_s.training + node_s.profiling,
        "starting, rescaling and leaving": node_s.rescaling,
        "training that a loss undid": node_s.preempted,
        "held by no job": node_s.idle,
    }
    shares = [f"{what} {percent(part / node_s.offered)}" for what, part in parts.items() if part]
    words = f"{_count(impact.pilots, 'pilot').capitalize()} gave {node_time(node_s.offered)}"
    words += f": {', '.join(shares)}" if shares else ""
    words += f". How nodes left: {_counts(impact.leaves)}."
    if impact.queue:
        words += f" {_pilots(impact.queue)}"
    return words


def _pilots(queue: QueueImpact) -> str:
    return (
        f"In the accounting pilots held {node_time(queue.pilot_node_s)} from their start to "
        f"their end. Final states: {_counts(queue.pilot_ends)}. At most "
        f"{_count(queue.most_waiting, 'pilot')} waited in the queue at once."
    )


def _taken(impact: Impact) -> str:
    asked = impact.leaves.get(Leave.ASKED.value, 0)
    words = f"{_count(asked, 'node').capitalize()} {_were(asked)} asked back by the batch system"
    words += f" and gone from us within {_spread(impact.released)}." if impact.released else "."
    if impact.queue is None:
        return words
    jobs = len(impact.queue.takings)
    words += f" {_count(jobs, 'main job').capitalize()} had waited and started on them next"
    if not jobs:
        return f"{words}."
    return (
        f"{words}. Waited: from the first ask for one of its nodes to its start. At most: from "
        f"when it was submitted and eligible; it may have waited for others too. The accounting "
        f"has whole seconds, rounded down: each may be up to {RESOLUTION_S:g} s longer."
    )


def _table(takings: tuple[Taking, ...]) -> str:
    longest = sorted(takings, key=lambda taking: taking.waited_s, reverse=True)
    rows = [f"{'job':<20} {'started':<19} {'our nodes':>9} {'waited':>12} {'at most':>12}"]
    rows += [
        f"{taking.job_id[:20]:<20} {_moment(taking.started_at_s)} {taking.nodes:>9,} "
        f"{duration(taking.waited_s):>12} {duration(taking.waited_at_most_s):>12}"
        for taking in longest[:_MOST_ROWS]
    ]
    if len(longest) > _MOST_ROWS:
        rows.append(f"and {len(longest) - _MOST_ROWS:,} that waited less (--json has all)")
    return textwrap.indent("\n".join(rows), "  ")


def _service(impact: Impact) -> str:
    if not impact.unfit:
        return (
            "No node was drained or down while MalleTrain had it, as far as its journal"
            f"{' and the accounting' if impact.queue else ''} can tell; what happened to a node "
            f"afterwards, `sinfo -R` tells."
        )
    nodes = [f"{unfit.host} at {_moment(unfit.at_s)} ({unfit.reason})" for unfit in impact.unfit]
    return (
        f"Drained or down while MalleTrain had them: {'; '.join(nodes)}. Whether it was the "
        f"cause cannot be told from here: `sinfo -R` has the reasons."
    )


def _load(load: SchedulerLoad | None) -> str:
    if load is None:
        return "There is no log of commands: what was sent to the scheduler is not known."
    programs = [
        f"{program.program} {_of_program(program.queries, program.orders, program.failed)}"
        for program in load.programs
    ]
    return (
        f"To the scheduler went {_count(load.queries, 'query', 'queries')} "
        f"({_rate(load.queries_a_minute)} a minute) and {_count(load.orders, 'order')} "
        f"({_rate(load.orders_a_minute)} a minute), {load.most_in_a_minute:,} in any minute at most"
        f"{': ' if programs else ''}{', '.join(programs)}."
        f"{f' Pings, to see whether it is there: {load.pings:,}.' if load.pings else ''}"
    )


def _of_program(queries: int, orders: int, failed: int) -> str:
    return f"{queries + orders:,}" + (f" ({failed:,} failed)" if failed else "")


def _spread(spread: Spread) -> str:
    return f"{duration(spread.median_s)} (median), {duration(spread.longest_s)} at most"


def _rate(number: float) -> str:
    return f"{number:.1f}" if number >= 0.095 or not number else f"{number:.2g}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{what} {number:,}" for what, number in counts.items()) or "none"


def _count(number: int, noun: str, plural: str = "") -> str:
    words = noun if number == 1 else plural or f"{noun}s"
    return f"{number:,} {words}" if number else f"no {noun}"


def _were(number: int) -> str:
    return "were" if number > 1 else "was"


def _moment(at_s: float) -> str:
    """Write a time as this machine's clock showed it."""
    return datetime.fromtimestamp(at_s).strftime("%Y-%m-%d %H:%M:%S")  # noqa: DTZ006


def _wrapped(paragraph: str) -> str:
    return textwrap.fill(paragraph, _COLUMNS, break_long_words=False, break_on_hyphens=False)
