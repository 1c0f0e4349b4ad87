"""What our programs asked of the scheduler, from the log of commands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

import msgspec
from msgspec import Struct

from malletrain.batch.commands import CommandKind, CommandRecord
from malletrain.errors import StateDirError

_MINUTE_S = 60.0
#: How an order to submit names pilots: `sbatch --job-name=...`, `qsub -N ...`.
_PILOT_NAME = re.compile(r"(?:--job-name=)?(malle-[\w-]+)")
#: `scancel 12_[0,3]` and `scancel 12_0`; elsewhere ids stand as they are.
_TASKS = re.compile(r"(\w+)_\[([\d,]+)\]")
_ENDING = ("scancel", "qdel")


class ProgramLoad(Struct, frozen=True, kw_only=True):
    """How often a program was run."""

    program: str
    queries: int
    orders: int
    #: Of both, those that failed or did not end in time.
    failed: int


class SchedulerLoad(Struct, frozen=True, kw_only=True):
    """Queries and orders of a period; cheap checks that the scheduler is there come aside."""

    queries: int
    orders: int
    pings: int
    queries_a_minute: float
    orders_a_minute: float
    #: Queries and orders, in any 60 s.
    most_in_a_minute: int
    programs: tuple[ProgramLoad, ...]


def read_commands(path: Path) -> tuple[CommandRecord, ...] | None:
    """Read a log of commands; None where there is none.

    Raises:
        StateDirError: a line of it is no record.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return None
    if lines and not lines[-1].endswith(b"\n"):
        # It is being written.
        lines.pop()
    decoder = msgspec.json.Decoder(CommandRecord)
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise StateDirError(
                f"{path}, line {number}: it is no record of a command ({error}): restore the file, "
                f"or move it aside to report without queries"
            ) from error
    return tuple(records)


def scheduler_load(records: Iterable[CommandRecord], from_s: float, to_s: float) -> SchedulerLoad:
    """Count what was run in a period."""
    within = [record for record in records if from_s <= record.at_s <= to_s]
    kinds = Counter(record.kind for record in within)
    asked = [record for record in within if record.kind is not CommandKind.PING]
    minutes = (to_s - from_s) / _MINUTE_S
    return SchedulerLoad(
        queries=kinds[CommandKind.QUERY],
        orders=kinds[CommandKind.ORDER],
        pings=kinds[CommandKind.PING],
        queries_a_minute=kinds[CommandKind.QUERY] / minutes,
        orders_a_minute=kinds[CommandKind.ORDER] / minutes,
        most_in_a_minute=_most_in_a_minute(sorted(record.at_s for record in asked)),
        programs=tuple(_by_program(asked)),
    )


def pilot_names(records: Iterable[CommandRecord]) -> set[str]:
    """Return the job names under which pilots were submitted."""
    words = (word for record in _orders(records) for word in record.command)
    return {match[1] for word in words if (match := _PILOT_NAME.fullmatch(word))}


def cancelled_at_s(records: Iterable[CommandRecord]) -> dict[str, float]:
    """Return when we first cancelled pilots, by id."""
    cancelled: dict[str, float] = {}
    for record in _orders(records):
        if _program(record) in _ENDING:
            for word in record.command[1:]:
                for pilot_id in _pilot_ids(word):
                    cancelled.setdefault(pilot_id, record.at_s)
    return cancelled


def _most_in_a_minute(moments_s: Sequence[float]) -> int:
    most = first = 0
    for last, at_s in enumerate(moments_s):
        while moments_s[first] <= at_s - _MINUTE_S:
            first += 1
        most = max(most, last - first + 1)
    return most


def _pilot_ids(word: str) -> list[str]:
    if match := _TASKS.fullmatch(word):
        return [f"{match[1]}_{task}" for task in match[2].split(",")]
    return [word]


def _by_program(records: Sequence[CommandRecord]) -> Iterator[ProgramLoad]:
    runs = Counter((_program(record), record.kind) for record in records)
    failed = Counter(_program(record) for record in records if record.status != 0)
    for program, _ in Counter(map(_program, records)).most_common():
        yield ProgramLoad(
            program=program,
            queries=runs[program, CommandKind.QUERY],
            orders=runs[program, CommandKind.ORDER],
            failed=failed[program],
        )


def _orders(records: Iterable[CommandRecord]) -> Iterator[CommandRecord]:
    return (record for record in records if record.kind is CommandKind.ORDER)


def _program(record: CommandRecord) -> str:
    return PurePath(record.command[0]).name
