"""A stream of main jobs on the one-machine Slurm: drawn from a seed, played, and what came of it.

Drawn are 1 to 8 nodes, mostly few, and 3 to 30 s a job. The time is cut in as many pieces as there
are jobs, and one is submitted at some time of each, so that they use `_LOAD` of the nodes on their
own, less what the scheduler leaves idle. (In a Poisson process they pile up, and then chance
decides: of two streams, both without us, 15 pairs started in different orders, and of evenly spread
ones 2.) Users ask for one to five minutes each, far more than they need, as users do: the scheduler
plans by that. At fixed times nodes are drained and resumed, and reservations are made and deleted.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from bench.harvesting import Site, wait_for
from malletrain.impact.accounting import BatchJob, read
from malletrain.traces.files import open_lines

NODES = 8
SEED = 4
_LOAD = 0.65
#: Nodes of a job -> how many jobs of 20 have so many.
_SIZES = {1: 10, 2: 5, 3: 2, 4: 2, 8: 1}
_LENGTHS_S = (3.0, 30.0)
_LIMITS_MIN = (1, 5)
#: (node, from, to) as shares of the time in which jobs are submitted.
_DRAINS = (("nd02", 0.15, 0.30), ("nd05", 0.55, 0.70))
_RESERVATIONS = (("nd07", 0.25, 0.40), ("nd[03-04]", 0.75, 0.88))
#: A reservation is made so long before it begins.
_NOTICE_S = 10.0
_END_LIMIT_S = 400.0

#: From when to when, epoch s.
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class MainJob:
    name: str
    #: Since the stream's beginning.
    submit_s: float
    nodes: int
    length_s: float
    limit_min: int


@dataclass(frozen=True, slots=True)
class Run:
    """What became of a main job."""

    job: MainJob
    submitted_at_s: float
    #: When its script began, each time.
    began_at_s: tuple[float, ...]
    ended_at_s: float
    hosts: tuple[str, ...]
    #: As the accounting has them, one for each time that it ran.
    states: tuple[str, ...]

    @property
    def wait_s(self) -> float:
        return self.began_at_s[0] - self.submitted_at_s

    @property
    def is_sound(self) -> bool:
        """It ran once and to its end: it neither failed nor was requeued or cancelled."""
        return self.states == ("COMPLETED",) and len(self.began_at_s) == 1


@dataclass(slots=True)
class Played:
    """What became of a stream."""

    began_at_s: float
    hosts: tuple[str, ...]
    runs: list[Run] = field(default_factory=list)
    #: When a node was drained or reserved, by host.
    out: dict[str, list[Interval]] = field(default_factory=dict)
    #: What `sinfo -R` says at the end, when all nodes that the stream drained are resumed.
    drained: tuple[str, ...] = ()

    @property
    def ended_at_s(self) -> float:
        return max(run.ended_at_s for run in self.runs)

    @property
    def makespan_s(self) -> float:
        return self.ended_at_s - self.began_at_s

    @property
    def busy_node_s(self) -> float:
        return sum(len(r.hosts) * (r.ended_at_s - r.began_at_s[0]) for r in self.runs)

    def holes(self, host: str) -> Iterator[Interval]:
        """Return when the node was neither a main job's nor drained nor reserved."""
        runs = [(r.began_at_s[0], r.ended_at_s) for r in self.runs if host in r.hosts]
        free_from_s = self.began_at_s
        for from_s, to_s in sorted([*runs, *self.out.get(host, ())]):
            if from_s > free_from_s:
                yield free_from_s, min(from_s, self.ended_at_s)
            free_from_s = max(free_from_s, to_s)
        if free_from_s < self.ended_at_s:
            yield free_from_s, self.ended_at_s


def draw(jobs: int) -> tuple[MainJob, ...]:
    """Return the stream's first so many jobs, in the order of their submission."""
    rng = random.Random(SEED)  # noqa: S311 - the same numbers each time are wanted
    sizes = rng.choices(list(_SIZES), list(_SIZES.values()), k=jobs)
    lengths = [rng.uniform(*_LENGTHS_S) for _ in sizes]
    limits = [rng.randint(*_LIMITS_MIN) for _ in sizes]
    node_s = sum(size * length_s for size, length_s in zip(sizes, lengths, strict=True))
    every_s = node_s / (NODES * _LOAD * jobs)
    submits = [every_s * (number + rng.random()) for number in range(jobs)]
    return tuple(
        MainJob(f"main-{number:02}", *drawn)
        for number, drawn in enumerate(zip(submits, sizes, lengths, limits, strict=True))
    )


