"""The live view: a cluster as one screen of text, whatever the cluster's and the screen's size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

from malletrain.cli import words
from malletrain.live.views import ClusterView, JobView, NodeView

_JOB_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta")
_STATUS_STYLES = {
    "training": "green",
    "profiling": "green",
    "starting": "yellow",
    "rescaling": "yellow",
    "recovering": "bold yellow",
    "stopping": "yellow",
    "failed": "bold red",
    "waiting": "dim",
    "suspended": "dim",
    "finished": "dim green",
    "cancelled": "dim",
}
_LEVELS = "▁▂▃▄▅▆▇█"
_LABEL_CELLS = 9
_POPULATIONS = ("running", "waiting", "suspended", "over")


@dataclass(frozen=True, slots=True)
class Usage:
    """Nodes at one moment, a point of the sparkline."""

    used_nodes: int
    offered_nodes: int


def usage(view: ClusterView) -> Usage:
    return Usage(sum(node.job_id is not None for node in view.nodes), len(view.nodes))


def cluster_screen(
    view: ClusterView, width: int, height: int, history: Sequence[Usage] = ()
) -> RenderableType:
    """Draw the cluster within `width` by `height` cells.

    What does not fit is said in numbers: nodes by group, jobs as "… and N more".
    """
    colours = _colours(view.jobs)
    top = [
        _header(view, width),
        *_trouble(view),
        *_sparklines(history, width),
        *_ledger(view, width),
        Text(),
    ]
    bottom = [*_decision(view, width, 4 if height >= 40 else 2), *_notes(view), *_counters(view)]
    room = max(height - len(top) - len(bottom) - 2, 4)
    nodes = _nodes(view, width, max(room // 3, room - len(view.jobs) - 1, 2), colours)
    jobs = _jobs(view.jobs, width, max(room - len(nodes), 2), colours)
    lines = [*top, *jobs, Text(), *nodes, Text(), *bottom]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines[:height])


def _header(view: ClusterView, width: int) -> Text:
    leaving = sum(node.state == "leaving" for node in view.nodes)
    nodes = f"{usage(view).used_nodes:,}/{words.count(len(view.nodes), 'node')} used"
    if leaving:
        nodes += f", {leaving:,} leaving"
    if view.pilots_waiting:
        nodes += f", {view.pilots_waiting:,} in the queue"
    populations = Counter(_population(job) for job in view.jobs)
    listed = [f"{populations[word]:,} {word}" for word in _POPULATIONS if populations[word]]
    jobs = f"jobs: {', '.join(listed) or 'none'}"
    line = "  ".join([nodes, f"{words.compact(view.samples_per_s)} samples/s", jobs])
    title = "MalleTrain  " if width >= len(line) + 12 else ""
    return Text.assemble((title, "bold"), line)


def _trouble(view: ClusterView) -> list[Text]:
    if not view.trouble:
        return []
    return [Text(f"{'trouble':<{_LABEL_CELLS}}{words.headline(view.trouble)}", style="bold red")]


def _population(job: JobView) -> str:
    if job.activity == "over":
        return "over"
    return words.status(job) if job.activity == "waiting" else "running"


def _sparklines(history: Sequence[Usage], width: int) -> list[Text]:
    if not history:
        return []
    shown = history[-max(width - _LABEL_CELLS - 8, 1) :]
    most = max(point.offered_nodes for point in shown)
    return [
        Text.assemble(
            (f"{label:<{_LABEL_CELLS}}", "dim"),
            (sparkline(values, most), style),
            f" {values[-1]:,}",
        )
        for label, style, values in (
            ("offered", "dim", [point.offered_nodes for point in shown]),
            ("used", "green", [point.used_nodes for point in shown]),
        )
    ]


def sparkline(values: Iterable[float], most: float) -> str:
    """Draw one character a value on a scale from 0 to `most`; 0 is a dot."""
    return "".join(
        _LEVELS[min(int(value / most * len(_LEVELS)), len(_LEVELS) - 1)] if value > 0 else "·"
        for value in values
    )


def _ledger(view: ClusterView, width: int) -> list[Text]:
    spent = view.node_s
    categories = {
        "training": spent.training,
        "rescaling": spent.rescaling,
        "profiling": spent.profiling,
        "preempted": spent.preempted,
        "idle": spent.idle,
    }
    shares = {name: value / (spent.offered or 1.0) for name, value in categories.items()}
    long = [f"{name} {words.compact(categories[name])} ({shares[name]:.1%})" for name in categories]
    short = [f"{name} {shares[name]:.0%}" for name in categories]
    total = f"{words.compact(spent.offered)}: "
    fits = _LABEL_CELLS + len(total) + len("  ".join(long)) <= width
    line = total + "  ".join(long if fits else short)
    return [Text.assemble((f"{'node-s':<{_LABEL_CELLS}}", "dim"), line)]


def _decision(view: ClusterView, width: int, most_lines: int) -> list[Text]:
    label = f"{'decision':<{_LABEL_CELLS}}"
    if view.decision is None:
        return [Text.assemble((label, "dim"), "none yet")]
    reason = Text(
        f"{words.ago(view.now_s - view.decision.at_s)}: {words.headline(view.decision.reason)}"
    )
    lines = _wrapped(reason, width - _LABEL_CELLS, most_lines)
    labels = [label, *[" " * _LABEL_CELLS] * most_lines]
    return [Text.assemble((label, "dim"), line) for label, line in zip(labels, lines, strict=False)]


def _wrapped(text: Text, width: int, most_lines: int) -> list[Text]:
    lines = list(text.wrap(Console(width=width), width))
    if len(lines) > most_lines:
        rest = Text(" ").join(lines[most_lines - 1 :])
        rest.truncate(width, overflow="ellipsis")
        lines = [*lines[: most_lines - 1], rest]
    return lines


def _notes(view: ClusterView) -> list[Text]:
    """Return the note of the job that most needs its user, if any has one."""
    noted = [job for job in view.jobs if job.note]
    if not noted:
        return []
    job = max(noted, key=lambda job: (job.phase == "failed", job.activity != "over"))
    others = f"  (and {words.count(len(noted) - 1, 'more note')})" if len(noted) > 1 else ""
    return [
        Text.assemble(
            (f"{'note':<{_LABEL_CELLS}}", "dim"), f"{job.name}: {words.headline(job.note)}{others}"
        )
    ]


def _counters(view: ClusterView) -> list[Text]:
    label = (f"{'ports':<{_LABEL_CELLS}}", "dim")
    bad = {name: count for name, count in sorted(view.counters.items()) if count}
    if not bad:
        return []
    listed = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in bad.items())
    return [Text.assemble(label, (listed, "yellow"))]


# -- jobs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    cells: int
    is_right: bool
    #: Shown on screens at least this wide.
    from_width: int
    value: Callable[[JobView], str]


_COLUMNS = (
    _Column("status", 10, False, 0, words.status),
    _Column("nodes", 7, True, 0, words.node_counts),
    _Column("min-max", 9, True, 90, lambda job: f"{job.min_nodes}-{job.max_nodes}"),
    _Column("samples/s", 9, True, 0, words.rate),
    _Column("done", 16, True, 0, words.progress),
    _Column("loss", 8, True, 0, lambda job: words.loss(job.loss)),
    _Column("+/-/lost", 8, True, 0, words.rescales),
    _Column("stall", 7, True, 100, lambda job: words.duration(job.stall_s)),
    _Column("node-s", 7, True, 120, lambda job: words.compact(job.node_s.offered)),
    _Column("measured at", 14, False, 140, lambda job: ",".join(map(str, job.measured_at)) or "-"),
    _Column("note", 30, False, 190, lambda job: words.headline(job.note)),
)


def _jobs(
    jobs: Sequence[JobView], width: int, most_lines: int, colours: dict[str, str]
) -> list[Text]:
    columns = [column for column in _COLUMNS if width >= column.from_width]
    gap = Text("  " if width >= 100 else " ")
    name_cells = _name_cells(jobs, columns, width, gap.cell_len)
    head = [_cell("JOB", name_cells), *(_cell(c.title, c.cells, c.is_right) for c in columns)]
    lines = [gap.join(head)]
    lines[0].stylize("dim")
    if not jobs:
        return [
            *lines,
            Text("none yet: malletrain submit --max-nodes 4 -- python train.py", style="dim"),
        ]
    ranked = sorted(jobs, key=_rank)
    shown = ranked if len(ranked) < most_lines else ranked[: max(most_lines - 2, 0)]
    # As they were submitted, so that no row jumps while a reader looks at it.
    for job in sorted(shown, key=lambda job: job.submitted_at_s):
        name = _cell(job.name, name_cells)
        name.stylize(colours.get(job.id, ""))
        cells = [_cell(c.value(job), c.cells, c.is_right) for c in columns]
        cells[0].stylize(_STATUS_STYLES.get(words.status(job), ""))
        lines.append(gap.join([name, *cells]))
    if len(shown) < len(ranked):
        lines.append(_other_jobs(ranked[len(shown) :]))
    return lines


def _name_cells(
    jobs: Sequence[JobView], columns: Sequence[_Column], width: int, gap_cells: int
) -> int:
    left_over = width - sum(column.cells + gap_cells for column in columns)
    longest = max((cell_len(job.name) for job in jobs), default=0)
    return max(min(left_over, longest), 3)


def _rank(job: JobView) -> tuple[bool, bool, int, float]:
    """Order by what a reader looks for: busiest first, then waiting, then the latest to end."""
    when = -(job.ended_at_s or 0.0) if job.activity == "over" else job.submitted_at_s
    return (job.activity == "over", job.activity == "waiting", -len(job.nodes), when)


def _other_jobs(jobs: Sequence[JobView]) -> Text:
    statuses = Counter(map(words.status, jobs)).most_common()
    rate = words.compact(sum(job.samples_per_s for job in jobs))
    listed = ", ".join(f"{count:,} {status}" for status, count in statuses)
    return Text(f"… and {len(jobs):,} more: {listed}, {rate} samples/s", style="dim")


def _cell(text: str, cells: int, is_right: bool = False) -> Text:
    cell = Text(text)
    cell.truncate(cells, overflow="ellipsis")
    missing = cells - cell.cell_len
    if is_right:
        cell.pad_left(missing)
    else:
        cell.pad_right(missing)
    return cell


def _colours(jobs: Sequence[JobView]) -> dict[str, str]:
    living = [job.id for job in jobs if job.activity != "over"]
    return {job_id: _JOB_COLOURS[i % len(_JOB_COLOURS)] for i, job_id in enumerate(living)}


# -- nodes ---------------------------------------------------------------------------------------


def _nodes(view: ClusterView, width: int, most_lines: int, colours: dict[str, str]) -> list[Text]:
    """Draw every node where there is room, else a line a group, else the largest groups."""
    names = {job.id: job.name for job in view.jobs}
    groups = _by_group(view.nodes)
    if not groups:
        return [Text("NODES  none", style="dim")]
    label_cells = min(max(5, *(cell_len(group) for group in groups)), 16)
    titled = {group: _cell(group or "NODES", label_cells) for group in groups}
    for title in titled.values():
        title.stylize("dim")
    drawn = [
        line
        for group, nodes in groups.items()
        for line in _drawn_group(titled[group], nodes, width, names, colours)
    ]
    if len(drawn) <= most_lines:
        return drawn
    ranked = sorted(groups, key=lambda group: -len(groups[group]))
    shown = ranked if len(ranked) <= most_lines else ranked[: most_lines - 1]
    lines = [_counted_group(titled[group], groups[group], names, colours) for group in shown]
    if len(shown) < len(ranked):
        rest = [node for group in ranked[len(shown) :] for node in groups[group]]
        more = words.count(len(ranked) - len(shown), "more group")
        idle = sum(node.job_id is None for node in rest)
        lines.append(Text(f"… and {more}: {len(rest):,} nodes, {idle:,} idle", style="dim"))
    return lines


def _by_group(nodes: Iterable[NodeView]) -> dict[str, list[NodeView]]:
    groups: dict[str, list[NodeView]] = {}
    for node in words.in_order(nodes):
        groups.setdefault(node.group, []).append(node)
    return groups


def _drawn_group(
    title: Text,
    nodes: Sequence[NodeView],
    width: int,
    names: dict[str, str],
    colours: dict[str, str],
) -> list[Text]:
    cells = [_node_cell(node, names, colours) for node in nodes]
    cell_width = min(max(cell.cell_len for cell in cells), 28)
    for cell in cells:
        cell.truncate(cell_width, overflow="ellipsis", pad=True)
    by_line = max((width - title.cell_len) // (cell_width + 2), 1)
    blank = Text(" " * title.cell_len)
    return [
        Text("  ").join([blank if start else title, *cells[start : start + by_line]])
        for start in range(0, len(cells), by_line)
    ]


def _node_cell(node: NodeView, names: dict[str, str], colours: dict[str, str]) -> Text:
    holder = names.get(node.job_id, node.job_id) if node.job_id else "idle"
    mark = {"leaving": "↓", "joining": "↑"}.get(node.state, "")
    style = colours.get(node.job_id or "", "dim")
    return Text.assemble((f"{node.id} ", "dim"), (f"{mark}{holder}", style))


def _counted_group(
    title: Text, nodes: Sequence[NodeView], names: dict[str, str], colours: dict[str, str]
) -> Text:
    holders = Counter(node.job_id for node in nodes)
    idle = holders.pop(None, 0)
    leaving = sum(node.state == "leaving" for node in nodes)
    line = Text.assemble(title, f"  {words.count(len(nodes), 'node')}: {idle:,} idle")
    if leaving:
        line.append(f", {leaving:,} leaving")
    if holders:
        line.append(f", in {words.count(len(holders), 'job')}: ")
    for position, (job_id, number) in enumerate(holders.most_common(12)):
        name = names.get(job_id or "", job_id)
        line.append(", " if position else "")
        line.append(f"{name} {number:,}", colours.get(job_id or ""))
    return line
