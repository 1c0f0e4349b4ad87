"""Faults of a one-machine Slurm and of our own controller, one after the other, under load.

Three malleable jobs train on eight nodes while main jobs come and go. At the end it is looked at
whether each sample was consumed exactly once, whether a main job came to harm, and what was left on
the nodes. The jobs end under a controller with the default pace of queries, whose commands are
counted for five minutes.

A fault's figure is the longest time in which any of the jobs made no step while it lasted; beside
it is the same of a time without faults. Jobs lose nodes to main jobs in both.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from bench.harness import Result
from bench.harvesting import Site, settings_text, wait_for
from malletrain.batch.commands import CommandKind, CommandRecord
from malletrain.core.model import Phase
from malletrain.devcluster import Settings
from malletrain.errors import MalleTrainError
from malletrain.impact.accounting import read
from malletrain.live.views import ClusterView, NodeView
from malletrain.traces.files import open_lines
from malletrain.train import audit

NODES = 8
GRACE_S = 5
#: A node whose slurmd died is down after 10 s, not the site's usual minutes.
SETTINGS = Settings(nodes=NODES, grace_s=GRACE_S, slurm={"SlurmdTimeout": "10"})
#: Job -> the most nodes it can use, and how many epochs it trains.
_JOBS = {"first": (4, 12), "second": (3, 10), "third": (3, 10)}
_MAIN_EVERY_S = 10.0
_MAIN_NODES = (1, 3)
_MAIN_LENGTHS_S = (3.0, 7.0)
_NAME = "main"
_OPTIONS = ("--time=1", f"--job-name={_NAME}")
#: The shortest pace that there is, so that what only a survey tells is told in time; and main jobs
#: come so fast that after each there is little time to harvest.
_CONFIG = settings_text(GRACE_S, "query_every_s = 10.0\ncalm_s = 2.0")
_CALM_S = 10.0
#: A node that is taken from us, or comes back, does so within.
_LIMIT_S = 90.0
_CONTROLLER_AWAY_S = 60.0
_NOTICE_S = 18.0
_FINISH_LIMIT_S = 180.0
STEADY_S = 300.0
QUERIES_A_MINUTE = 2.0


def run() -> Iterator[Result]:
    with (
        tempfile.TemporaryDirectory(prefix="mt-") as directory,
        Site(Path(directory), SETTINGS) as site,
        MainJobs(site) as main_jobs,
    ):
        site.up(_CONFIG)
        training = Training(site, Path(directory))
        yield from _faults(Scene(site, training, main_jobs))
        yield from _steady(site)
        yield from training.results()
        yield from main_jobs.results()
        yield from _left_over(site)


def _left_over(site: Site) -> Iterator[Result]:
    site.down()
    with suppress(TimeoutError):
        wait_for(lambda: not site.left_over(), "empty nodes", poll_s=0.2, limit_s=10.0)
    left = len(site.left_over())
    yield Result("processes left on the nodes", left, "processes", "0", left == 0)


# -- main jobs -------------------------------------------------------------------------------------


class MainJobs(threading.Thread):
    """Jobs of others, which come all the time."""

    def __init__(self, site: Site) -> None:
        super().__init__(daemon=True)
        self._site = site
        self._ending = threading.Event()
        self._refused = 0
        #: Hosts whose slurmd was killed: what fails on these is not our doing.
        self.dead_hosts: set[str] = set()

    def __enter__(self) -> MainJobs:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join()

    def run(self) -> None:
        rng = random.Random(1)  # noqa: S311 - for variety only
        while not self._ending.wait(_MAIN_EVERY_S):
            try:
                self._site.submit_main(
                    rng.randint(*_MAIN_NODES), rng.uniform(*_MAIN_LENGTHS_S), *_OPTIONS
                )
            except subprocess.CalledProcessError:
                self._refused += 1

    def results(self) -> Iterator[Result]:
        """Have no more come, wait for the last, and say what became of all."""
        self._ending.set()
        self.join()
        is_over = lambda: not self._site.slurm("squeue", "-h", "-p", "batch")  # noqa: E731
        wait_for(is_over, "the end of the main jobs", poll_s=0.5)
        with open_lines(self._site.cluster.log_dir / "jobcomp.log") as lines:
            jobs = [job for job in read(lines) if job.name == _NAME]
        unwell = [job for job in jobs if job.state != "COMPLETED"]
        ours = [job for job in unwell if not self.dead_hosts & set(job.hosts)]
        states = ", ".join(f"{n} {state}" for state, n in Counter(j.state for j in jobs).items())
        yield Result(
            f"main jobs that failed or were requeued, but for nodes without slurmd "
            f"({len(jobs)} ran: {states}; {self._refused} refused while slurmctld was away)",
            len(ours),
            "jobs",
            "0",
            not ours,
        )


# -- training --------------------------------------------------------------------------------------


class Training:
    """The malleable jobs, and the steps that they wrote down."""

    def __init__(self, site: Site, directory: Path) -> None:
        self._site = site
        self._directory = directory
        self.job_ids = {
            name: site.submit(
                name,
                max_nodes,
                epochs,
                {
                    "MALLETRAIN_AUDIT": str(directory / "audit"),
                    "HARVEST_STEPS": str(directory / f"{name}.steps"),
                },
            )
            for name, (max_nodes, epochs) in _JOBS.items()
        }

    def steps(self, name: str) -> list[tuple[float, int]]:
        """Return (epoch s, samples) of each step; steps that were lost are there twice."""
        path = self._directory / f"{name}.steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(at), int(samples)) for at, samples in map(str.split, lines)]

    def longest_gap_s(self, from_s: float, to_s: float) -> tuple[float, str]:
        """Return the longest time in which a job made no step, and which job; of those at work."""
        gaps = []
        for name in _JOBS:
            at_s = [at for at, _ in self.steps(name)]
            if not at_s or (name in self.finished() and max(at_s) < to_s):
                continue
            points = [from_s, *(at for at in at_s if from_s < at < to_s), to_s]
            gaps += [(b - a, name) for a, b in pairwise(points)]
        return max(gaps, default=(to_s - from_s, "all"))

    def steps_within(self, from_s: float, to_s: float) -> int:
        return sum(from_s <= at < to_s for name in _JOBS for at, _ in self.steps(name))

    def samples(self) -> dict[str, int]:
        return {name: (self.steps(name) or [(0.0, 0)])[-1][1] for name in _JOBS}

    def finished(self) -> set[str]:
        return {j.name for j in _view(self._site).jobs if j.phase == Phase.FINISHED.value}

    def results(self) -> Iterator[Result]:
        """Wait for the jobs' end and say whether each sample was consumed exactly once."""
        with suppress(TimeoutError):
            wait_for(
                lambda: self.finished() == {*_JOBS}, "all", poll_s=0.5, limit_s=_FINISH_LIMIT_S
            )
        done = self.finished()
        yield Result("training jobs finished", len(done), "jobs", f"{len(_JOBS)}", len(done) == 3)
        for name, job_id in self.job_ids.items():
            found = audit.check(self._directory / "audit", job_id)
            epochs = _JOBS[name][1]
            said = "; ".join(found.problems) or (
                f"{found.samples:,} samples in {found.generations} generations, "
                f"{found.void_steps} steps done again"
            )
            yield Result(
                f"{name}: epochs of which each sample was consumed exactly once ({said})",
                found.epochs,
                "epochs",
                f"{epochs}",
                found.is_exactly_once and found.epochs == epochs,
            )


