"""Replay a workload on a trace with several policies and seeds, and put the results together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from msgspec.structs import replace

from malletrain.replay import request as requests
from malletrain.replay.assumptions import assumptions
from malletrain.replay.request import Asked
from malletrain.sim.engine import Interrupted, Replay
from malletrain.sim.policies import Policy
from malletrain.sim.results import PolicyResult, ReplayResult
from malletrain.traces.stats import most_idle_nodes, summary
from malletrain.traces.trace import Trace
from malletrain.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Progress:
    policy: str
    seed: int
    #: Of all that is to be done.
    share: float


#: It may raise `Interrupted` to stop early; what there is, is kept.
OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is to be replayed."""

    trace: Trace
    #: The jobs of a seed; the same ones for all of them where a file names them.
    workload: Callable[[int], Workload]
    #: The first is the one that the others are held against.
    policies: Sequence[Policy]
    seeds: Sequence[int]
    request: Asked

    def check(self) -> None:
        """Refuse what cannot apply.

        Raises:
            UsageError: see `request.check`.
        """
        for seed in self.seeds:
            requests.check(self.request, self.trace, self.workload(seed), self.policies)

    def run(
        self, on_progress: OnProgress | None = None, journal: BinaryIO | None = None
    ) -> ReplayResult:
        """Replay all; `journal` gets every decision, a line of JSON each.

        Seed by seed, so that what is there after an interruption can be compared. A run that
        `on_progress` interrupts is kept as far as it came; one that Ctrl-C does is not.
        """
        done: list[PolicyResult] = []
        interruptions: list[str] = []
        try:
            for result, stopped_at_s in self._runs(on_progress, journal):
                done.append(result)
                if stopped_at_s is not None:
                    interruptions.append(
                        f"It was interrupted: {result.policy} with seed {result.seed} goes up to "
                        f"{stopped_at_s:,.0f} s only."
                    )
                    break
        except (KeyboardInterrupt, Interrupted):
            interruptions.append("It was interrupted between two runs; the others are missing.")
        return self._assembled(done, interruptions)

    def _runs(
        self, on_progress: OnProgress | None, journal: BinaryIO | None
    ) -> Iterator[tuple[PolicyResult, float | None]]:
        """Yield results, each with when it was interrupted."""
        num_runs = len(self.seeds) * len(self.policies)
        index = 0
        for seed in self.seeds:
            jobs, options = requests.prepared(self.request, self.workload(seed), seed)
            for policy in self.policies:
                teller = _Teller(
                    on_progress, Progress(policy.name, seed, index / num_runs), 1 / num_runs
                )
                teller(options.from_s, self._end_s)
                replay = Replay(
                    self.trace.intervals,
                    jobs,
                    policy,
                    options,
                    length_s=self.trace.length_s,
                    journal=journal,
                )
                result = replay.run(teller)
                yield result, teller.interrupted_at_s
                index += 1

    @property
    def _end_s(self) -> float:
        until_s = self.request.until_s
        return self.trace.length_s if until_s is None else until_s

    def _assembled(
        self, done: Sequence[PolicyResult], interruptions: Sequence[str]
    ) -> ReplayResult:
        first = self.workload(self.seeds[0])
        is_drawn = any(self.workload(seed).jobs != first.jobs for seed in self.seeds[1:])
        drawn = f", drawn anew for each of {len(self.seeds)} seeds" if is_drawn else ""
        from_s = min(requests.starts_at_s(self.request, self.workload(seed)) for seed in self.seeds)
        most_idle = most_idle_nodes(self.trace, from_s, self._end_s)
        assumed = assumptions(self.request, first, self.policies, self._end_s, most_idle)
        return ReplayResult(
            trace=summary(part(self.trace, from_s, self._end_s)),
            workload=f"{first.description}{drawn}",
            jobs=len(first.jobs),
            settings=tuple(self._settings()),
            assumptions=(*interruptions, *self.trace.notes, *assumed),
            policies=tuple(done),
            is_complete=not interruptions,
        )

    def _settings(self) -> Iterator[str]:
        for name, value in requests.changed(self.request, Asked()).items():
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            yield f"{name} = {shown.lower() if isinstance(value, bool) else shown}"
        if tuple(self.seeds) != (0,):
            yield f"seeds = {', '.join(map(str, self.seeds))}"


class _Teller:
    """Tells how far all runs are; remembers whether it was told to stop."""

    def __init__(self, on_progress: OnProgress | None, start: Progress, share: float) -> None:
        self._on_progress = on_progress
        self._start = start
        self._share = share
        self._from_s: float | None = None
        self.interrupted_at_s: float | None = None

    def __call__(self, at_s: float, end_s: float) -> None:
        if self._from_s is None:
            self._from_s = at_s
        if self._on_progress is None:
            return
        share = self._share * (at_s - self._from_s) / (end_s - self._from_s)
        progress = Progress(self._start.policy, self._start.seed, self._start.share + share)
        try:
            self._on_progress(progress)
        except Interrupted:
            self.interrupted_at_s = at_s
            raise


def part(trace: Trace, from_s: float, until_s: float) -> Trace:
    """Return what a replay of this part sees of the trace, as one that starts at 0."""
    if from_s <= 0 and until_s >= trace.length_s:
        return trace
    origin_s = trace.origin_epoch_s
    return replace(
        trace,
        origin_epoch_s=None if origin_s is None else origin_s + from_s,
        length_s=until_s - from_s,
        intervals=tuple(
            replace(
                piece,
                from_s=max(piece.from_s, from_s) - from_s,
                to_s=min(piece.to_s, until_s) - from_s,
            )
            for piece in trace.intervals
            if piece.from_s < until_s and piece.to_s > from_s
        ),
    )
