"""The end of the demo, for a person who reads a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from demo.checks import Check
from malletrain.report import RunReport
from malletrain.report.data import JobReport

#: Not a word less on a terminal that is narrower: the table's columns are worth their width.
_LEAST_WIDTH = 100


def show(
    console: Console, run: RunReport, checks: Iterable[Check], assumptions: Sequence[str]
) -> None:
    if not console.is_terminal:
        console.width = max(console.width, _LEAST_WIDTH)
    console.print(_jobs(run))
    console.print(_totals(run))
    console.print()
    for check in checks:
        mark = "[green]ok  [/]" if check.holds else "[bold red]FAIL[/]"
        console.print(f"{mark} {check.found}", highlight=False)
    console.print()
    for sentence in assumptions:
        console.print(sentence, style="dim", highlight=False)


def _jobs(run: RunReport) -> Table:
    table = Table(title="Jobs", title_justify="left", title_style="bold")
    table.add_column("job", no_wrap=True)
    for title in ("samples", "final loss", "undisturbed", "up", "down", "losses", "stall"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("node-s", justify="right", no_wrap=True)
    table.add_column("nodes learned about")
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
        f"{ledger.scale_ups}",
        f"{ledger.scale_downs}",
        f"{ledger.losses}",
        f"{ledger.stall_s:.2f} s",
        f"{ledger.node_s.offered:,.0f}",
        " ".join(str(o.nodes) for o in report.curve.measured) or "-",
    )


def _totals(run: RunReport) -> Table:
    node_s, offered = run.node_s, run.node_s.offered or 1.0
    table = Table(title="In all", title_justify="left", title_style="bold", show_header=False)
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