# -- faults ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scene:
    site: Site
    training: Training
    main_jobs: MainJobs


def _faults(scene: Scene) -> Iterator[Result]:
    training = scene.training
    wait_for(lambda: all(training.samples().values()), "steps of all jobs", poll_s=0.2)
    calm_from_s = time.time()
    time.sleep(_CALM_S)
    calm_s, _ = training.longest_gap_s(calm_from_s, time.time())
    for what, fault in _FAULTS.items():
        began_at_s = time.time()
        found = fault(scene)
        gap_s, name = training.longest_gap_s(began_at_s, time.time())
        yield Result(
            f"{what} ({found}): longest time without a step, of {name}",
            gap_s,
            "s",
            reference="of a time without faults",
            reference_value=calm_s,
        )
    still = len(_JOBS) - len(training.finished())
    yield Result("jobs that still trained after the last fault", still, "jobs", ">= 1", still > 0)


def _kill_slurmd(scene: Scene) -> str:
    site, node = scene.site, _a_node(scene.site)
    killed_at_s = time.time()
    scene.main_jobs.dead_hosts.add(node.host)
    site.cluster.kill_node(node.host)
    try:
        _wait_gone(site, node)
        left_s = time.time() - killed_at_s
        # The step's processes end by themselves, although nobody is there to end them.
        is_down = lambda: site.cluster.states()[node.host].startswith("down")  # noqa: E731
        wait_for(is_down, f"{node.host} down", poll_s=0.2, limit_s=_LIMIT_S)
    finally:
        site.cluster.start_node(node.host)
    return f"left after {left_s:.1f} s, down until {time.time() - killed_at_s:.1f} s"


