"""The end of the demo, for a person who reads a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demo.checks import Check
from malletrain.report import RunReport
from malletrain.report.data import JobReport

_TITLES = (
    "\nsamples",
    "final\nloss",
    "undis-\nturbed",
    "scaled\nup/down",
    "stall\ns",
    "learned\nat nodes",
)


def show(
    console: Console, run: RunReport, checks: Iterable[Check], assumptions: Sequence[str]
) -> None:
    console.print(_jobs(run))
    console.print(_totals(run))
    console.print()
    for check in checks:
        mark = "[green]PASS[/]" if check.holds else "[bold red]FAIL[/]"
        console.print(f"{mark} {escape(check.found)}", highlight=False, soft_wrap=True)
    console.print()
    for sentence in assumptions:
        console.print(sentence, style="dim", highlight=False)


def _jobs(run: RunReport) -> Table:
    table = Table(title="Jobs", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.pad_edge, table.collapse_padding = False, True
    table.add_column("\njob", no_wrap=True)
    for title in _TITLES:
        table.add_column(title, justify="right", no_wrap=True)
    for report in run.jobs:
        table.add_row(*_row(report))
    return table


def _row(report: JobReport) -> tuple[str, ...]:
    twin, ledger = report.comparison, report.ledger
    return (
        report.job.spec.name,
        f"{report.job.done_samples:,.0f}",
        f"{twin.final_loss:.5f}" if twin else "-",
        f"{twin.twin_final_loss:.5f}" if twin else "-",
        f"{ledger.scale_ups}/{ledger.scale_downs}",
        f"{ledger.stall_s:.2f}",
        " ".join(str(o.nodes) for o in report.curve.measured) or "-",
    )


def _totals(run: RunReport) -> Table:
    node_s, offered = run.node_s, run.node_s.offered or 1.0
    table = Table(title="In all", title_justify="left", title_style="bold", box=box.SIMPLE)
    table.show_header, table.pad_edge = False, False
    table.add_column("what", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for name, value in (
        ("node-seconds offered", node_s.offered),
        ("used", node_s.used),
        ("  training", node_s.training),
        ("  profiling", node_s.profiling),
        ("  rescaling", node_s.rescaling),
        ("  lost to preemption", node_s.preempted),
        ("idle", node_s.idle),
    ):
        table.add_row(name, f"{value:,.0f}", f"{value / offered:.1%}")
    table.add_section()
    table.add_row("goodput, samples/s kept", f"{run.goodput:,.0f}", "")
    efficiency = "-" if run.efficiency is None else f"{run.efficiency:.1%}"
    table.add_row(f"efficiency against {run.equivalent_nodes:.2f} static nodes", efficiency, "")
    table.add_row("elapsed", f"{run.elapsed_s:.0f} s", "")
    return table
