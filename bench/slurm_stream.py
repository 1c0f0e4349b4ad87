"""A stream of main jobs with us and without: what harm we do, and what we make of what is idle.

The stream of `bench.main_stream` is played twice, each time on a fresh one-machine Slurm with
eight nodes: without us, and with us while two malleable jobs that never end could use all nodes
(8 and 4 at most). They train on the emulated device.

A hole is a time in which a node is neither a main job's (from the start of its script to its end)
nor drained nor reserved, from the stream's beginning to its last job's end. The oracle knows all
holes beforehand and trains on every idle node-second of them but the start-up of each: S seconds,
as one pilot on the idle cluster takes from its start in Slurm until its worker trains, measured
before the stream. A hole shorter than S gives it nothing; those that are there at the beginning
have no start-up, as our pilots run by then. It knows nothing of walltimes: where a job waits and is
planned to start within a minute, Slurm starts no pilot, as a job's least walltime is a minute, but
the oracle trains.

Ours is what the journal's ledger calls training (profiling is training too) within the same time,
less all time in which pilots held a node outside of holes.

Two starts are in order where they lie `_TIE_S` apart without us: the scheduler plans once a
second, and a job that waits hears of a free node up to half a second later.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import Result
from bench.harvesting import Site, settings_text, wait_for
from bench.main_stream import NODES, Interval, Played, accounting, draw, play
from malletrain.core.events import AnyEvent, RescaleDone
from malletrain.core.ledger import NodeSeconds
from malletrain.devcluster import Settings
from malletrain.devcluster.daemons import program
from malletrain.impact.accounting import BatchJob
from malletrain.impact.pilots import divide
from malletrain.impact.stays import Held, held
from malletrain.live.store import read_history

JOBS = 60
_GRACE_S = 10
_TIE_S = 1.5
_MAKESPAN_LIMIT = 1.0
_SHARE_LIMIT = 85.0
#: Long enough for any stream.
_EPOCHS = 100_000
_END_WITHIN_S = 30.0
#: A stream of hours in minutes: holes are looked for twelve times as often as by default, and
#: pilots wait again sooner after a node was taken, as this scheduler plans every second.
_SETTINGS = settings_text(_GRACE_S, "query_every_s = 10.0\ncalm_s = 1.5")


@dataclass(frozen=True, slots=True)
class Harvest:
    """What we did beside the stream."""

    #: Of one pilot alone: from its start until its worker trains.
    start_up_s: float
    #: The same of each pilot of the stream that came to train.
    start_ups_s: tuple[float, ...]
    held: Held
    #: Names of programs.
    left_over: tuple[str, ...]
    #: All jobs that ended, ours too.
    accounting: tuple[BatchJob, ...]


def run(jobs: int = JOBS) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="mt-") as directory:
        alone = play_alone(Path(directory), jobs)
    with tempfile.TemporaryDirectory(prefix="mt-") as directory:
        with_us, harvest = play_with_us(Path(directory), jobs)
    yield _deviations()
    yield from harm(alone, with_us, harvest)
    yield from gain(with_us, harvest)


def _deviations() -> Result:
    """Tell which settings are not the defaults: those of the file."""
    settings = list(_flat(tomllib.loads(_SETTINGS), ""))
    return Result(f"settings other than the defaults: {', '.join(settings)}", len(settings), "keys")


def _flat(table: dict[str, Any], where: str) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key} = {value}"


def play_alone(directory: Path, jobs: int) -> Played:
    with Site(directory, Settings(nodes=NODES, grace_s=_GRACE_S)) as site:
        return play(site, draw(jobs), directory / "record")


def play_with_us(directory: Path, jobs: int) -> tuple[Played, Harvest]:
    with Site(directory, Settings(nodes=NODES, grace_s=_GRACE_S)) as site:
        site.up(_SETTINGS)
        start_up_s = _start_up_s(site)
        for name, most in (("wide", 8), ("narrow", 4)):
            site.submit(name, most, _EPOCHS)
        site.wait_training(NODES)
        played = play(site, draw(jobs), directory / "record")
        site.down()
        left_over = _left_over(site)
        ended = accounting(site)
        history = read_history(site.state_dir.journal_path)
    ours = held(history.snapshot, history.events, played.began_at_s, played.ended_at_s)
    start_ups_s = tuple(_start_ups_s(played, ended, ours, history.events))
    return played, Harvest(start_up_s, start_ups_s, ours, left_over, ended)


def _start_up_s(site: Site) -> float:
    """Return how long a pilot takes until it trains, where nothing else starts."""
    job_id = site.submit("first", 1, _EPOCHS)
    wait_for(lambda: "allocated" in site.cluster.states().values(), "a pilot's start", poll_s=0.05)
    began_s = time.monotonic()
    site.wait_training(1)
    start_up_s = time.monotonic() - began_s
    with site.client() as client:
        client.order(job_id, "cancel")
    return start_up_s


def _start_ups_s(
    played: Played, ended: Iterable[BatchJob], ours: Held, events: Iterable[AnyEvent]
) -> Iterator[float]:
    """Return how long pilots took to train, with whatever else this machine did meanwhile."""
    trains_at_s: dict[str, float] = {}
    for event in events:
        if isinstance(event, RescaleDone):
            for node_id in event.node_ids:
                trains_at_s.setdefault(node_id, event.at_s)
    queue = divide(ended, {stay.pilot_id for stay in ours.stays}, ())
    for stay in ours.stays:
        pilot, at_s = queue.pilot_of(stay), trains_at_s.get(stay.node_id)
        started_at_s = pilot.started_at_s if pilot else None
        if at_s is not None and started_at_s is not None and started_at_s >= played.began_at_s:
            yield at_s - started_at_s


def _left_over(site: Site) -> tuple[str, ...]:
    """Return what runs on the nodes once pilots had time to end."""
    end_at_s = time.monotonic() + _END_WITHIN_S
    while (left := site.left_over()) and time.monotonic() < end_at_s:
        time.sleep(0.1)
    return tuple(program(pid) for pid in left)


# -- harm ------------------------------------------------------------------------------------------


def harm(alone: Played, with_us: Played, harvest: Harvest) -> Iterator[Result]:
    jobs = len(with_us.runs)
    load = 100.0 * alone.busy_node_s / (NODES * alone.makespan_s)
    yield Result(f"share of the nodes that {jobs} main jobs use without us", load, "%")
    pairs, swapped = _swapped(alone, with_us)
    yield Result(
        f"pairs of main jobs that start in the other order, of {pairs} that start more than "
        f"{_TIE_S:g} s apart without us",
        *(swapped, "pairs", "none", swapped == 0),
    )
    longer = 100.0 * (with_us.makespan_s / alone.makespan_s - 1.0)
    yield Result(
        f"makespan, {with_us.makespan_s:.1f} s, over {alone.makespan_s:.1f} s without us",
        *(longer, "%", f"<= {_MAKESPAN_LIMIT:g} %", longer <= _MAKESPAN_LIMIT),
    )
    unsound = sum(not run.is_sound for run in with_us.runs)
    yield Result(
        "main jobs that failed, were requeued or cancelled",
        *(unsound, "jobs", "none", unsound == 0),
        *("without us", sum(not run.is_sound for run in alone.runs)),
    )
    drained = len(with_us.drained)
    yield Result(
        "nodes left drained that the stream did not drain",
        *(drained, "nodes", "none", drained == 0),
    )
    names = f" ({', '.join(harvest.left_over)})" if harvest.left_over else ""
    left = len(harvest.left_over)
    yield Result(f"processes left on nodes{names}", left, "processes", "none", left == 0)
    added = [
        run.wait_s - before.wait_s for run, before in zip(with_us.runs, alone.runs, strict=True)
    ]
    yield Result(
        "wait of main jobs, added in the median",
        *(statistics.median(added), "s"),
        reference="their median wait without us",
        reference_value=statistics.median(run.wait_s for run in alone.runs),
    )
    yield Result(
        "wait of main jobs, added at most",
        *(max(added), "s"),
        reference="their longest wait without us",
        reference_value=max(run.wait_s for run in alone.runs),
    )


def _swapped(alone: Played, with_us: Played) -> tuple[int, int]:
    """Return how many pairs start in an order without us, and how many in the other with us."""
    starts = sorted(
        (before.began_at_s[0] - alone.began_at_s, run.began_at_s[0])
        for before, run in zip(alone.runs, with_us.runs, strict=True)
    )
    pairs = [
        (first, second)
        for first, second in itertools.combinations(starts, 2)
        if second[0] - first[0] > _TIE_S
    ]
    return len(pairs), sum(second[1] < first[1] for first, second in pairs)


# -- gain ------------------------------------------------------------------------------------------


def gain(played: Played, harvest: Harvest) -> Iterator[Result]:
    holes = {host: list(played.holes(host)) for host in played.hosts}
    lengths_s = [end - begin for ours in holes.values() for begin, end in ours]
    idle_node_s = sum(lengths_s)
    oracle_node_s = _oracle_node_s(played, holes, harvest.start_up_s)
    node_s = harvest.held.node_s
    in_holes_node_s = _held_in(harvest.held, holes)
    outside_node_s = harvest.held.node_s.offered - in_holes_node_s
    training_node_s = node_s.training + node_s.profiling - outside_node_s
    share = 100.0 * training_node_s / oracle_node_s
    yield Result(
        f"training, of the oracle's node-seconds, whose start-up takes {harvest.start_up_s:.1f} s",
        *(share, "%", f">= {_SHARE_LIMIT:g} %", share >= _SHARE_LIMIT),
    )
    yield Result(
        f"oracle's node-seconds in {len(lengths_s)} holes of {statistics.median(lengths_s):.0f} s "
        f"in the median",
        *(oracle_node_s, "node-s"),
        reference="all that was idle",
        reference_value=idle_node_s,
    )
    loaded_s = statistics.median(harvest.start_ups_s or (harvest.start_up_s,))
    loaded_node_s = _oracle_node_s(played, holes, loaded_s)
    yield Result(
        f"the same, were the oracle's start-up what it was for {len(harvest.start_ups_s)} pilots "
        f"in the median, {loaded_s:.1f} s, as all nodes share this machine",
        *(100.0 * training_node_s / loaded_node_s, "%"),
    )
    pilots = _overlaps(_pilot_runs(played, harvest.accounting), holes)
    parts = {
        "training": training_node_s,
        "without a pilot": idle_node_s - pilots,
        "pilot starting, its agent has not called": pilots - in_holes_node_s,
        **_parts(node_s),
        "pilot outside of holes: of main jobs, drained or reserved": outside_node_s,
    }
    for what, part_node_s in parts.items():
        yield Result(f"of all that was idle: {what}", 100.0 * part_node_s / idle_node_s, "%")


def _oracle_node_s(played: Played, holes: dict[str, list[Interval]], start_up_s: float) -> float:
    intervals = [hole for ours in holes.values() for hole in ours]
    return sum(
        end - begin if begin == played.began_at_s else max(end - begin - start_up_s, 0.0)
        for begin, end in intervals
    )


def _parts(node_s: NodeSeconds) -> dict[str, float]:
    return {
        "worker starting, rescaling": node_s.rescaling,
        "trained and lost": node_s.preempted,
        "agent there, no job on it": node_s.idle,
    }


def _held_in(ours: Held, holes: dict[str, list[Interval]]) -> float:
    stays = (
        (stay.host, (stay.joined_at_s, ours.to_s if stay.gone_at_s is None else stay.gone_at_s))
        for stay in ours.stays
    )
    return _overlaps(stays, holes)


def _pilot_runs(played: Played, ended: Iterable[BatchJob]) -> Iterator[tuple[str, Interval]]:
    """Return when a pilot held a host, in whole seconds."""
    mains = {run.job.name for run in played.runs}
    for job in ended:
        if job.name not in mains and job.started_at_s is not None and job.ended_at_s is not None:
            yield from ((host, (job.started_at_s, job.ended_at_s)) for host in job.hosts)


def _overlaps(stays: Iterable[tuple[str, Interval]], holes: dict[str, list[Interval]]) -> float:
    """Return the node-seconds of stays that lie in holes."""
    return sum(
        max(min(to_s, end) - max(from_s, begin), 0.0)
        for host, (from_s, to_s) in stays
        for begin, end in holes.get(host, ())
    )
