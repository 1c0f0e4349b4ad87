"""`python -m demo`: train five malleable jobs on eight nodes that come and go, and check it all."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from demo import outcome, screen, table
from demo.checks import check_run
from demo.controller import Controller, finish, interrupted
from demo.jobs import EXAMPLES, JOBS
from demo.trace import SPEED
from demo.twins import Twins
from malletrain.errors import MalleTrainError
from malletrain.live.store import read_events
from malletrain.report.page import write_report
from malletrain.train import audit

TRACE = EXAMPLES / "demo-trace.csv"
CONFIG = EXAMPLES / "demo.toml"
#: The demo is to end in five minutes; what is not trained by then hangs.
TRAIN_WITHIN_S = 270.0
ASSUMPTIONS = (
    (
        "The device is emulated: but for digits-mlp, the scripts do all their mathematics for "
        "real on small models and then wait as long as one slow device a node, joined by a slow "
        "link, would have needed (examples/emulated_device.py states both). Losses, rescales, "
        "preemptions and recoveries are real; throughput says nothing about real hardware."
    ),
    (
        "Nodes are process groups on this machine. Their idle intervals are drawn, heavy-tailed "
        f"like published ones, and pass {SPEED:.0f} times faster than they were drawn."
    ),
    (
        "The undisturbed twins are one worker each, with the same seed and global batch and "
        "without the emulated wait. In single precision, losses are held to agree within "
        f"{outcome.RELATIVE_TOLERANCE:.1%} of themselves: runs of 2 and of 4 workers differ by as "
        "much without any rescale."
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("report.html"), metavar="FILE")
    parser.add_argument("--keep", action="store_true", help="keep the run's directory")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    run_dir = Path(tempfile.mkdtemp(prefix="malletrain-demo-"))
    try:
        holds = _demo(console, run_dir, arguments.output)
    except MalleTrainError as error:
        console.print(f"[bold red]the demo failed:[/] {escape(str(error))}")
        holds = False
    except KeyboardInterrupt:
        return interrupted(console, run_dir)
    return finish(console, run_dir, holds=holds, is_kept=arguments.keep)


def _demo(console: Console, run_dir: Path, output: Path) -> bool:
    options = ("--batch", "local", "--trace", str(TRACE), "--speed", f"{SPEED:g}")
    controller = Controller(run_dir, (*options, "--config", str(CONFIG)))
    console.print(f"malletrain up {' '.join(options[:2])} --trace examples/{TRACE.name} ...")
    twins = Twins(JOBS, run_dir / "twins")
    try:
        with controller:
            for job in JOBS:
                console.print(controller.submit(job, run_dir / "audit"), soft_wrap=True)
            job_ids = _train(console, controller, twins)
    finally:
        twins.end()
        leftovers = controller.leftovers()
    audit_dir = run_dir / "audit"
    findings = {name: audit.check(audit_dir, job_id) for name, job_id in job_ids.items()}
    comparisons = {
        job.name: outcome.compare(
            job,
            outcome.job_log(controller.state_dir, job_ids[job.name]),
            twins.log(job),
            is_exactly_once=findings[job.name].is_exactly_once,
        )
        for job in JOBS
    }
    journal = controller.state_dir.journal_path
    run = write_report(journal, output, comparisons, assumptions=ASSUMPTIONS)
    checks = check_run(run, list(read_events(journal)), findings, leftovers)
    table.show(console, run, checks, ASSUMPTIONS)
    console.print(f"\nreport: {output}")
    return all(check.holds for check in checks)


def _train(console: Console, controller: Controller, twins: Twins) -> Mapping[str, str]:
    """Show the cluster until all jobs are over and all twins trained; return job ids by name."""
    gives_up_at_s = time.monotonic() + TRAIN_WITHIN_S
    with controller.client() as client, screen.Screen(console) as shown:
        while True:
            view = client.state()
            shown.show(view)
            has_twins = twins.poll()
            if all(job.phase in screen.OVER for job in view.jobs) and not has_twins:
                return {job.name: job.id for job in view.jobs}
            if time.monotonic() > gives_up_at_s:
                late = ", ".join(job.name for job in view.jobs if job.phase not in screen.OVER)
                raise MalleTrainError(f"not done within {TRAIN_WITHIN_S:.0f} s: {late or 'twins'}")
            time.sleep(screen.LOOK_EVERY_S)


if __name__ == "__main__":
    sys.exit(main())
