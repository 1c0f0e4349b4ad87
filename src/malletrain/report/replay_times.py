"""Draw a replay over time: nodes and samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from malletrain.report import quantities as say
from malletrain.report.figures import (
    COLOURS,
    INK,
    OTHERS_COLOUR,
    PLAIN_NUMBERS,
    WIDTH_IN,
    legend_above,
    short,
    svg,
)
from malletrain.report.replay_data import Outcome
from malletrain.sim.results import PolicyResult, Series

#: Points of a line: more would be finer than what a screen shows.
_MOST_POINTS = 400
_TIME_UNITS = (
    (3 * 86400.0, 86400.0, "days"),
    (3 * 3600.0, 3600.0, "hours"),
    (0.0, 60.0, "minutes"),
)


def nodes(run: PolicyResult) -> str:
    """Draw the idle nodes and those used, and below them those used by class of jobs."""
    series = run.series
    by_class = _most_used(series.nodes_by_class, COLOURS)

    def draw(above: Axes, below: Axes) -> None:
        times = _times(series)
        offered = _steps(series.offered_nodes)
        used = sum((_steps(held) for held in series.nodes_by_class.values()), 0.0 * offered)
        above.fill_between(
            times, used, step="post", color=COLOURS[0], alpha=0.45, linewidth=0, label="used"
        )
        above.step(times, offered, where="post", color=INK, linewidth=1.1, label="idle nodes")
        above.set_ylabel("nodes")
        if by_class:
            below.stackplot(
                times,
                *(_steps(held) for held, _ in by_class.values()),
                colors=[colour for _, colour in by_class.values()],
                labels=list(by_class),
                step="post",
                linewidth=0,
            )
        below.set_ylabel("nodes used")

    return _over_time(draw, series, "nodes") if series.offered_nodes else ""


def _most_used(
    by_class: Mapping[str, Sequence[float]], colours: Sequence[str]
) -> dict[str, tuple[Sequence[float], str]]:
    """Keep a class for each colour, the most used first; sum up the others."""
    ordered = sorted(by_class, key=lambda name: -sum(by_class[name]))
    named, others = ordered[: len(colours)], ordered[len(colours) :]
    kept: dict[str, tuple[Sequence[float], str]] = {
        short(name): (by_class[name], colour) for name, colour in zip(named, colours, strict=False)
    }
    if others:
        total = np.sum([by_class[name] for name in others], axis=0)
        kept[f"{len(others)} other classes"] = (total, OTHERS_COLOUR)
    return kept


def throughput(outcomes: Sequence[Outcome]) -> str:
    """Draw samples/s of the main policy, and below them the samples of all, summed up."""
    drawn = [outcome.first_run for outcome in outcomes[: len(COLOURS)]]
    series = drawn[0].series

    def draw(above: Axes, below: Axes) -> None:
        done, kept = _steps(series.samples_per_s), _steps(series.goodput_samples_per_s)
        scale, word = say.scale_of(max(done))
        above.fill_between(
            _times(series),
            kept / scale,
            step="post",
            color=COLOURS[0],
            alpha=0.45,
            linewidth=0,
            label="goodput: samples that were kept",
        )
        above.step(
            _times(series),
            done / scale,
            where="post",
            color=INK,
            linewidth=0.7,
            label="throughput",
        )
        above.set_ylabel(f"{word} samples/s".strip())
        _draw_sums(below, drawn)

    return _over_time(draw, series, "throughput") if series.samples_per_s else ""


def _draw_sums(axes: Axes, runs: Sequence[PolicyResult]) -> None:
    sums = [_sums(run.series) for run in runs]
    scale, word = say.scale_of(max(float(total[-1]) for total in sums))
    for run, total, colour in zip(runs, sums, COLOURS, strict=False):
        label = short(run.policy)
        axes.plot(_times(run.series), total / scale, color=colour, linewidth=1.6, label=label)
    axes.set_ylabel(f"{word} samples kept".strip())


def _sums(series: Series) -> NDArray[np.float64]:
    """Return the samples kept until each of `_times`."""
    group_s = series.bin_s * _group(len(series.goodput_samples_per_s))
    rates = _steps(series.goodput_samples_per_s)[:-1]
    spans_s = np.minimum(group_s, _end_s(series) - series.start_s - group_s * np.arange(len(rates)))
    return np.concatenate(([0.0], np.cumsum(rates * spans_s)))


def _over_time(draw: Callable[[Axes, Axes], None], series: Series, name: str) -> str:
    _, unit_s, unit = _time_unit(_end_s(series))

    def build() -> Figure:
        figure = Figure(figsize=(WIDTH_IN, 5.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        draw(above, below)
        for axes in (above, below):
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(PLAIN_NUMBERS)
            legend_above(axes)
        below.set_xlim(series.start_s / unit_s, _end_s(series) / unit_s)
        below.set_xlabel(f"{unit} since the start of the trace")
        return figure

    return svg(build, name)


def _end_s(series: Series) -> float:
    return series.start_s + series.bin_s * len(series.offered_nodes)


def _time_unit(length_s: float) -> tuple[float, float, str]:
    return next(unit for unit in _TIME_UNITS if length_s >= unit[0])


def point_s(series: Series) -> float:
    """Return the time that one point of a figure over time is the mean of."""
    return series.bin_s * _group(len(series.offered_nodes))


def _group(bins: int) -> int:
    return max(math.ceil(bins / _MOST_POINTS), 1)


def _times(series: Series) -> NDArray[np.float64]:
    """Return where the points start, and where the last one ends, in the unit of the axis."""
    _, unit_s, _ = _time_unit(_end_s(series))
    bins = len(series.offered_nodes)
    starts = series.start_s + series.bin_s * np.arange(0, bins, _group(bins))
    return np.append(starts, _end_s(series)) / unit_s


def _steps(values: Sequence[float]) -> NDArray[np.float64]:
    """Return the means over groups of bins; the last one holds until the end."""
    group = _group(len(values))
    means = [np.mean(values[start : start + group]) for start in range(0, len(values), group)]
    return np.array([*means, means[-1]])
