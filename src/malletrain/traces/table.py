"""Accounting as a table: `sacct -P` dumps, and CSV exports of other systems.

Columns may stand in any order, under Slurm's names or under those that exports use; those not
needed are passed over. A dump without a header line needs its columns named.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from malletrain.errors import TraceError, UsageError
from malletrain.traces import accounting, hosts
from malletrain.traces.accounting import Account
from malletrain.traces.clock import Clock, duration_s
from malletrain.traces.files import Lines, UnreadableError, quoted, without_cut_line
from malletrain.traces.jobs import JobLog, JobRecord, whole_nodes
from malletrain.traces.tally import Tally

#: What we need -> what it may be called, the best first, in lower case and without underscores.
_NAMES = {
    "id": ("jobid", "jobidraw"),
    "name": ("jobname",),
    "submit": ("submit", "submittime", "submitted"),
    "eligible": ("eligible", "eligibletime"),
    "start": ("start", "starttime", "started"),
    "end": ("end", "endtime", "ended"),
    "elapsed": ("elapsedraw", "elapsed", "runtime"),
    "state": ("state", "jobstate"),
    "node_list": ("nodelist", "hostlist", "hosts"),
    "nodes": ("nnodes", "allocnodes", "nodesalloc", "numnodes", "nodecount", "nodes"),
    "nodes_asked": ("nodesreq", "reqnodes"),
    "reservation": ("reservation",),
    "partition": ("partition", "queue"),
    "qos": ("qos",),
}
#: How a missing column is asked for.
_SHOWN = {
    "id": ("JobID", "job_id"),
    "start": ("Start", "start_time"),
    "end": ("End", "end_time", "Elapsed"),
    "node_list": ("NodeList", "NNodes", "nodes_req"),
}
#: Slurm columns that users fill: only in these can the delimiter stand.
_FREE_TEXT = {"jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir"}
_DELIMITER = "|"


def is_header(line: str, delimiter: str) -> bool:
    """Whether a first line names columns that we know."""
    names = {_plain(name) for name in line.split(delimiter)}
    return bool(names & {*_NAMES["id"], *_NAMES["start"]})


def read_sacct(lines: Lines, columns: tuple[str, ...], clock: Clock, tally: Tally) -> JobLog:
    """Read what `sacct -P` (or `-p`) printed, with a header line or with its columns given.

    Raises:
        TraceError: a line is wrong; which, and what it should be.
    """
    rows = (line.rstrip("\r\n").split(_DELIMITER) for line in lines if line.strip())
    return JobLog(jobs=_jobs(rows, lines, columns, clock, tally), is_of_period=True)


def read_csv(lines: Lines, columns: tuple[str, ...], clock: Clock, tally: Tally) -> JobLog:
    """Read a CSV export, with a header line or with its columns given.

    Raises:
        TraceError: a line is wrong; which, and what it should be.
    """
    rows = filter(None, csv.reader(lines, strict=True))
    return JobLog(jobs=_jobs(rows, lines, columns, clock, tally), has_shared_ids=True)


def _jobs(
    rows: Iterator[list[str]], lines: Lines, columns: tuple[str, ...], clock: Clock, tally: Tally
) -> tuple[JobRecord, ...]:
    jobs = _placed(_accounts(rows, columns, clock, tally), lines)
    return tuple(
        job
        for account in without_cut_line(jobs, lines, tally)
        if (job := accounting.record(account, tally)) is not None
    )


def _placed(accounts: Iterator[Account], lines: Lines) -> Iterator[Account]:
    """Say in which line an account is wrong."""
    try:
        yield from accounts
    except (UnreadableError, UsageError):
        raise
    except (TraceError, csv.Error) as error:
        raise lines.error(error) from error


def _accounts(
    rows: Iterator[list[str]], columns: tuple[str, ...], clock: Clock, tally: Tally
) -> Iterator[Account]:
    first = next(rows, [])
    if not columns:
        columns = tuple(first)
    elif is_header(_DELIMITER.join(first), _DELIMITER):
        raise UsageError("--columns cannot apply: the log's first line names its columns")
    else:
        rows = chain([first], rows)
    table = Table(columns, clock)
    if table.has_only_asked_nodes:
        tally.say("nodes are those that jobs asked for: the log does not say how many they had")
    for row in rows:
        cells = table.cells(row)
        if accounting.is_step(cells("id")):
            accounting.count_step(tally)
        else:
            yield table.account(cells)


class Table:
    """Where what is needed (see `_NAMES`) stands in a row."""

    def __init__(self, columns: tuple[str, ...], clock: Clock) -> None:
        # `sacct -p` ends each line with the delimiter.
        self._is_trailing = len(columns) > 1 and not columns[-1]
        names = columns[:-1] if self._is_trailing else columns
        plain = [_plain(name) for name in names]
        self._width = len(names)
        self._clock = clock
        self._at: dict[str, int] = {}
        self._names: dict[str, str] = {}
        for need, known in _NAMES.items():
            found = next((name for name in known if name in plain), None)
            if found is not None:
                if plain.count(found) > 1:
                    raise TraceError(f"the column {names[plain.index(found)]} is there twice")
                self._at[need] = plain.index(found)
                self._names[need] = names[self._at[need]]
        free = [at for at, name in enumerate(plain) if name in _FREE_TEXT]
        self._free_at = free[0] if len(free) == 1 else None
        self._check(names)

    def has(self, need: str) -> bool:
        """Whether there is a column for it."""
        return need in self._at

    @property
    def has_only_asked_nodes(self) -> bool:
        return "node_list" not in self._at and "nodes" not in self._at

    def _check(self, names: Iterable[str]) -> None:
        missing = [need for need in ("id", "start") if need not in self._at]
        if "end" not in self._at and "elapsed" not in self._at:
            missing.append("end")
        if not {"node_list", "nodes", "nodes_asked"} & self._at.keys():
            missing.append("node_list")
        if missing:
            wanted = ", ".join(" or ".join(_SHOWN[need]) for need in missing)
            raise TraceError(f"a column is missing: {wanted}; there are {', '.join(names)}")

    def cells(self, row: list[str]) -> Callable[[str], str]:
        """Return what gives the text under a need, "" where there is no such column."""
        if self._is_trailing and not row[-1]:
            row = row[:-1]
        surplus = len(row) - self._width
        if surplus > 0 and self._free_at is not None:
            # The delimiter stands in a job's name, say.
            text = _DELIMITER.join(row[self._free_at : self._free_at + surplus + 1])
            row = [*row[: self._free_at], text, *row[self._free_at + surplus + 1 :]]
        elif surplus:
            raise TraceError(f"it has {len(row)} columns, and {self._width} were expected")
        at = self._at
        return lambda need: row[at[need]] if need in at else ""

    def account(self, cells: Callable[[str], str]) -> Account:
        job_id = cells("id").strip()
        if not job_id:
            raise TraceError("it names no job")
        node_ids = hosts.expand(cells("node_list"))
        elapsed_s = duration_s(cells("elapsed"), self._names.get("elapsed", ""))
        starts_s, ends_s = self._moments(cells, "start"), self._moments(cells, "end")
        if "end" not in self._at and elapsed_s is not None:
            ends_s = tuple(start_s + elapsed_s for start_s in starts_s)
        return Account(
            id=job_id,
            submits_s=self._moments(cells, "submit"),
            starts_s=starts_s,
            ends_s=ends_s,
            elapsed_s=elapsed_s,
            state=cells("state").strip().upper(),
            nodes=len(node_ids) or self._num_nodes(cells),
            node_ids=node_ids,
            labels=tuple(filter(None, map(cells, ("reservation", "partition", "qos")))),
        )

    def _moments(self, cells: Callable[[str], str], need: str) -> tuple[float, ...]:
        return self._clock.readings(cells(need), self._names.get(need, ""))

    def _num_nodes(self, cells: Callable[[str], str]) -> int:
        if "node_list" in self._at:
            return 0
        need = "nodes" if "nodes" in self._at else "nodes_asked"
        try:
            nodes = float(cells(need) or 0)
        except ValueError as error:
            raise TraceError(
                f"{self._names[need]} is {quoted(cells(need))}: it must be a whole number "
                "(sacct --noconvert writes it in full)"
            ) from error
        return whole_nodes(nodes)


def _plain(name: str) -> str:
    return name.partition("%")[0].strip().lower().replace("_", "")
