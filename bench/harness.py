"""How benchmarks are found, run and reported: `python -m bench [NAME...] [--json]`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

#: Benchmark -> its module, which has `run() -> Iterator[Result]`. Only those asked for are
#: imported, so that one that needs PyTorch keeps no other from running.
BENCHMARKS = {
    "allocate": "bench.allocate",
    "controller": "bench.controller",
    "journal": "bench.journal",
    "rescale": "bench.rescale",
    "system": "bench.system",
    "overhead": "bench.overhead",
    "replay": "bench.replay",
    "replay-papers": "bench.replay_papers",
    "replay-learning": "bench.replay_learning",
    "replay-objective": "bench.replay_objective",
    "replay-costs": "bench.replay_costs",
    "replay-placement": "bench.replay_placement",
    "replay-nas": "bench.replay_nas",
    "replay-horizon": "bench.replay_horizon",
    "slurm-delay": "bench.slurm_delay",
    "slurm-stream": "bench.slurm_stream",
    "slurm-faults": "bench.slurm_faults",
}


class NotRunError(Exception):
    """The benchmark cannot run here; the message says for want of what."""


@dataclass(frozen=True, slots=True)
class Result:
    """One measured figure, and what it is held against."""

    name: str
    value: float
    unit: str
    #: What the product must reach, in words; empty for a figure that is only told.
    target: str = ""
    holds: bool = True
    #: What was measured beside it in the same run, in the same unit.
    reference: str | None = None
    reference_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times the value the reference is: where less is better, by how much it wins."""
        if self.reference_value is None or self.value == 0:
            return None
        return self.reference_value / self.value

    def to_json(self) -> str:
        order = (
            "name", "value", "unit", "reference", "reference_value", "ratio", "target", "holds",
        )  # fmt: skip
        fields = dataclasses.asdict(self) | {"ratio": self.ratio}
        return json.dumps({key: fields[key] for key in order})


def main(arguments: list[str] | None = None) -> int:
    """Run the named benchmarks, or all; 1 if one could not run. A missed target is told only."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", action="store_true", help="one object a line")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    console = Console()
    code = 0
    for name in asked.names or BENCHMARKS:
        try:
            results = _results(name)
            if asked.json:
                for result in results:
                    print(result.to_json(), flush=True)
            else:
                console.print(_table(name, results))
        except ModuleNotFoundError as error:
            print(f"{name}: not run, for want of the module {error.name}", file=sys.stderr)
            code = 1
        except NotRunError as error:
            print(f"{name}: not run, {error}", file=sys.stderr)
            code = 1
    return code


def _results(name: str) -> Iterator[Result]:
    results: Iterator[Result] = importlib.import_module(BENCHMARKS[name]).run()
    return results


def _table(name: str, results: Iterator[Result]) -> Table:
    table = Table(title=name, title_justify="left", box=None)
    table.add_column("what")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("target")
    table.add_column("beside", ratio=1)
    for result in results:
        beside = ""
        if result.reference_value is not None:
            beside = f"{result.reference_value:,.4g} {result.unit}, {result.reference}"
        if result.ratio is not None:
            beside = f"{result.ratio:,.4g}x: {beside}"
        verdict = "holds" if result.holds else "MISSED"
        table.add_row(
            result.name,
            f"{result.value:,.4g} {result.unit}",
            f"{verdict}: {result.target}" if result.target else "",
            beside,
        )
    return table
