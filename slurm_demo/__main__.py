"""`python -m slurm_demo`: harvest a Slurm of this machine alone, and do its other users no harm."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from demo import screen, table
from demo.checks import Check, consumed_once, ended_well, none_left
from demo.controller import MALLETRAIN, Controller, finish, interrupted, processes_of
from demo.jobs import EXAMPLES, DemoJob
from malletrain.devcluster import DevCluster, Settings, programs
from malletrain.errors import DevClusterError, MalleTrainError
from malletrain.impact.stays import Held, held
from malletrain.live.store import read_history
from malletrain.report.page import write_report
from malletrain.train import audit
from slurm_demo import checks
from slurm_demo.lines import lines
from slurm_demo.others import Others

CONFIG = EXAMPLES / "slurm-demo.toml"
SETTINGS = Settings(nodes=8, grace_s=30)
JOBS = (
    DemoJob("compute-heavy", "compute_heavy.py", max_nodes=8),
    DemoJob("digits-cnn", "digits_cnn.py", max_nodes=4),
    DemoJob("char-transformer", "char_transformer.py", max_nodes=6),
)
#: Eight imports of PyTorch at once take their time on few cores.
ALL_TRAIN_WITHIN_S = 40.0
#: What is not trained by then hangs.
TRAIN_WITHIN_S = 300.0
ASSUMPTIONS = (
    (
        "Slurm is a real one; its eight nodes are daemons on this machine, which has fewer cores. "
        "Main jobs sleep, for seconds instead of hours, and are so few that none would wait for "
        "another: what they wait, they wait for Slurm itself or for us."
    ),
    (
        "The device is emulated: the scripts do all their mathematics for real on small models "
        "and then wait as long as one slow device a node, joined by a slow link, would have "
        "needed (examples/emulated_device.py states both)."
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run slurm-demo", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("report.html"), metavar="FILE")
    parser.add_argument("--keep", action="store_true", help="keep the run's directory")
    parser.add_argument(
        "--reachable",
        action="store_true",
        help="let Slurm listen at every address where it cannot be kept to loopback",
    )
    arguments = parser.parse_args()
    console = Console(highlight=False)
    # Short: Slurm's sockets lie below it.
    run_dir = Path(tempfile.mkdtemp(prefix="mt-"))
    try:
        cluster = _created(run_dir / "slurm", may_be_reachable=arguments.reachable)
    except DevClusterError as error:
        sys.stderr.write(f"slurm-demo: {error}\n")
        shutil.rmtree(run_dir, ignore_errors=True)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Slurm's daemons would outlive us.
        signal.signal(number, signal.default_int_handler)
    try:
        holds = _demo(console, run_dir, cluster, arguments.output)
    except MalleTrainError as error:
        console.print(f"[bold red]the demo failed:[/] {escape(str(error))}", soft_wrap=True)
        holds = False
    except KeyboardInterrupt:
        return interrupted(console, run_dir)
    return finish(console, run_dir, holds=holds, is_kept=arguments.keep)


def _created(directory: Path, *, may_be_reachable: bool) -> DevCluster:
    if why := programs.missing():
        raise DevClusterError(why)
    settings = Settings(
        nodes=SETTINGS.nodes, grace_s=SETTINGS.grace_s, may_be_reachable=may_be_reachable
    )
    return DevCluster.create(directory, settings)


def _demo(console: Console, run_dir: Path, cluster: DevCluster, output: Path) -> bool:
    own_dir = run_dir / "malletrain"
    own_dir.mkdir()
    options = ("--batch", "slurm", "--config", str(CONFIG))
    controller = Controller(own_dir, options, cluster.environment)
    others = Others(cluster, run_dir / "others")
    try:
        cluster.up()
        console.print(f"$ malletrain dev-cluster up --grace-s {SETTINGS.grace_s}")
        alone_s = others.alone_s()
        _told(console, cluster, "doctor", *options, "--state-dir", str(controller.state_dir.path))
        console.print("(What it warns of is as it should be where all nodes are this machine.)")
        console.print(f"$ malletrain up --batch slurm --config examples/{CONFIG.name}")
        with controller:
            for job in JOBS:
                console.print(f"$ {controller.submit(job, own_dir / 'audit')}", soft_wrap=True)
            job_ids = _train(console, controller, others)
        leftovers = controller.leftovers()
        cluster.wait_until_idle()
        drained = checks.none_drained(cluster.run("sinfo", "-h", "-R").stdout, cluster.states())
        accounting = ("--accounting", str(cluster.log_dir / "jobcomp.log"))
        where = ("--state-dir", str(controller.state_dir.path))
        _told(console, cluster, "impact", *accounting, *where)
    finally:
        cluster.down(is_kept=True)
    held_then = _held(controller, others)
    findings = {name: audit.check(own_dir / "audit", id_) for name, id_ in job_ids.items()}
    run = write_report(controller.state_dir.journal_path, output, assumptions=ASSUMPTIONS)
    found: list[Check] = [
        checks.not_delayed(others, alone_s),
        checks.gave_way(held_then),
        checks.harvested(held_then, others),
        drained,
        *ended_well(run),
        *consumed_once(run, findings),
        none_left(leftovers, " on any node"),
        none_left(processes_of(run_dir), " when Slurm had ended"),
    ]
    table.show(console, run, found, ASSUMPTIONS)
    console.print(f"\nreport: {output}")
    return all(check.holds for check in found)


def _train(console: Console, controller: Controller, others: Others) -> Mapping[str, str]:
    """Show the machine until all jobs of everybody are over; return ours' ids by name.

    Main jobs arrive as soon as every node trains, or when that has been waited for long enough.
    """
    gives_up_at_s = time.monotonic() + TRAIN_WITHIN_S
    begins_at_s = time.monotonic() + ALL_TRAIN_WITHIN_S
    with controller.client() as client, screen.Screen(console) as shown:
        while True:
            view = client.state()
            training = sum(node.state == "training" for node in view.nodes)
            if training == SETTINGS.nodes or time.monotonic() > begins_at_s:
                others.begin()
            others.poll()
            shown.show(view, lines(view, others))
            if all(job.phase in screen.OVER for job in view.jobs) and others.are_over:
                return {job.name: job.id for job in view.jobs}
            if time.monotonic() > gives_up_at_s:
                late = ", ".join(job.name for job in view.jobs if job.phase not in screen.OVER)
                raise MalleTrainError(
                    f"not done within {TRAIN_WITHIN_S:.0f} s: {late or 'main jobs'}"
                )
            time.sleep(screen.LOOK_EVERY_S)


def _held(controller: Controller, others: Others) -> Held:
    """Return what was ours while main jobs came and went."""
    history = read_history(controller.state_dir.journal_path)
    ends_s = [job.ended_at_s for job in others.jobs if job.ended_at_s is not None]
    assert others.began_at_s is not None
    return held(history.snapshot, history.events, others.began_at_s, max(ends_s))


def _told(console: Console, cluster: DevCluster, command: str, *options: str) -> None:
    """Run a command as a user would, and show what it says."""
    console.print(f"$ malletrain {command}{' --batch slurm' if command == 'doctor' else ''}")
    done = subprocess.run(
        [*MALLETRAIN, command, *options],
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    console.print(done.stdout, markup=False, soft_wrap=True)
    if done.returncode != 0:
        raise MalleTrainError(f"malletrain {command} ended with {done.returncode}: {done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
