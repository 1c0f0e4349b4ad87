"""Sweeps: many runs, each of which leaves one file once it is done, so that none is done twice.

A run's file is named by all that it depends on: the contents of trace and jobs, every setting, and
the version of this package. What is there is never computed again; what was changed has another
name.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from malletrain import __version__
from malletrain.errors import SweepError, UsageError
from malletrain.replay.request import ADAPTIVE, Asked, changed, check, flat, prepared, workload
from malletrain.replay.whole_files import whole_file
from malletrain.sim.engine import Replay
from malletrain.sim.policies import policy
from malletrain.sim.results import PolicyResult
from malletrain.traces.load import load
from malletrain.traces.trace import Trace, TraceOptions
from malletrain.workloads.generate import from_text

#: One value a run; the rest of its result is lists.
Row = dict[str, str | int | float | bool | None]
_RUNS = "runs"


class Run(Struct, frozen=True, kw_only=True):
    #: A file or a generator.
    jobs: str
    policy: str
    seed: int
    request: Asked

    @property
    def label(self) -> str:
        given = changed(self.request, Asked()).items()
        settings = [f"{name} = {value}" for name, value in given]
        return ", ".join((self.jobs, self.policy, f"seed {self.seed}", *settings))


class Sweep(Struct, frozen=True, kw_only=True):
    trace: Path
    trace_options: TraceOptions
    runs: tuple[Run, ...]


class Store:
    """The files of a sweep's runs, in a directory."""

    def __init__(self, directory: Path, sweep: Sweep) -> None:
        """Take note of what all runs depend on.

        Raises:
            SweepError: the directory or an input cannot be used.
        """
        self.sweep = sweep
        self._directory = directory / _RUNS
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._trace_digest = _digest(sweep.trace)
            texts = dict.fromkeys(run.jobs for run in sweep.runs)
            self._jobs_digests = {text: _digest_of_jobs(text) for text in texts}
        except OSError as error:
            raise SweepError(f"cannot use {error.filename}: {error.strerror}") from error

    def check(self) -> None:
        """Refuse what cannot apply, before any run of it.

        Raises:
            SweepError: which settings, which of them, and why.
        """
        try:
            trace = self.trace()
        except UsageError as error:
            raise SweepError(f"trace_options: {error}") from error
        # Those of one combination follow each other.
        for (jobs, _), group in itertools.groupby(
            self.sweep.runs, lambda run: (run.jobs, id(run.request))
        ):
            runs = list(group)
            policies = [policy(name) for name in dict.fromkeys(run.policy for run in runs)]
            first_of_seed = {run.seed: run for run in reversed(runs)}
            for seed, run in sorted(first_of_seed.items()):
                try:
                    check(run.request, trace, workload(jobs, seed), policies)
                except UsageError as error:
                    raise SweepError(f"{run.label}: {error}") from error

    def is_done(self, run: Run) -> bool:
        return self._result(run) is not None

    def trace(self) -> Trace:
        return load(self.sweep.trace, self.sweep.trace_options)

    def execute(self, run: Run, trace: Trace) -> None:
        """Replay one run, and keep what came of it: all of it or nothing."""
        jobs, options = prepared(run.request, workload(run.jobs, run.seed), run.seed)
        replay = Replay(trace.intervals, jobs, policy(run.policy), options, length_s=trace.length_s)
        result = msgspec.json.encode(_scalars(replay.run()))
        with whole_file(self._path(run)) as draft:
            draft.write_bytes(result)

    def rows(self) -> Iterator[Row]:
        """Yield the rows of all runs that are done, in the sweep's order."""
        for run in self.sweep.runs:
            if (result := self._result(run)) is not None:
                yield {"trace": str(self.sweep.trace), **_settings(run), **result}

    def inputs(self) -> Iterator[Path]:
        """Yield the files that are read."""
        yield self.sweep.trace
        yield from (Path(text) for text in self._jobs_digests if from_text(text) is None)

    def _result(self, run: Run) -> Row | None:
        """Return what was kept of a run; None if there is nothing, or no more that can be read."""
        try:
            return msgspec.json.decode(self._path(run).read_bytes(), type=Row)
        except (OSError, UnicodeDecodeError, msgspec.DecodeError):
            return None

    def _path(self, run: Run) -> Path:
        inputs = (
            __version__,
            self._trace_digest,
            self.sweep.trace_options,
            self._jobs_digests[run.jobs],
            run.policy,
            run.seed,
            run.request,
        )
        name = hashlib.sha256(msgspec.json.encode(inputs)).hexdigest()[:32]
        return self._directory / f"{name}.json"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of_jobs(text: str) -> str:
    return text if from_text(text) is not None else _digest(Path(text))


def _settings(run: Run) -> Row:
    """Return every setting, those that were not given too."""
    request = run.request
    settings = flat(request)
    fixed_s = settings.pop("core.horizon.fixed_s")
    objective = settings.pop("core.objective")
    horizon: Any = request.horizon if request.horizon is not None else fixed_s
    shown = f"{horizon:.12g}" if isinstance(horizon, float) else ADAPTIVE
    settings |= {"objective": request.objective or objective, "horizon": shown}
    # Each policy has its own.
    del settings["core.advisor.kind"]
    return {"jobs": run.jobs, "policy": run.policy, "seed": run.seed, **settings}


def _scalars(result: PolicyResult) -> Row:
    plain = msgspec.to_builtins(result)
    del plain["policy"], plain["seed"]
    node_s = {f"{use}_node_s": amount for use, amount in plain.pop("node_s").items()}
    scalars = {name: value for name, value in plain.items() if not isinstance(value, tuple | dict)}
    return {**scalars, **node_s}
