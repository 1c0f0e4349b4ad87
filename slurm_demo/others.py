"""The machine's other users: their jobs, and a reservation, at times that are known beforehand."""

from __future__ import annotations

import pwd
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os import getuid
from pathlib import Path

from ClusterShell.NodeSet import NodeSet

from malletrain.devcluster import DevCluster
from malletrain.errors import MalleTrainError

_ALONE_RUNS = 2
_PATIENCE_S = 60.0
_POLL_EVERY_S = 0.01
#: Of main jobs; Slurm knows minutes only.
_TIME_LIMIT_MIN = 1


@dataclass(frozen=True, slots=True)
class Arrival:
    """A main job: when it is submitted, on how many nodes it runs, and for how long."""

    at_s: float
    nodes: int
    seconds: float
    is_in_reservation: bool = False


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes that an administrator keeps for a time, and when that becomes known."""

    known_at_s: float
    from_s: float
    to_s: float
    nodes: tuple[str, ...]
    name: str = "upkeep"


RESERVATION = Reservation(known_at_s=40.0, from_s=70.0, to_s=92.0, nodes=("nd07", "nd08"))
#: They never wait for each other: on a machine without us each would start at once.
ARRIVALS = (
    Arrival(2.0, nodes=1, seconds=15.0),
    Arrival(9.0, nodes=2, seconds=12.0),
    Arrival(16.0, nodes=1, seconds=20.0),
    Arrival(26.0, nodes=4, seconds=10.0),
    Arrival(42.0, nodes=1, seconds=20.0),
    Arrival(48.0, nodes=3, seconds=12.0),
    Arrival(66.0, nodes=1, seconds=15.0),
    Arrival(71.0, nodes=2, seconds=14.0, is_in_reservation=True),
    Arrival(80.0, nodes=2, seconds=12.0),
    Arrival(95.0, nodes=1, seconds=12.0),
    Arrival(100.0, nodes=1, seconds=10.0),
    Arrival(118.0, nodes=8, seconds=8.0),
)


@dataclass(slots=True)
class MainJob:
    """A job of another user, which writes down where and when it runs; times in epoch s."""

    arrival: Arrival
    #: Its script's own record: a line when it begins, and one when it ends.
    record: Path
    submitted_at_s: float
    began_at_s: float | None = None
    ended_at_s: float | None = None
    hosts: tuple[str, ...] = ()

    def look(self) -> None:
        """Read what it has written."""
        if self.ended_at_s is not None or not self.record.exists():
            return
        lines = self.record.read_text().splitlines(keepends=True)
        began_at_s, hosts = lines[0].split()
        self.began_at_s, self.hosts = float(began_at_s), tuple(NodeSet(hosts))
        if len(lines) > 1 and lines[1].endswith("\n"):
            self.ended_at_s = float(lines[1])

    @property
    def is_running(self) -> bool:
        return self.began_at_s is not None and self.ended_at_s is None

    @property
    def waited_s(self) -> float:
        """From before its submission to the first line of its script, or until now."""
        began_at_s = time.time() if self.began_at_s is None else self.began_at_s
        return began_at_s - self.submitted_at_s


@dataclass(slots=True)
class Others:
    """Submits what is due, whenever it is asked to."""

    cluster: DevCluster
    directory: Path
    arrivals: Sequence[Arrival] = ARRIVALS
    reservation: Reservation = RESERVATION
    jobs: list[MainJob] = field(default_factory=list)
    #: From when on they arrive, epoch s.
    began_at_s: float | None = None
    #: From when to when nodes were reserved, epoch s.
    reserved_s: tuple[float, float] | None = None
    _is_reservation_known: bool = False

    def alone_s(self) -> dict[int, float]:
        """Return how long jobs of each size wait on the machine as it is, median of a few."""
        self.directory.mkdir()
        waits_s: dict[int, list[float]] = {}
        for nodes in _ALONE_RUNS * sorted({arrival.nodes for arrival in self.arrivals}):
            self.cluster.wait_until_idle()
            job = self._submit(Arrival(0.0, nodes, 0.0))
            _wait_for(job)
            waits_s.setdefault(nodes, []).append(job.waited_s)
        self.cluster.wait_until_idle()
        return {nodes: statistics.median(waits) for nodes, waits in waits_s.items()}

    def begin(self) -> None:
        """Let them arrive from now on, if they do not yet."""
        self.began_at_s = self.began_at_s or time.time()

    def poll(self) -> None:
        """Do what is due, and look at the jobs."""
        if self.began_at_s is None:
            return
        now_s = time.time() - self.began_at_s
        reservation = self.reservation
        if not self._is_reservation_known and now_s >= reservation.known_at_s:
            self._is_reservation_known = True
            self._reserve(reservation.from_s - now_s)
        if self.reserved_s is None and self._is_reservation_known and now_s >= reservation.to_s:
            self._slurm("scontrol", "delete", f"ReservationName={reservation.name}")
            self.reserved_s = (self.began_at_s + reservation.from_s, time.time())
        for arrival in self.arrivals[len(self.jobs) :]:
            if now_s >= arrival.at_s:
                self.jobs.append(self._submit(arrival))
        for job in self.jobs:
            job.look()

    @property
    def are_over(self) -> bool:
        is_all_there = len(self.jobs) == len(self.arrivals) and self.reserved_s is not None
        return is_all_there and all(job.ended_at_s is not None for job in self.jobs)

    @property
    def reserved_nodes(self) -> tuple[str, ...]:
        """Nodes that are reserved now."""
        if self.began_at_s is None or self.reserved_s is not None:
            return ()
        is_now = time.time() >= self.began_at_s + self.reservation.from_s
        return self.reservation.nodes if is_now else ()

    def node_s(self) -> float:
        """Return the node-seconds that others used, or kept for themselves, now that all is over.

        The time that a main job waited is nobody's, so it counts as idle.
        """
        assert self.reserved_s is not None
        used_s = sum(_node_s(job) for job in self.jobs if not job.arrival.is_in_reservation)
        from_s, to_s = self.reserved_s
        return used_s + (to_s - from_s) * len(self.reservation.nodes)

    # -- Slurm -------------------------------------------------------------------------------------

    def _submit(self, arrival: Arrival) -> MainJob:
        record = self.directory / f"main-{time.monotonic_ns()}"
        script = (
            "#!/bin/sh\n"
            f'echo "$(date +%s.%N) $SLURM_JOB_NODELIST" > {record}.new\n'
            f"mv {record}.new {record}\n"
            f"sleep {arrival.seconds}\n"
            f"date +%s.%N >> {record}\n"
        )
        path = record.with_suffix(".sh")
        path.write_text(script)
        options = [f"--nodes={arrival.nodes}", "--exclusive", f"--time={_TIME_LIMIT_MIN}"]
        if arrival.is_in_reservation:
            options.append(f"--reservation={self.reservation.name}")
        job = MainJob(arrival, record, submitted_at_s=time.time())
        self._slurm("sbatch", "-p", "batch", "--output=/dev/null", *options, str(path))
        return job

    def _reserve(self, in_s: float) -> None:
        self._slurm(
            *("scontrol", "create", "reservation", f"ReservationName={self.reservation.name}"),
            *(f"StartTime=now+{round(in_s)}", "Duration=10", "Flags=IGNORE_JOBS"),
            f"Nodes={','.join(self.reservation.nodes)}",
            f"Users={pwd.getpwuid(getuid()).pw_name}",
        )

    def _slurm(self, *command: str) -> None:
        done = self.cluster.run(*command)
        if done.returncode != 0:
            raise MalleTrainError(f"{' '.join(command[:3])}: {done.stderr.strip()}")


def most_at_once(arrivals: Iterable[Arrival], reservation: Reservation, slack_s: float) -> int:
    """Return how many nodes others have at most, if each job ends so much later than it should."""
    spans = [
        (arrival.at_s, arrival.at_s + arrival.seconds + slack_s, arrival.nodes)
        for arrival in arrivals
        if not arrival.is_in_reservation
    ]
    # Jobs that could reach into it are not started on its nodes.
    spans.append((reservation.known_at_s, reservation.to_s + slack_s, len(reservation.nodes)))
    return max(sum(n for begin, end, n in spans if begin <= at_s < end) for at_s, _, _ in spans)


def _node_s(job: MainJob) -> float:
    assert job.began_at_s is not None
    assert job.ended_at_s is not None
    return (job.ended_at_s - job.began_at_s) * job.arrival.nodes


def _wait_for(job: MainJob) -> None:
    gives_up_at_s = time.monotonic() + _PATIENCE_S
    while job.ended_at_s is None:
        if time.monotonic() > gives_up_at_s:
            raise MalleTrainError(
                f"a main job of {job.arrival.nodes} nodes did not run within {_PATIENCE_S:.0f} s "
                f"on the empty machine"
            )
        time.sleep(_POLL_EVERY_S)
        job.look()
