"""A replay in the terminal: the policies beside each other, and what they mean in plain words."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from malletrain.report import quantities as say
from malletrain.report.replay_data import Outcome, outcomes
from malletrain.sim.results import ReplayResult

_USE_HEADINGS = {
    "training": "train",
    "rescaling": "resc",
    "profiling": "prof",
    "preempted": "lost",
    "idle": "idle",
}
_CAPTION = (
    "work: dedicated nodes, each training one job alone, that would have done the same; it counts "
    "samples of different models alike. first gains: work of the first policy over this one's, in "
    "%, with the 95% interval over seeds. done: jobs finished, of all that came in. train, "
    "resc(ale), prof(ile), lost (to preemption), idle: % of the node-seconds offered."
)
_SPAN_CAPTION = " span: from the first submission to the last completion."


def headline(result: ReplayResult) -> str:
    """Say what the machine left idle, and what its first policy would have made of that."""
    sentences = [_idle(result)]
    if result.policies:
        main = outcomes(result)[0]
        sentences += [_trained(main), _felt(main)]
    elif result.trace.idle_node_s:
        sentences.append("No policy was replayed.")
    return " ".join(sentence for sentence in sentences if sentence)


def _idle(result: ReplayResult) -> str:
    trace = result.trace
    if not trace.idle_node_s:
        return f"Your machine had no idle node in {say.duration(trace.length_s)}."
    share = "" if trace.idle_share is None else f" ({say.percent(trace.idle_share)} of its time)"
    return (
        f"Your machine had {say.node_time(trace.idle_node_s)} idle in "
        f"{say.duration(trace.length_s)}{share}."
    )


def _trained(main: Outcome) -> str:
    name = "MalleTrain" if main.policy == "malletrain" else f"The policy {main.policy}"
    seeds = f" (mean of {len(main.runs)} seeds)" if len(main.runs) > 1 else ""
    return (
        f"{name} would have trained in {say.node_time(main.kept_node_s)} of these{seeds}: "
        f"{say.count(round(main.finished))} of {say.count(round(main.jobs))} jobs finished, "
        f"the work of {say.three_digits(main.dedicated_nodes)} dedicated nodes, "
        f"{say.count(main.samples)} samples."
    )


def _felt(main: Outcome) -> str:
    if main.mean_overtime_s is None:
        return "The main scheduler took no node back."
    if not main.longest_overtime_s:
        return "No node was held after the main scheduler had asked for it."
    return (
        f"The nodes that the main scheduler took back were held for "
        f"{say.duration(main.mean_overtime_s)} on average after it had asked for them, "
        f"{say.duration(main.longest_overtime_s)} at most."
    )


def table(result: ReplayResult) -> Table:
    """Put the policies beside each other: means over seeds, and gains paired by seed."""
    lines = outcomes(result)
    has_makespans = any(line.makespan_s is not None for line in lines)
    drawn = Table(
        box=None,
        pad_edge=False,
        collapse_padding=True,
        header_style="bold",
        caption=_CAPTION + (_SPAN_CAPTION if has_makespans else ""),
        caption_justify="left",
        caption_style="dim",
    )
    scale, word = say.scale_of(max((line.samples for line in lines), default=0.0))
    drawn.add_column("policy", min_width=8, overflow="fold")
    for heading in (
        "work\nnodes",
        "first\ngains",
        "",
        f"samples\n{word}",
        "done",
        *(["span\nhours"] if has_makespans else []),
        *_USE_HEADINGS.values(),
    ):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        drawn.add_row(*(Text(cell) for cell in _cells(line, scale, has_makespans=has_makespans)))
    return drawn


def _cells(line: Outcome, scale: float, *, has_makespans: bool) -> list[str]:
    gain, interval = say.more_in_parts(line.work_gain)
    span_s = line.makespan_s
    span = say.NO_FIGURE if span_s is None else say.three_digits(span_s / 3600)
    return [
        line.policy,
        say.three_digits(line.dedicated_nodes),
        gain.rstrip("%"),
        interval,
        say.three_digits(line.samples / scale),
        f"{round(line.finished)}/{round(line.jobs)}",
        *([span] if has_makespans else []),
        *(say.percent(line.share(use)).rstrip("%") for use in _USE_HEADINGS),
    ]
