"""Sweep files: the product of lists, as TOML.

```toml
trace = "idle.csv.gz"                   # paths count from this file's directory
jobs = ["workload.toml", "hpo:count=100"]
policies = ["malletrain", "equal-share"]
seeds = [0, 1, 2]

[trace_options]                         # optional: the options by which the trace is read
nodes = 512

[settings]                              # optional: of all runs
ledger = "papers"

[grid]                                  # optional: every combination of these is run
max_parallel = [35, 100]
horizon = ["adaptive", 10, 60]
world.cost_factor = [1, 5, 20]
```

Settings are the options of `malletrain replay`, `_` for `-`: see `request.Asked`; `world.KEY` and
`core.KEY` are those of the world and of the configuration's table `[core]`. Several `[[grid]]` are
run one after the other.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from malletrain.core.settings import CoreSettings
from malletrain.errors import SweepError, UserError
from malletrain.replay.request import Asked, asked
from malletrain.replay.sweep import Run, Sweep
from malletrain.sim.policies import policy
from malletrain.traces.files import named_path
from malletrain.traces.trace import TraceOptions
from malletrain.workloads import tables
from malletrain.workloads.generate import from_text

_MOST_RUNS = 1_000_000

#: The `[core]` table that is given, over the configuration's.
CoreOf = Callable[[Mapping[str, Any]], CoreSettings]


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    trace: str
    jobs: list[str]
    policies: list[str]
    seeds: list[int]
    trace_options: TraceOptions = TraceOptions()
    settings: dict[str, Any] = {}
    grid: dict[str, Any] | list[dict[str, Any]] = {}


def read(path: Path, core_of: CoreOf) -> Sweep:
    """Read a sweep.

    Raises:
        SweepError: in one line, what in which file is wrong.
    """
    try:
        file = msgspec.convert(_table(path), _File)
        return _sweep(path.parent, file, core_of)
    except OSError as error:
        raise SweepError(f"cannot read sweep {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SweepError(f"{path}: not UTF-8 text: {error.reason}") from error
    except msgspec.ValidationError as error:
        table = TraceOptions if "`$.trace_options" in str(error) else _File
        known = ", ".join(table.__struct_fields__)
        raise SweepError(f"{path}: {error}; its keys are {known}") from error
    except UserError as error:
        raise SweepError(f"{path}: {error}") from error


def _table(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SweepError(f"not TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        raise SweepError("it has numbers too long or tables too deep") from error


def _sweep(directory: Path, file: _File, core_of: CoreOf) -> Sweep:
    _check_size(file)
    for name in ("jobs", "policies", "seeds"):
        _check_list(name, getattr(file, name))
    for name in file.policies:
        policy(name)
    if min(file.seeds) < 0:
        raise SweepError(f"seeds has {min(file.seeds)}: they must be 0 or more")
    requests = list(_requests(file, core_of))
    jobs = [_placed(directory, text) for text in file.jobs]
    return Sweep(
        trace=directory / named_path(file.trace),
        trace_options=file.trace_options,
        runs=tuple(
            Run(jobs=text, policy=name, seed=seed, request=request)
            for text, request, seed, name in itertools.product(
                jobs, requests, file.seeds, file.policies
            )
        ),
    )


def _check_size(file: _File) -> None:
    """Refuse more runs than anyone can wait for before any of them is looked at."""
    points = sum(
        math.prod(len(values) for values in _flat(grid).values() if isinstance(values, list))
        for grid in _grids(file)
    )
    num_runs = points * len(file.jobs) * len(file.policies) * len(file.seeds)
    if num_runs > _MOST_RUNS:
        raise SweepError(f"it asks for {num_runs:,} runs: there may be {_MOST_RUNS:,}")


def _check_list(name: str, values: Sequence[Any]) -> None:
    if not values:
        raise SweepError(f"{name} is empty: there is nothing to run")
    seen = set()
    for value in values:
        key = repr(value) if isinstance(value, list | dict) else value
        if key in seen:
            raise SweepError(f"{name} has {tables.show(value)} twice")
        seen.add(key)


def _placed(directory: Path, text: str) -> str:
    if from_text(text) is not None:
        return text
    return str(directory / named_path(text))


def _requests(file: _File, core_of: CoreOf) -> Iterator[Asked]:
    """Yield what each combination asks for, once."""
    seen: set[bytes] = set()
    settings = _flat(file.settings)
    for grid in _grids(file):
        for point in _points(_flat(grid), settings):
            request = _request({**settings, **point}, core_of)
            key = msgspec.json.encode(request)
            if key not in seen:
                seen.add(key)
                yield request


def _grids(file: _File) -> list[dict[str, Any]]:
    return file.grid if isinstance(file.grid, list) else [file.grid]


def _points(grid: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for key, values in grid.items():
        if not isinstance(values, list):
            raise SweepError(f"grid has {key} = {tables.show(values)}: it must be a list")
        if key in settings:
            raise SweepError(f"{key} is both in settings and in grid: remove one")
        _check_list(f"grid's {key}", values)
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted key, whether it was written so or as tables."""
    found: dict[str, Any] = {}
    for dotted, value in _items(table):
        if dotted in found:
            raise SweepError(f"{dotted} is given twice")
        found[dotted] = value
    return found


def _items(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if value and isinstance(value, dict):
            yield from ((f"{key}.{inner}", below) for inner, below in _items(value))
        else:
            yield key, value


def _request(flat: Mapping[str, Any], core_of: CoreOf) -> Asked:
    table: dict[str, Any] = {}
    for dotted, value in flat.items():
        *parents, last = dotted.split(".")
        inner = table
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise SweepError(f"{dotted}: {parent} is given as a value too")
        inner[last] = value
    core = core_of(table.pop("core", {}))
    return asked(table, core)
