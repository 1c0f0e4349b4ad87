"""Write `report.html`: one file that needs nothing else, readable on a laptop and on a phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from malletrain.live.store import read_history
from malletrain.report import plots
from malletrain.report.data import Comparison, RunReport, gather
from malletrain.report.template import environment


def write_report(
    journal: Path,
    output: Path,
    comparisons: Mapping[str, Comparison] | None = None,
    *,
    assumptions: Sequence[str] = (),
) -> RunReport:
    """Write the report of a journal, and return what it tells.

    `comparisons` are by job name; `assumptions` are plain sentences, such as what was emulated.

    Raises:
        JournalError: there is no journal, or it is damaged or of another version.
    """
    history = read_history(journal)
    run = gather(history.events, comparisons, history.snapshot)
    output.write_text(render(run, assumptions), encoding="utf-8")
    return run


def render(run: RunReport, assumptions: Sequence[str] = ()) -> str:
    """Return the page."""
    pages = environment()
    pages.filters |= {"clock": clock, "loss": _loss}
    colours = plots.colours(run)
    return pages.get_template("page.html").render(
        run=run,
        assumptions=assumptions,
        has_twins=any(report.comparison for report in run.jobs),
        nodes_plot=plots.nodes_over_time(run),
        cards=[
            (
                report,
                plots.curve(report, colours[report.job.spec.id], f"curve{index}"),
                plots.losses(report, colours[report.job.spec.id], f"loss{index}"),
            )
            for index, report in enumerate(run.jobs)
        ],
    )


def clock(seconds: float) -> str:
    """Write a time since the start: 3:07, or 1:02:03."""
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest_s:02}" if hours else f"{minutes}:{rest_s:02}"


def _loss(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{value:.5f}"
