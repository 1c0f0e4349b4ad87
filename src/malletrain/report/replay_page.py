"""Write what a replay found as one HTML file that needs nothing else."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from malletrain.report import quantities, replay_plots, replay_times
from malletrain.report.replay_data import USES, Outcome, classes, outcomes
from malletrain.report.replay_table import headline
from malletrain.report.template import environment
from malletrain.sim.results import CurveComparison, PolicyResult, ReplayResult

_MOST_CURVES = 12
_MOST_CLASSES = 20


@dataclass(frozen=True, slots=True)
class _Card:
    comparison: CurveComparison
    figure: str
    #: Of all numbers of nodes.
    mean_error: float
    inside: int


def write_replay_report(result: ReplayResult, output: Path) -> None:
    output.write_text(render(result), encoding="utf-8")


def render(result: ReplayResult) -> str:
    """Return the page. Policies, the first of which is the main one, may be none at all."""
    pages = environment()
    pages.filters |= {
        "count": quantities.count,
        "digits": quantities.three_digits,
        "duration": quantities.duration,
        "more": quantities.more,
        "node_time": quantities.node_time,
        "percent": quantities.percent,
    }
    lines = outcomes(result)
    return pages.get_template("replay.html").render(
        result=result,
        headline=headline(result),
        lines=lines,
        uses=USES,
        fragments_plot=replay_plots.fragments(result),
        **(_of_policies(lines) if lines else {}),
    )


def _of_policies(lines: tuple[Outcome, ...]) -> dict[str, object]:
    run = lines[0].first_run
    gathered = classes(run)
    return {
        "main": lines[0],
        "run": run,
        "has_makespans": any(line.makespan_s is not None for line in lines),
        "point_s": replay_times.point_s(run.series),
        "gains_plot": replay_plots.gains(lines),
        "nodes_plot": replay_times.nodes(run),
        "throughput_plot": replay_times.throughput(lines),
        "waterfalls_plot": replay_plots.waterfalls(lines),
        "completion_plot": replay_plots.completion(lines),
        "drawn_policies": replay_plots.MOST_POLICIES,
        "drawn_waterfalls": replay_plots.MOST_WATERFALLS,
        "classes": gathered[:_MOST_CLASSES],
        "other_classes": len(gathered) - _MOST_CLASSES,
        "cards": _cards(run),
    }


def _cards(run: PolicyResult) -> list[_Card]:
    """Draw the curves of the models that used most node-seconds."""
    used_node_s: defaultdict[str, float] = defaultdict(float)
    for job in run.jobs:
        used_node_s[job.curve] += job.used_node_s
    ordered = sorted(run.curves, key=lambda comparison: -used_node_s[comparison.model])
    return [_card(comparison, index) for index, comparison in enumerate(ordered[:_MOST_CURVES])]


def _card(comparison: CurveComparison, index: int) -> _Card:
    points = list(
        zip(
            comparison.true_samples_per_s,
            comparison.learned_samples_per_s,
            comparison.low_samples_per_s,
            comparison.high_samples_per_s,
            strict=True,
        )
    )
    errors = [abs(learned / true - 1) for true, learned, _, _ in points if true]
    return _Card(
        comparison=comparison,
        figure=replay_plots.curve(comparison, f"curve{index}"),
        mean_error=sum(errors) / len(errors) if errors else 0.0,
        inside=sum(low <= true <= high for true, _, low, high in points),
    )
