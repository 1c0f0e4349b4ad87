"""Workload files: malleable jobs and their models' curves, as JSON or TOML.

```toml
source = "our group, spring"        # optional, for reports

[curves]                            # name = [[nodes, samples/s], ...], the first at 1 node
resnet = [[1, 2400.0], [8, 18000.0], [64, 120000.0]]

[[jobs]]
job = "baseline"                    # its id
scalability = "resnet"              # a curve's name
max_nodes = 64
scale_up_cost_s = 18.0              # what a rescale stalls it
scale_down_cost_s = 12.0
work_samples = 1.3e8                # without it, the job never ends
min_nodes = 1                       # this and the rest: the defaults
submitted_at_s = 0.0                # from the trace's start
class = ""                          # what reports count it under; "" is its curve
owner = ""
weight = 1.0
deadline_s = 86400.0                # from its submission; without it, there is none

[[sets]]                            # many jobs that are alike: "trial-001", "trial-002", ...
job = "trial"
count = 200
every_s = 60.0                      # between submissions, the first at submitted_at_s; default 0
# ... and the keys of a job
```

JSON has the same keys; `null` is a key that is not there. A `[generate]` table in the place of
curves, jobs and sets draws them: see `generate`.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from malletrain.errors import WorkloadError
from malletrain.workloads import tables
from malletrain.workloads.generate import KINDS, from_table, generate
from malletrain.workloads.workload import MalleableJob, TrueCurve, Workload

_MOST_JOBS = 100_000
_MOST_NODES = 1_000_000
#: Slower than once in thirty years nothing is trained.
_LEAST_SAMPLES_PER_S = 1e-9
_MOST_SAMPLES_PER_S = 1e12
_BOUNDS: dict[str, tuple[float, float]] = {
    "min_nodes": (1, _MOST_NODES),
    "max_nodes": (1, _MOST_NODES),
    "work_samples": (1, 1e18),
    "weight": (1e-6, 1e6),
    "count": (1, _MOST_JOBS),
    "trace_start_epoch_s": (0, 1e11),
}


class _JobTable(Struct, frozen=True, kw_only=True):
    job: str
    scalability: str
    submitted_at_s: float = 0.0
    min_nodes: int = 1
    max_nodes: int
    work_samples: float | None = None
    scale_up_cost_s: float
    scale_down_cost_s: float
    job_class: str = msgspec.field(name="class", default="")
    owner: str = ""
    weight: float = 1.0
    #: From its submission.
    deadline_s: float | None = None


class _SetTable(_JobTable, frozen=True, kw_only=True):
    count: int
    every_s: float = 0.0


class _File(Struct, frozen=True, kw_only=True):
    source: str = ""
    #: Of the papers' files, which name the trace they go with; times count from its start.
    #: As the papers' files have it; times count from the trace's start, whenever that was.
    trace_start_epoch_s: float | None = None
    curves: dict[str, Any] = {}
    jobs: list[dict[str, Any]] = []
    sets: list[dict[str, Any]] = []
    generate: dict[str, Any] | None = None


def read(path: Path, seed: int = 0) -> Workload:
    """Read a workload, in order of submission; `seed` is for a `[generate]` that names none.

    Raises:
        WorkloadError: in one line, where in which file, what it has and what it may have.
    """
    try:
        return _workload(path, tables.read(_File, _table(path), _BOUNDS), seed)
    except OSError as error:
        hint = f" (a generator is one of {', '.join(KINDS)})" if not path.suffix else ""
        raise WorkloadError(f"cannot read workload {path}: {error.strerror}{hint}") from error
    except WorkloadError as error:
        raise WorkloadError(f"{path}: {error}") from error


def _table(path: Path) -> dict[str, Any]:
    """Return the file's text as the tables that it spells."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix != ".json":
            raise WorkloadError("a workload's name must end in .json or .toml")
        table = json.loads(text, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise WorkloadError(f"not UTF-8 text: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise WorkloadError(
            f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise WorkloadError(f"not TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        raise WorkloadError("not a workload: it has numbers too long or tables too deep") from error
    if not isinstance(table, dict):
        raise WorkloadError("not a workload: it must be an object with curves and jobs")
    return table


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that stands twice: JSON's readers would take the last one silently.

    A key that is null is none.
    """
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise WorkloadError(f"key {tables.show(twice)} stands twice in one object: remove one")
    return {key: value for key, value in pairs if value is not None}


def _workload(path: Path, file: _File, seed: int) -> Workload:
    if file.generate is not None:
        if file.jobs or file.sets or file.curves:
            raise WorkloadError("generate draws jobs and curves: remove jobs, sets and curves")
        try:
            drawn = generate(from_table(file.generate), seed)
        except WorkloadError as error:
            raise WorkloadError(f"generate: {error}") from error
        return msgspec.structs.replace(
            drawn, name=path.stem, description=f"{path}: {drawn.description}"
        )
    curves = {name: _curve(name, points) for name, points in file.curves.items()}
    jobs = list(_jobs(file, curves))
    if not jobs:
        raise WorkloadError("it has no job: jobs and sets are empty")
    source = f" ({file.source})" if file.source else ""
    return Workload(
        name=path.stem,
        jobs=tuple(sorted(jobs, key=lambda job: job.submitted_at_s)),
        curves=curves,
        description=f"{path}{source}",
    )


def _curve(name: str, points: Any) -> TrueCurve:
    _check_printable("curve", name)
    try:
        pairs = msgspec.convert(points, list[tuple[float, float]])
    except msgspec.ValidationError as error:
        raise WorkloadError(
            f"curve {tables.show(name)} = {tables.show(points)}: it must be a list of"
            " [nodes, samples/s]"
        ) from error
    if pairs and pairs[0] == (0, 0):
        del pairs[0]
    try:
        return _checked_curve(pairs)
    except WorkloadError as error:
        raise WorkloadError(f"curve {tables.show(name)}: {error}") from error


def _checked_curve(pairs: Sequence[tuple[float, float]]) -> TrueCurve:
    last = 0.0
    for nodes, samples_per_s in pairs:
        if not (math.isfinite(nodes) and nodes.is_integer()):
            raise WorkloadError(f"{nodes:g} nodes: it must be a whole number")
        if nodes <= last and last:
            raise WorkloadError(f"{nodes:g} nodes follow {last:g}: sort its points, one a number")
        if not last and nodes != 1:
            raise WorkloadError(f"its first point is at {nodes:g} nodes: it must be at 1 node")
        if nodes > _MOST_NODES:
            raise WorkloadError(f"{nodes:g} nodes: they must be at most {_MOST_NODES}")
        if not _LEAST_SAMPLES_PER_S <= samples_per_s <= _MOST_SAMPLES_PER_S:
            raise WorkloadError(
                f"{samples_per_s:g} samples/s at {nodes:g} nodes: they must be from"
                f" {_LEAST_SAMPLES_PER_S:g} to {_MOST_SAMPLES_PER_S:g}"
            )
        last = nodes
    if not pairs:
        raise WorkloadError("it has no points: it must have one at 1 node")
    return TrueCurve(
        nodes=tuple(int(nodes) for nodes, _ in pairs),
        samples_per_s=tuple(samples_per_s for _, samples_per_s in pairs),
    )


def _jobs(file: _File, curves: dict[str, TrueCurve]) -> Iterator[MalleableJob]:
    #: Where the job of each id stands.
    places: dict[str, str] = {}
    for place, kind, table in _placed(file):
        try:
            for job in _jobs_of(tables.read(kind, table, _BOUNDS), curves):
                _take_id(job.id, place, places)
                yield job
        except WorkloadError as error:
            raise WorkloadError(f"{place}: {error}") from error


def _placed(file: _File) -> Iterator[tuple[str, type[_JobTable], dict[str, Any]]]:
    """Yield each table with words for where it stands: `job 17 ('J00016')`."""
    lists: tuple[tuple[str, type[_JobTable], list[dict[str, Any]]], ...] = (
        ("job", _JobTable, file.jobs),
        ("set", _SetTable, file.sets),
    )
    for what, kind, rows in lists:
        for number, table in enumerate(rows, 1):
            identifier = f" ({tables.show(table['job'])})" if "job" in table else ""
            yield f"{what} {number}{identifier}", kind, table


def _take_id(identifier: str, place: str, places: dict[str, str]) -> None:
    if identifier in places:
        raise WorkloadError(
            f"the id {tables.show(identifier)} is also of {places[identifier]}:"
            " each job needs its own"
        )
    places[identifier] = place
    if len(places) > _MOST_JOBS:
        raise WorkloadError(f"there may be {_MOST_JOBS} jobs in a file; this is one more")


def _jobs_of(table: _JobTable, curves: dict[str, TrueCurve]) -> Iterator[MalleableJob]:
    _check(table, curves)
    if not isinstance(table, _SetTable):
        yield _job(table, table.job, table.submitted_at_s)
        return
    width = len(str(table.count))
    for index in range(table.count):
        name = f"{table.job}-{index + 1:0{width}d}"
        yield _job(table, name, table.submitted_at_s + index * table.every_s)


def _check(table: _JobTable, curves: dict[str, TrueCurve]) -> None:
    _check_printable("job", table.job)
    for key, text in (("class", table.job_class), ("owner", table.owner)):
        if text:
            _check_printable(key, text)
    if table.min_nodes > table.max_nodes:
        raise WorkloadError(
            f"min_nodes = {table.min_nodes} is more than max_nodes = {table.max_nodes}"
        )
    if table.scalability not in curves:
        known = tables.suggest(table.scalability, curves, "curves")
        raise WorkloadError(f"scalability = {tables.show(table.scalability)} is no curve: {known}")
    end = curves[table.scalability].nodes[-1]
    if table.max_nodes > end:
        raise WorkloadError(
            f"max_nodes = {table.max_nodes}, but curve {tables.show(table.scalability)} ends at"
            f" {end} nodes: lower max_nodes, or give the curve a point there"
        )


def _check_printable(key: str, name: str) -> None:
    if not name.strip() or not name.isprintable():
        raise WorkloadError(f"{key} = {tables.show(name)}: it must be a name, on one line")


def _job(table: _JobTable, identifier: str, submitted_at_s: float) -> MalleableJob:
    deadline_s = table.deadline_s
    return MalleableJob(
        id=identifier,
        curve=table.scalability,
        submitted_at_s=submitted_at_s,
        min_nodes=table.min_nodes,
        max_nodes=table.max_nodes,
        work_samples=table.work_samples,
        scale_up_s=table.scale_up_cost_s,
        scale_down_s=table.scale_down_cost_s,
        job_class=table.job_class,
        owner=table.owner,
        weight=table.weight,
        deadline_at_s=None if deadline_s is None else submitted_at_s + deadline_s,
    )