def _stop_slurmctld(scene: Scene) -> str:
    site, training = scene.site, scene.training
    stopped_at_s = time.time()
    told_after_s = 0.0
    site.cluster.stop_controller()
    try:
        while time.time() < stopped_at_s + _CONTROLLER_AWAY_S:
            if not told_after_s and "training goes on" in _view(site).trouble:
                told_after_s = time.time() - stopped_at_s
            time.sleep(0.2)
    finally:
        back_at_s = time.time()
        site.cluster.start_controller()
    if not told_after_s:
        raise MalleTrainError("the trouble line did not say that slurmctld is away")
    wait_for(lambda: not _view(site).trouble, "the trouble's end", poll_s=0.2, limit_s=_LIMIT_S)
    away = training.steps_within(stopped_at_s, back_at_s)
    asked = [r for r in _commands(site) if stopped_at_s <= r.at_s < back_at_s]
    queries = sum(r.kind is CommandKind.QUERY for r in asked)
    return (
        f"{away} steps meanwhile, by {queries} queries and {len(asked) - queries} other commands; "
        f"told after {told_after_s:.1f} s, over {time.time() - back_at_s:.1f} s after its return"
    )


def _drain(scene: Scene) -> str:
    site, node = scene.site, _a_node(scene.site)
    drained_at_s = time.time()
    _control(site, "update", f"nodename={node.host}", "state=drain", "reason=bench")
    try:
        _wait_gone(site, node)
        left_s = time.time() - drained_at_s
    finally:
        _control(site, "update", f"nodename={node.host}", "state=resume")
    return f"left after {left_s:.1f} s"


def _reserve(scene: Scene) -> str:
    site = scene.site
    hosts = [node.host for node in _some_nodes(site, 2)]
    made_at_s = time.time()
    starts_at_s = int(made_at_s + _NOTICE_S)
    _control(
        *(
            site,
            "create",
            "reservation=bench",
            f"users={site.cluster.site.user}",
            "flags=ignore_jobs",
        ),
        *(f"nodes={','.join(hosts)}", f"starttime=now+{_NOTICE_S:.0f}", "duration=10"),
    )
    try:

        def is_foreseen() -> bool:
            ends = [n.expected_end_at_s for n in _view(site).nodes if n.host in hosts]
            return all(end is not None and end <= starts_at_s + 2.0 for end in ends)

        wait_for(is_foreseen, "the reservation foreseen", poll_s=0.2, limit_s=_NOTICE_S)
        foreseen_s = time.time() - made_at_s
        time.sleep(max(starts_at_s + 2.0 - time.time(), 0.0))
        started = site.main_job(len(hosts), 3.0, *_OPTIONS, "--reservation=bench")
    finally:
        with suppress(TimeoutError):
            is_free = lambda: not site.slurm("squeue", "-h", "-R", "bench")  # noqa: E731
            wait_for(is_free, "the reservation's job", poll_s=0.2, limit_s=30.0)
        _control(site, "delete", "reservation=bench")
    return f"foreseen after {foreseen_s:.1f} s, its job waited {started.wait_s:.2f} s"


def _cancel_pilot(scene: Scene) -> str:
    site, node = scene.site, _a_node(scene.site)
    cancelled_at_s = time.time()
    site.slurm("scancel", node.pilot_id)
    _wait_gone(site, node)
    left_s = time.time() - cancelled_at_s
    _wait_back(site, node.host)
    return f"left after {left_s:.1f} s, harvested again after {time.time() - cancelled_at_s:.1f} s"