def play(site: Site, jobs: tuple[MainJob, ...], directory: Path) -> Played:
    """Submit the stream, do what administrators do meanwhile, and wait for its end."""
    directory.mkdir()
    submitted: dict[str, float] = {}
    began_at_s = time.time()
    played = Played(began_at_s, site.cluster.nodes)

    def submit(job: MainJob) -> None:
        submitted[job.name] = time.time()
        script = (
            f"#!/bin/sh\ndate +%s.%N >> {directory / job.name}.began\n"
            f"sleep {job.length_s:.2f}\ndate +%s.%N >> {directory / job.name}.ended\n"
        )
        options = ("-p", "batch", "--exclusive", f"--nodes={job.nodes}", "--output=/dev/null")
        limits = (f"--time={job.limit_min}", f"--job-name={job.name}")
        site.slurm("sbatch", "--parsable", *options, *limits, stdin=script)

    deeds: list[tuple[float, Callable[[], None]]] = [
        *((job.submit_s, functools.partial(submit, job)) for job in jobs),
        *_administration(site, jobs[-1].submit_s, played),
    ]
    for at_s, deed in sorted(deeds, key=lambda timed: timed[0]):
        time.sleep(max(began_at_s + at_s - time.time(), 0.0))
        deed()
    is_over = lambda: not site.slurm("squeue", "-h", "-p", "batch", "-o", "%i").strip()  # noqa: E731
    wait_for(is_over, "the stream's end", poll_s=1.0, limit_s=_END_LIMIT_S)
    played.drained = tuple(site.slurm("sinfo", "-h", "-R", "-o", "%n %E").splitlines())
    records = accounting(site)
    played.runs = [_run(job, submitted[job.name], records, directory) for job in jobs]
    return played


def accounting(site: Site) -> tuple[BatchJob, ...]:
    """Return all jobs that have ended, pilots too."""
    with open_lines(site.cluster.log_dir / "jobcomp.log") as lines:
        return read(lines)


def _administration(
    site: Site, span_s: float, played: Played
) -> Iterator[tuple[float, Callable[[], None]]]:
    def control(*words: str) -> None:
        site.slurm("scontrol", *words)

    def end(hosts: Iterable[str], from_s: float) -> None:
        for host in hosts:
            played.out.setdefault(host, []).append((from_s, time.time()))

    for host, from_share, to_share in _DRAINS:
        from_s = span_s * from_share

        def drain(host: str = host) -> None:
            control("update", f"nodename={host}", "state=drain", "reason=stream")

        def resume(host: str = host, from_s: float = from_s) -> None:
            control("update", f"nodename={host}", "state=resume")
            end([host], played.began_at_s + from_s)

        yield from_s, drain
        yield span_s * to_share, resume

    for number, (hosts, from_share, to_share) in enumerate(_RESERVATIONS):
        from_s = span_s * from_share
        name = f"reservation=stream{number}"

        def reserve(hosts: str = hosts, name: str = name, from_s: float = from_s) -> None:
            begins_at_s = played.began_at_s + from_s
            start = f"starttime={datetime.fromtimestamp(begins_at_s):%Y-%m-%dT%H:%M:%S}"  # noqa: DTZ006 - local
            control(
                "create",
                name,
                f"nodes={hosts}",
                "users=root",
                start,
                "duration=60",
                "flags=ignore_jobs",
            )

        def delete(hosts: str = hosts, name: str = name, from_s: float = from_s) -> None:
            control("delete", name)
            names = site.slurm("scontrol", "show", "hostnames", hosts).split()
            end(names, played.began_at_s + from_s)

        yield from_s - _NOTICE_S, reserve
        yield span_s * to_share, delete


def _run(job: MainJob, submitted_at_s: float, ended: Iterable[BatchJob], directory: Path) -> Run:
    records = [record for record in ended if record.name == job.name]
    return Run(
        job=job,
        submitted_at_s=submitted_at_s,
        began_at_s=_moments(directory / f"{job.name}.began"),
        ended_at_s=max(_moments(directory / f"{job.name}.ended")),
        hosts=records[-1].hosts,
        states=tuple(record.state for record in records),
    )


def _moments(path: Path) -> tuple[float, ...]:
    return tuple(map(float, path.read_text().split()))
