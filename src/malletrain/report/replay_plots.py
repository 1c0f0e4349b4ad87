"""Draw the figures of a replay; each says nothing ("") where there is nothing to draw."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

from malletrain.report import quantities as say
from malletrain.report.figures import (
    COLOURS,
    INK,
    OTHERS_COLOUR,
    PLAIN_NUMBERS,
    WIDTH_IN,
    legend_above,
    short,
    small,
    svg,
)
from malletrain.report.replay_data import USES, Outcome, completion_s
from malletrain.sim.results import CurveComparison, ReplayResult

#: Policies that share a figure: as many as there are colours.
MOST_POLICIES = len(COLOURS)
MOST_WATERFALLS = 6
_TIME_TICKS = {
    1.0: "1 s",
    10.0: "10 s",
    60.0: "1 min",
    600.0: "10 min",
    3600.0: "1 h",
    6 * 3600.0: "6 h",
    86400.0: "1 day",
    3 * 86400.0: "3 days",
    7 * 86400.0: "1 week",
    28 * 86400.0: "4 weeks",
}
_USE_COLOURS = {
    "idle": OTHERS_COLOUR,
    "rescaling": "#e69f00",
    "preempted": "#d55e00",
    "profiling": "#cc79a7",
    "training": "#009e73",
}


def gains(outcomes: Sequence[Outcome]) -> str:
    """Draw how much more work the main policy does than each other, with intervals over seeds."""
    compared = [(outcome, g) for outcome in outcomes if (g := outcome.work_gain)]

    def build() -> Figure:
        figure = Figure(figsize=(WIDTH_IN, 0.8 + 0.34 * len(compared)), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color=INK, linewidth=1)
        for row, (_, gain) in enumerate(compared):
            if gain.low is not None and gain.high is not None:
                axes.plot([100 * gain.low, 100 * gain.high], [row, row], color=COLOURS[0])
            axes.plot(100 * gain.mean, row, "o", color=COLOURS[0])
        axes.set_yticks(range(len(compared)), [short(outcome.policy) for outcome, _ in compared])
        axes.set_ylim(len(compared) - 0.4, -0.6)
        axes.set_xlabel(f"{short(outcomes[0].policy)} does so much more work, %")
        return figure

    return svg(build, "gains") if compared else ""


def waterfalls(outcomes: Sequence[Outcome]) -> str:
    """Draw for each policy how the node-seconds offered come down to those of training."""
    drawn = [outcome for outcome in outcomes[:MOST_WATERFALLS] if outcome.node_s.offered]
    columns = {1: 1, 2: 2, 4: 2}.get(len(drawn), 3)

    def build() -> Figure:
        rows = math.ceil(len(drawn) / columns)
        figure = Figure(figsize=(WIDTH_IN, 2.9 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, outcome in itertools.zip_longest(panels.flat, drawn):
            if outcome is None:
                axes.remove()
            else:
                _draw_waterfall(axes, outcome)
        return figure

    return svg(build, "waterfalls") if drawn else ""


def _draw_waterfall(axes: Axes, outcome: Outcome) -> None:
    axes.bar(0, 100, color=INK, alpha=0.55)
    top = 100.0
    for column, (use, colour) in enumerate(_USE_COLOURS.items(), start=1):
        share = outcome.share(use)
        axes.bar(column, 100 * share, bottom=top - 100 * share, color=colour)
        axes.annotate(
            say.percent(share),
            (column, top),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
        top -= 100 * share
    labels = ["offered", *(USES[use][0] for use in _USE_COLOURS)]
    axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right", rotation_mode="anchor")
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, 112)
    axes.set_yticks((0, 25, 50, 75, 100))
    axes.set_title(short(outcome.policy), fontsize=10)
    axes.set_ylabel("% of node-seconds")
    axes.label_outer()


def completion(outcomes: Sequence[Outcome]) -> str:
    """Draw which share of the jobs that have an end had reached it so long after submission."""
    lines = [
        (outcome.policy, times_s, share)
        for outcome in outcomes[:MOST_POLICIES]
        for times_s, share in [_completion_times(outcome)]
        if times_s
    ]

    def build() -> Figure:
        figure = Figure(figsize=(WIDTH_IN, 3.3), layout="constrained")
        axes = figure.subplots()
        for (policy, times_s, finished), colour in zip(lines, COLOURS, strict=False):
            shares = np.linspace(0, 100, 200)
            quantiles = np.percentile(times_s, shares)
            axes.plot(
                quantiles, finished * shares, color=colour, linewidth=1.6, label=short(policy)
            )
        _set_time_ticks(axes, [time_s for _, times_s, _ in lines for time_s in times_s])
        axes.set_ylim(0, 102)
        axes.set_ylabel("% of the jobs")
        axes.set_xlabel("from submission to completion")
        legend_above(axes)
        return figure

    return svg(build, "completion") if lines else ""


def _completion_times(outcome: Outcome) -> tuple[list[float], float]:
    """Return the times of all seeds, and the share of the jobs with an end that reached it."""
    finite = [job for run in outcome.runs for job in run.jobs if job.work_samples is not None]
    times_s = [time_s for job in finite if (time_s := completion_s(job)) is not None]
    return times_s, len(times_s) / len(finite) if finite else 0.0


def _set_time_ticks(axes: Axes, times_s: Sequence[float]) -> None:
    low, high = max(min(times_s), 1.0) / 1.2, max(*times_s, 1.0) * 1.2
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = {at_s: name for at_s, name in _TIME_TICKS.items() if low <= at_s <= high}
    if not ticks:
        ticks = {at_s: say.duration(at_s) for at_s in (low, high)}
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.xaxis.set_minor_locator(NullLocator())


def fragments(result: ReplayResult) -> str:
    """Draw how long nodes stay idle, and how many come and go at one moment."""
    trace = result.trace

    def build() -> Figure:
        figure = Figure(figsize=(WIDTH_IN, 3.4), layout="constrained")
        durations, sizes = figure.subplots(1, 2)
        _draw_pairs(
            durations,
            _class_names(trace.duration_bounds_s),
            {
                "of the number of intervals": [100 * share for share in trace.share_of_count],
                "of the idle time": [100 * share for share in trace.share_of_time],
            },
        )
        durations.set_ylabel("%")
        durations.set_xlabel("a node stays idle for")
        joins, leaves = _by_powers(trace.join_sizes), _by_powers(trace.leave_sizes)
        powers = range(max([*joins, *leaves, 0]) + 1)
        _draw_pairs(
            sizes,
            [_power_name(power) for power in powers],
            {
                "become idle": [joins[power] for power in powers],
                "leave": [leaves[power] for power in powers],
            },
        )
        sizes.set_ylim(0.7, 2 * max([*joins.values(), *leaves.values(), 1]))
        sizes.set_yscale("log")
        sizes.yaxis.set_major_formatter(PLAIN_NUMBERS)
        sizes.yaxis.set_minor_formatter(NullFormatter())
        sizes.set_ylabel("moments")
        sizes.set_xlabel("nodes at one moment")
        return figure

    return svg(build, "fragments") if trace.intervals else ""


def _draw_pairs(axes: Axes, names: Sequence[str], bars: Mapping[str, Sequence[float]]) -> None:
    for (label, heights), colour, shift in zip(bars.items(), COLOURS, (-0.2, 0.2), strict=False):
        places = [place + shift for place in range(len(names))]
        axes.bar(places, heights, width=0.38, color=colour, label=label)
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")
    axes.grid(visible=False, axis="x")
    legend_above(axes)


def _class_names(bounds_s: Sequence[float]) -> list[str]:
    names = [_bound_name(bound_s) for bound_s in bounds_s]
    between = [f"{low} to {high}" for low, high in itertools.pairwise(names)]
    return [f"< {names[0]}", *between, f"≥ {names[-1]}"] if names else ["any"]


def _bound_name(bound_s: float) -> str:
    for unit_s, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if bound_s >= unit_s:
            return f"{say.three_digits(bound_s / unit_s)} {unit}"
    return f"{say.three_digits(bound_s)} s"


def _by_powers(sizes: Sequence[tuple[int, int]]) -> Counter[int]:
    """Count moments by the power of two that their number of nodes reaches."""
    counted: Counter[int] = Counter()
    for nodes_at_once, moments in sizes:
        counted[nodes_at_once.bit_length() - 1] += moments
    return counted


def _power_name(power: int) -> str:
    low, high = 2**power, 2 ** (power + 1) - 1
    return f"{low}" if low == high else f"{low} to {high}"


def curve(comparison: CurveComparison, name: str) -> str:
    """Draw what was believed of a model, with its 95% interval, beside how it truly scales."""

    def draw(axes: Axes) -> None:
        nodes_of, learned = comparison.nodes, comparison.learned_samples_per_s
        scale, word = say.scale_of(max(comparison.true_samples_per_s, default=0.0))
        low, high = (
            np.array(bounds) / scale
            for bounds in (comparison.low_samples_per_s, comparison.high_samples_per_s)
        )
        believed, true = np.array(learned) / scale, np.array(comparison.true_samples_per_s) / scale
        axes.fill_between(nodes_of, low, high, color=COLOURS[0], alpha=0.22, linewidth=0)
        axes.plot(nodes_of, believed, color=COLOURS[0], label="learned, 95% interval")
        axes.plot(nodes_of, true, color=INK, linestyle=":", label="true")
        measured = [n for n in comparison.measured_nodes if n <= max(nodes_of)]
        if measured:
            axes.scatter(
                measured,
                np.interp(measured, nodes_of, believed),
                color=COLOURS[0],
                edgecolor=INK,
                zorder=3,
                label="measured here",
            )
        axes.set_xlabel("nodes")
        axes.set_ylabel(f"{word} samples/s".strip())
        # An interval of a scale never tried may be as wide as the prior's: it may leave the figure.
        axes.set_ylim(0, 1.25 * max(*believed, *true, 1e-9))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PLAIN_NUMBERS)
        axes.legend(loc="best", fontsize=9)

    return small(draw, name) if comparison.nodes else ""