def _kill_controller(scene: Scene) -> str:
    site, training = scene.site, scene.training
    before = training.samples()
    held = {node.pilot_id for node in _view(site).nodes}
    killed_at_s = time.time()
    site.kill_controller()
    time.sleep(5.0)
    away = training.steps_within(killed_at_s, time.time())
    site.up(_CONFIG)
    up_s = time.time() - killed_at_s
    wait_for(lambda: _is_training(_view(site)), "training", poll_s=0.2, limit_s=_LIMIT_S)
    trains_s = time.time() - killed_at_s
    # Main jobs take some of them meanwhile.
    alive = held & {*site.slurm("squeue", "-h", "-t", "R", "-o", "%i").split()}
    kept = alive & {node.pilot_id for node in _view(site).nodes}
    # For a first survey, and for what a plan that knew no pilots would do after it.
    time.sleep(12.0)
    orders = [r for r in _commands(site) if r.at_s >= killed_at_s and r.command[0] == "scancel"]
    cancelled = [p for p in held if any(_names(r.command, p) for r in orders)]
    if cancelled:
        raise MalleTrainError(f"the restarted controller cancelled {', '.join(cancelled)}")
    samples = f"{sum(before.values()):,} samples before, {sum(training.samples().values()):,} after"
    return (
        f"{away} steps in 5 s without it, answered after {up_s:.1f} s, trained on after "
        f"{trains_s:.1f} s; of {len(held)} pilots main jobs left {len(alive)}, "
        f"{len(kept)} of these were kept and none cancelled; {samples}"
    )


_FAULTS: dict[str, Callable[[Scene], str]] = {
    "slurmd killed under a pilot": _kill_slurmd,
    f"slurmctld away for {_CONTROLLER_AWAY_S:.0f} s": _stop_slurmctld,
    "node drained": _drain,
    "two nodes of ours reserved": _reserve,
    "pilot cancelled by hand": _cancel_pilot,
    "our controller killed and restarted": _kill_controller,
}


def _view(site: Site) -> ClusterView:
    with site.client() as client:
        return client.state()


def _training_nodes(site: Site) -> list[NodeView]:
    return [node for node in _view(site).nodes if node.state == "training"]


def _a_node(site: Site) -> NodeView:
    """Return a node on which a job trains."""
    return _some_nodes(site, 1)[0]


def _some_nodes(site: Site, count: int) -> list[NodeView]:
    def found() -> list[NodeView]:
        nodes = _training_nodes(site)
        return nodes[-count:] if len(nodes) >= count else []

    return wait_for(found, f"{count} nodes that train", poll_s=0.2, limit_s=_LIMIT_S)


def _is_training(view: ClusterView) -> bool:
    return all(job.activity == "training" for job in view.jobs if job.phase != Phase.FINISHED.value)


def _wait_gone(site: Site, node: NodeView) -> None:
    def is_gone() -> bool:
        return node.id not in {other.id for other in _view(site).nodes}

    wait_for(is_gone, f"{node.id} left", poll_s=0.1, limit_s=_LIMIT_S)


def _wait_back(site: Site, host: str) -> None:
    def is_back() -> bool:
        return host in {node.host for node in _training_nodes(site)}

    wait_for(is_back, f"{host} harvested again", poll_s=0.1, limit_s=_LIMIT_S)


def _control(site: Site, *words: str) -> None:
    site.slurm("scontrol", *words)


def _names(command: tuple[str, ...], pilot_id: str) -> bool:
    """Whether `scancel 12_[0,3]` is about this pilot."""
    job, _, task = pilot_id.partition("_")
    words = (word.rstrip("]").partition("_[") for word in command)
    return any(word == job and task in tasks.split(",") for word, _, tasks in words)


# -- the pace of commands --------------------------------------------------------------------------


def _commands(site: Site) -> list[CommandRecord]:
    decoder = msgspec.json.Decoder(CommandRecord)
    return [decoder.decode(line) for line in site.state_dir.commands_path.open("rb")]


def _steady(site: Site) -> Iterator[Result]:
    """Go on with default settings, and with a job that always has use for all nodes."""
    site.down()
    site.up(settings_text(GRACE_S, submit_every_s=10.0))
    site.submit("steady", NODES, 100_000)
    wait_for(lambda: _training_nodes(site), "training", poll_s=0.2)
    began_at_s = time.time()
    time.sleep(STEADY_S)
    ended_at_s = time.time()
    records = [r for r in _commands(site) if began_at_s <= r.at_s < ended_at_s]
    minutes = (ended_at_s - began_at_s) / 60.0
    queries = sum(r.kind is CommandKind.QUERY for r in records) / minutes
    programs = ", ".join(
        f"{count} {name}" for name, count in Counter(r.command[0] for r in records).items()
    )
    yield Result(
        f"queries a minute in {minutes:.0f} minutes with default settings, {NODES} nodes; a survey "
        f"has as many programs at any number of nodes ({programs})",
        queries,
        "a minute",
        f"<= {QUERIES_A_MINUTE:g}",
        queries <= QUERIES_A_MINUTE,
    )
    orders = sum(r.kind is CommandKind.ORDER for r in records) / minutes
    yield Result("orders (sbatch, scancel) a minute in it", orders, "a minute")
