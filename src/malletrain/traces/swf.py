"""The Standard Workload Format of the Parallel Workloads Archive, version 2.

A job is a line of 18 numbers, -1 for what is not known; comments at the start (`; MaxNodes: 64`)
tell of the machine. Only processors are counted, so nodes follow from how many a node has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from malletrain.errors import TraceError
from malletrain.traces.files import Lines, quoted, without_cut_line
from malletrain.traces.jobs import MOST_S, JobLog, JobRecord, whole_nodes
from malletrain.traces.tally import Tally

_NUM_FIELDS = 18
_ID, _SUBMIT, _WAIT, _RUN, _HAD, _ASKED, _STATUS = 0, 1, 2, 3, 4, 7, 10
#: Parts of a job that was checkpointed; another line tells of the whole job.
_PARTS = (2, 3, 4)
_HEADER = ("MaxNodes", "MaxProcs", "UnixStartTime")


def read(lines: Lines, processors_per_node: int | None, tally: Tally) -> JobLog:
    """Read a log.

    Raises:
        TraceError: a line is none of this format; which, and what it should be.
    """
    reader = _Reader(lines, processors_per_node, tally)
    jobs = tuple(without_cut_line(reader.jobs(), lines, tally))
    return JobLog(
        jobs=jobs,
        num_machine_nodes=reader.num_machine_nodes(),
        has_dates="UnixStartTime" in reader.header,
    )


def is_job(line: str) -> bool:
    """Whether a line is as long as a job's."""
    return len(line.split()) == _NUM_FIELDS


class _Reader:
    def __init__(self, lines: Lines, processors_per_node: int | None, tally: Tally) -> None:
        self.header: dict[str, int] = {}
        self._lines = lines
        self._processors_per_node = processors_per_node
        self._tally = tally

    def jobs(self) -> Iterator[JobRecord]:
        for line in self._lines:
            if line.lstrip().startswith(";"):
                self._read_comment(line)
            elif line.strip():
                job = self._job(self._numbers(line))
                if job is not None:
                    yield job

    def num_machine_nodes(self) -> int | None:
        # Unknown numbers are -1 here too.
        if (nodes := self.header.get("MaxNodes", -1)) > 0:
            return nodes
        if (processors := self.header.get("MaxProcs", -1)) > 0:
            return math.ceil(processors / self._node_size())
        return None

    def _read_comment(self, line: str) -> None:
        name, colon, value = line.strip(" \t\r\n;").partition(":")
        if not colon or name.strip() not in _HEADER:
            return
        try:
            # Some archives write a remark behind the number.
            number = int(value.split()[0])
        except (ValueError, IndexError):
            number = None
        if number is None or abs(number) > MOST_S:
            shown = quoted(value.strip())
            raise self._lines.error(f"{name.strip()} is {shown}: it must be a whole number")
        self.header[name.strip()] = number

    def _numbers(self, line: str) -> list[float]:
        words = line.split()
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            numbers = []
        if len(numbers) != _NUM_FIELDS:
            raise self._lines.error(
                f"a job of the Standard Workload Format has {_NUM_FIELDS} numbers, "
                f"and this line {len(words)} words"
            )
        for word, number in zip(words, numbers, strict=True):
            if not abs(number) <= MOST_S:
                raise self._lines.error(f"{quoted(word)} must be a number, {MOST_S:.12g} at most")
        return numbers

    def _job(self, fields: list[float]) -> JobRecord | None:
        run_s, wait_s = fields[_RUN], fields[_WAIT]
        processors = fields[_HAD] if fields[_HAD] > 0 else fields[_ASKED]
        if fields[_STATUS] in _PARTS:
            self._tally.add("parts of checkpointed jobs, left out since the whole job has a line")
        elif run_s <= 0 and wait_s < 0:
            self._tally.add("jobs that never started, left out")
        elif run_s < 0:
            self._tally.add("jobs of unknown or negative run time, left out")
        elif run_s == 0:
            self._tally.add("jobs that ended as they started, left out")
        elif fields[_SUBMIT] < 0:
            self._tally.add("jobs of unknown or negative submission time, left out")
        elif processors <= 0:
            self._tally.add("jobs without processors, left out")
        else:
            return self._started(fields, processors)
        return None

    def _started(self, fields: list[float], processors: float) -> JobRecord:
        if fields[_HAD] <= 0:
            self._tally.add("jobs of which only the processors asked for are known, taken as had")
        if fields[_WAIT] < 0:
            self._tally.add("jobs of unknown waiting time, taken as started when submitted")
        try:
            nodes = whole_nodes(math.ceil(processors / self._node_size()))
        except TraceError as error:
            raise self._lines.error(error) from error
        submitted_at_s = fields[_SUBMIT] + self.header.get("UnixStartTime", 0)
        started_at_s = submitted_at_s + max(fields[_WAIT], 0.0)
        return JobRecord(
            id=f"{fields[_ID]:.0f}",
            submitted_at_s=submitted_at_s,
            started_at_s=started_at_s,
            ended_at_s=started_at_s + fields[_RUN],
            nodes=nodes,
        )

    def _node_size(self) -> int:
        """Return the processors of a node, and note where the number comes from."""
        if self._processors_per_node is not None:
            return self._processors_per_node
        nodes, processors = self.header.get("MaxNodes", 0), self.header.get("MaxProcs", 0)
        if nodes <= 0 or processors <= 0:
            self._tally.say("a node was taken to have 1 processor (neither header nor option says)")
            return 1
        if processors % nodes:
            self._tally.say(
                f"processors of a node, {processors:,} on {nodes:,} nodes, were rounded up"
            )
        return math.ceil(processors / nodes)
