"""What `sacct --json` prints, of the plug-ins of Slurm 22.05 (v0.0.38) and since.

Its times are epoch seconds. The text is held in memory while it is read, a few kB a job: of a
large machine rather take `sacct -P`, which is smaller by ten and read line by line.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct, field

from malletrain.errors import TraceError
from malletrain.traces import accounting, hosts
from malletrain.traces.accounting import Account
from malletrain.traces.files import Lines, UnreadableError
from malletrain.traces.jobs import JobLog, JobRecord, known_time_s, whole_nodes
from malletrain.traces.tally import Tally

_BYTE = re.compile(r"\(byte (\d+)\)")


class _Number(Struct):
    """How newer plug-ins write a number that may be missing."""

    set: bool = True
    infinite: bool = False
    number: float = 0.0


_Quantity = float | _Number | None


class _Time(Struct):
    start: _Quantity = None
    end: _Quantity = None
    submission: _Quantity = None
    elapsed: _Quantity = None


class _State(Struct):
    current: str | list[str] = ""


class _Array(Struct):
    job_id: _Quantity = None
    task_id: _Quantity = None


class _Het(Struct):
    job_id: _Quantity = None
    job_offset: _Quantity = None


class _Reservation(Struct):
    name: str | float | None = None


class _Nodes(Struct):
    range: str = ""


class _Job(Struct):
    job_id: int
    time: _Time
    state: _State | str | list[str] = ""
    nodes: str | _Nodes | None = None
    allocation_nodes: _Quantity = None
    array: _Array = field(default_factory=_Array)
    het: _Het = field(default_factory=_Het)
    reservation: _Reservation = field(default_factory=_Reservation)
    partition: str | None = None
    qos: str | None = None


class _Dump(Struct):
    jobs: list[_Job]


def read(lines: Lines, tally: Tally) -> JobLog:
    """Read a dump.

    Raises:
        TraceError: it is none; which line, or which job of it, and what was expected.
    """
    text = lines.rest().removeprefix(b"\xef\xbb\xbf")
    try:
        dump = msgspec.json.decode(text, type=_Dump)
    except msgspec.ValidationError as error:
        raise TraceError(f"{lines.source}: it is no `sacct --json` dump: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{lines.source}, line {_line(text, str(error))}: {error}") from error
    return JobLog(jobs=tuple(_records(dump.jobs, lines, tally)), is_of_period=True)


def _line(text: bytes, message: str) -> int:
    match = _BYTE.search(message)
    return text.count(b"\n", 0, int(match.group(1)) if match else None) + 1


def _records(jobs: list[_Job], lines: Lines, tally: Tally) -> list[JobRecord]:
    records = []
    for number, job in enumerate(jobs, start=1):
        try:
            record = accounting.record(_account(job), tally)
        except UnreadableError:
            raise
        except TraceError as error:
            raise TraceError(f"{lines.source}, job {number} of the list: {error}") from error
        if record is not None:
            records.append(record)
    return records


def _account(job: _Job) -> Account:
    range_ = job.nodes.range if isinstance(job.nodes, _Nodes) else job.nodes
    node_ids = hosts.expand(range_ or "")
    reservation = job.reservation.name
    elapsed_s = _value(job.time.elapsed)
    labels = (reservation if isinstance(reservation, str) else None, job.partition, job.qos)
    return Account(
        id=_id(job),
        submits_s=_moments(job.time.submission),
        starts_s=_moments(job.time.start),
        ends_s=_moments(job.time.end),
        elapsed_s=None if elapsed_s is None else known_time_s(elapsed_s),
        state=_state(job.state),
        nodes=len(node_ids) or whole_nodes(_value(job.allocation_nodes) or 0),
        node_ids=node_ids,
        labels=tuple(filter(None, labels)),
    )


def _id(job: _Job) -> str:
    if (task := _value(job.array.task_id)) is not None and _value(job.array.job_id):
        return f"{_value(job.array.job_id):.0f}_{task:.0f}"
    if (offset := _value(job.het.job_offset)) is not None and _value(job.het.job_id):
        return f"{_value(job.het.job_id):.0f}+{offset:.0f}"
    return str(job.job_id)


def _state(state: _State | str | list[str]) -> str:
    current = state.current if isinstance(state, _State) else state
    if isinstance(current, list):
        # The state comes first, flags after it.
        current = current[0] if current else ""
    return current.upper()


def _value(quantity: _Quantity) -> float | None:
    if isinstance(quantity, _Number):
        return quantity.number if quantity.set and not quantity.infinite else None
    return quantity


def _moments(quantity: _Quantity) -> tuple[float, ...]:
    return (known_time_s(value),) if (value := _value(quantity)) else ()
