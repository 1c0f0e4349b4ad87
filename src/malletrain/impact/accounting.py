"""Jobs as the batch system's accounting tells of them: `sacct -P`, or Slurm's jobcomp/filetxt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from malletrain.errors import TraceError
from malletrain.traces import hosts, table
from malletrain.traces.accounting import is_step
from malletrain.traces.clock import Clock
from malletrain.traces.files import Lines, UnreadableError, without_cut_line
from malletrain.traces.tally import Tally

#: What `sacct -o` is asked for. Without Eligible a job counts as eligible since its submission.
COLUMNS = "JobID,JobName,State,Submit,Eligible,Start,End,NodeList"
_COLUMN_OF = {"name": "JobName", "state": "State", "submit": "Submit", "node_list": "NodeList"}
#: Both kinds of accounting tell times in whole seconds, rounded down.
RESOLUTION_S = 1.0
_DELIMITER = "|"
_FILETXT = "JobId="
#: Keys of jobcomp/filetxt by the names of sacct's columns.
_KEYS = {
    "id": "JobId",
    "name": "Name",
    "state": "JobState",
    "submit": "SubmitTime",
    "eligible": "EligibleTime",
    "start": "StartTime",
    "end": "EndTime",
    "node_list": "NodeList",
}
_EXPECTED = (
    "it is no accounting known here: it must be what `sacct -a -X -P` printed (a first line "
    "JobID|...), or Slurm's jobcomp/filetxt (lines JobId=... UserId=...)"
)


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One run of a job; a time is None where there is none."""

    id: str
    name: str
    #: Such as COMPLETED or "CANCELLED by 1000".
    state: str
    submitted_at_s: float | None
    eligible_at_s: float | None
    started_at_s: float | None
    ended_at_s: float | None
    hosts: tuple[str, ...]

    @property
    def ready_at_s(self) -> float | None:
        """When it was first ready to start; None where the accounting does not say."""
        known = [at_s for at_s in (self.submitted_at_s, self.eligible_at_s) if at_s is not None]
        return max(known, default=None)


class _LocalClock(Clock):
    """Reads times without offset as this machine's."""

    def _local(self, moment: datetime) -> tuple[float, ...]:
        return tuple(dict.fromkeys((moment.timestamp(), moment.replace(fold=1).timestamp())))


def read(lines: Lines) -> tuple[BatchJob, ...]:
    """Return the jobs of a file, steps left out; what kind it is its first line tells.

    Raises:
        TraceError: it is no accounting, or a line is wrong.
    """
    tally = Tally()
    clock = _LocalClock(None, tally)
    first = lines.first()
    if first.startswith(_FILETXT):
        jobs = _of_filetxt(lines, clock)
    elif _DELIMITER in first and table.is_header(first, _DELIMITER):
        jobs = _of_sacct(lines, clock)
    else:
        raise TraceError(f"{lines.source}, line 1: {_EXPECTED if first else 'it is empty'}")
    return tuple(without_cut_line(_placed(jobs, lines), lines, tally))


def _placed(jobs: Iterator[BatchJob], lines: Lines) -> Iterator[BatchJob]:
    """Say in which line a job is wrong."""
    try:
        yield from jobs
    except UnreadableError:
        raise
    except TraceError as error:
        raise lines.error(error) from error


def _of_sacct(lines: Lines, clock: Clock) -> Iterator[BatchJob]:
    rows = (line.rstrip("\r\n").split(_DELIMITER) for line in lines if line.strip())
    columns = table.Table(tuple(next(rows)), clock)
    if missing := [_COLUMN_OF[need] for need in _COLUMN_OF if not columns.has(need)]:
        raise TraceError(f"a column is missing: {', '.join(missing)}; sacct -o {COLUMNS} has all")
    for row in rows:
        cells = columns.cells(row)
        if not is_step(cells("id")):
            account = columns.account(cells)
            yield BatchJob(
                id=account.id,
                name=cells("name").strip(),
                state=account.state,
                submitted_at_s=_first(account.submits_s),
                eligible_at_s=_first(clock.readings(cells("eligible"), "Eligible")),
                started_at_s=_first(account.starts_s),
                ended_at_s=_first(account.ends_s),
                hosts=account.node_ids,
            )


def _of_filetxt(lines: Lines, clock: Clock) -> Iterator[BatchJob]:
    for line in lines:
        if line.strip():
            values = _values(line)
            times = {
                need: _first(clock.readings(values[need], _KEYS[need]))
                for need in ("submit", "eligible", "start", "end")
            }
            yield BatchJob(
                id=values["id"],
                name=values["name"],
                state=values["state"],
                submitted_at_s=times["submit"],
                eligible_at_s=times["eligible"],
                started_at_s=times["start"],
                ended_at_s=times["end"],
                hosts=hosts.expand(values["node_list"]),
            )


def _values(line: str) -> dict[str, str]:
    """Return what a line has under the keys that are needed; a value may have blanks in it."""
    found: dict[str, str] = {}
    key = ""
    for word in line.split():
        name, equals, value = word.partition("=")
        if equals and name.isalpha():
            key = name
            found.setdefault(key, value)
        else:
            found[key] = f"{found.get(key, '')} {word}"
    missing = [key for key in _KEYS.values() if key not in found]
    if missing:
        raise TraceError(f"it has no {missing[0]}=: no line of jobcomp/filetxt")
    return {need: found[key] for need, key in _KEYS.items()}


def _first(moments_s: tuple[float, ...]) -> float | None:
    return moments_s[0] if moments_s else None
