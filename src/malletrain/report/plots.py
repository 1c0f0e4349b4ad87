"""Draw the figures of a run."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    EngFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    StrMethodFormatter,
)

from malletrain.report.data import JobReport, LossPoints, MarkKind, RunReport
from malletrain.report.figures import (
    COLOURS,
    INK,
    OTHERS_COLOUR,
    WIDTH_IN,
    legend_above,
    small,
    svg,
)

_MARKS = {
    MarkKind.JOINED: ("^", "#009e73"),
    MarkKind.LEAVING: ("v", "#e69f00"),
    MarkKind.KILLED: ("X", "#d55e00"),
}


def colours(run: RunReport) -> dict[str, str]:
    """Give the jobs that used most node-seconds a colour each, by job id."""
    by_use = sorted(run.jobs, key=lambda report: -report.ledger.node_s.offered)
    named = {report.job.spec.id for report in by_use[: len(COLOURS)]}
    ids = [report.job.spec.id for report in run.jobs]
    free = iter(COLOURS)
    return {job_id: next(free) if job_id in named else OTHERS_COLOUR for job_id in ids}


def nodes_over_time(run: RunReport) -> str:
    """Draw nodes training by job under the nodes offered, with what happened to nodes below."""

    def draw(axes: Axes, below: Axes) -> None:
        times = [usage.at_s for usage in run.usage] + [run.elapsed_s]
        colour_of = colours(run)
        named = [r for r in run.jobs if colour_of[r.job.spec.id] != OTHERS_COLOUR]
        layers = [(r.job.spec.name, [r.job.spec.id], colour_of[r.job.spec.id]) for r in named]
        others = [job_id for job_id, colour in colour_of.items() if colour == OTHERS_COLOUR]
        if others:
            layers.append((f"{len(others)} other jobs", others, OTHERS_COLOUR))
        stacks = [
            _steps([sum(u.training.get(j, 0) for j in ids) for u in run.usage])
            for _, ids, _ in layers
        ]
        if stacks:
            axes.stackplot(
                times,
                *stacks,
                labels=[label for label, _, _ in layers],
                colors=[colour for _, _, colour in layers],
                step="post",
                linewidth=0,
            )
        offered = _steps([usage.offered for usage in run.usage])
        axes.step(times, offered, where="post", color=INK, linewidth=1.4, label="offered")
        for start_s, end_s in run.idle_spans:
            axes.axvspan(start_s, end_s, color="#d55e00", alpha=0.18, linewidth=0)
            axes.annotate(
                "no node",
                ((start_s + end_s) / 2, max(offered) * 0.5),
                rotation=90,
                ha="center",
                va="center",
            )
        axes.set_ylabel("nodes")
        axes.set_ylim(0, max([*offered, 1]) * 1.04)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        legend_above(axes)
        _draw_marks(below, run)

    def build() -> Figure:
        figure = Figure(figsize=(WIDTH_IN, 4.4), layout="constrained")
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
        draw(axes, below)
        below.set_xlim(0, max(run.elapsed_s, 1.0))
        return figure

    return svg(build, "nodes")


def _draw_marks(axes: Axes, run: RunReport) -> None:
    for row, (kind, (marker, colour)) in enumerate(reversed(_MARKS.items())):
        marks = [mark for mark in run.marks if mark.kind is kind]
        axes.scatter(
            [mark.at_s for mark in marks],
            [row] * len(marks),
            s=[18 + 14 * mark.nodes for mark in marks],
            marker=marker,
            color=colour,
            linewidth=0,
        )
    axes.set_yticks(range(len(_MARKS)), [kind.value for kind in reversed(_MARKS)])
    axes.set_ylim(-0.7, len(_MARKS) - 0.3)
    axes.set_xlabel("seconds since the start; the larger a mark, the more nodes at once")


def curve(report: JobReport, colour: str, name: str) -> str:
    """Draw the learned curve with its 95% interval, the points measured, and the stated one.

    "" where there is nothing to draw.
    """
    stated = report.comparison.stated_rates if report.comparison else ()
    if not (report.curve.measured or stated):
        return ""

    def draw(axes: Axes) -> None:
        learned = report.curve
        nodes = range(1, len(learned.rates))
        if learned.measured:
            axes.fill_between(
                nodes, learned.low[1:], learned.high[1:], color=colour, alpha=0.22, linewidth=0
            )
            axes.plot(nodes, learned.rates[1:], color=colour, label="learned, 95% interval")
        if stated:
            axes.plot(
                range(1, len(stated)),
                stated[1:],
                color=INK,
                linestyle=":",
                label="the emulated device's",
            )
        axes.scatter(
            [o.nodes for o in learned.measured],
            [o.samples_per_s for o in learned.measured],
            color=colour,
            edgecolor=INK,
            zorder=3,
            label="measured",
        )
        axes.set_xlabel("nodes")
        axes.set_ylabel("samples/s")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(axes)

    return small(draw, name)


def losses(report: JobReport, colour: str, name: str) -> str:
    """Draw the loss against samples, beside the undisturbed twin's; "" where there is none."""
    twin = report.comparison.twin_losses if report.comparison else ()
    if not (twin or report.losses):
        return ""

    def draw(axes: Axes) -> None:
        if twin:
            axes.plot(*_columns(twin), color=INK, linewidth=3.5, alpha=0.3, label="undisturbed")
        if report.losses:
            axes.plot(*_columns(report.losses), color=colour, linewidth=1.2, label="malleable")
        axes.set_xlabel("samples")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_ylabel("loss")
        if all(loss > 0 for _, loss in (*twin, *report.losses)):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        _legend(axes)

    return small(draw, name)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize=9)


def _columns(points: LossPoints) -> tuple[list[float], list[float]]:
    ordered = sorted(points)
    return [samples for samples, _ in ordered], [loss for _, loss in ordered]


def _steps(values: Sequence[int]) -> list[int]:
    """Hold the last value until the end."""
    return [*values, *values[-1:]] or [0]
