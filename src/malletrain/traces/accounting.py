"""From what accounting says of a job to a `JobRecord`, or to the reason why there is none.

A job that was requeued has a line for each time it ran, each of which had nodes; so have the tasks
of an array (`12_3`) and the components of a heterogeneous job (`12+1`). Steps (`12.batch`) run
within their job's nodes and time.
"""

from __future__ import annotations

import itertools

from msgspec import Struct

from malletrain.traces.jobs import JobRecord
from malletrain.traces.tally import Tally

#: States in which a job has nodes.
_ALIVE = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING", "RESIZING", "SIGNALING")
_HOUR_S = 3600.0
_NEVER_STARTED = "jobs that never started (pending, or cancelled before), left out"


# Without garbage collection, as `JobRecord`.
class Account(Struct, frozen=True, kw_only=True, gc=False):
    """What a log says of a job; of a time there may be none or, when clocks change, two readings.

    `state` is "" and `elapsed_s` is None where the log has no such column.
    """

    id: str
    submits_s: tuple[float, ...] = ()
    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    elapsed_s: float | None
    state: str
    nodes: int
    node_ids: tuple[str, ...] = ()
    #: Reservation, partition and quality of service.
    labels: tuple[str, ...] = ()


def is_step(job_id: str) -> bool:
    return "." in job_id


def count_step(tally: Tally) -> None:
    tally.add("job steps, left out since they run within their job")


def record(account: Account, tally: Tally) -> JobRecord | None:
    """Return the job if it had nodes for some time; else count why not."""
    if not account.starts_s or account.state.startswith("PENDING"):
        tally.add(_NEVER_STARTED)
        return None
    is_running = not account.ends_s and (not account.state or account.state.startswith(_ALIVE))
    if not account.ends_s and not is_running and account.elapsed_s is None:
        tally.add("jobs that ended at an unknown time, left out")
        return None
    start_s, end_s = _times(account, tally)
    if is_running:
        tally.add("jobs still running at the end of the log, taken to run until then")
    elif not account.ends_s:
        tally.add("jobs of unknown end, taken to end as their elapsed time says")
    elif end_s < start_s:
        tally.add("jobs that ended before they started, left out")
        return None
    elif end_s == start_s:
        # Of a job that was cancelled while it waited Slurm gives the moment as both.
        tally.add("jobs that ended as they started, left out" if account.nodes else _NEVER_STARTED)
        return None
    if account.nodes <= 0:
        tally.add("jobs without nodes, left out")
        return None
    is_maintenance = any("maint" in label.lower() for label in account.labels)
    if is_maintenance:
        tally.add("jobs of a maintenance reservation, partition or QOS; their nodes are not idle")
    return JobRecord(
        id=account.id,
        submitted_at_s=account.submits_s[0] if account.submits_s else None,
        started_at_s=start_s,
        ended_at_s=end_s,
        is_running=is_running,
        nodes=account.nodes,
        node_ids=account.node_ids,
        is_maintenance=is_maintenance,
    )


def _times(account: Account, tally: Tally) -> tuple[float, float]:
    """Return start and end, of two readings those that fit the elapsed time."""
    elapsed_s = account.elapsed_s
    if not account.ends_s:
        return account.starts_s[0], account.starts_s[0] + (elapsed_s or 0.0)
    pairs = list(itertools.product(account.starts_s, account.ends_s))
    if elapsed_s is None:
        # Without more to go by: the earliest start and the first end that is not before it.
        return next((pair for pair in pairs if pair[0] <= pair[1]), pairs[-1])
    best = min(pairs, key=lambda pair: abs(pair[1] - pair[0] - elapsed_s))
    return _mended(best, elapsed_s, tally)


def _mended(pair: tuple[float, float], elapsed_s: float, tally: Tally) -> tuple[float, float]:
    """Believe the elapsed time where clocks were changed while the job ran."""
    start_s, end_s = pair
    is_backwards = -_HOUR_S <= end_s - start_s < 0 < elapsed_s
    is_hour_off = abs(abs(end_s - start_s - elapsed_s) - _HOUR_S) <= 1
    if is_backwards or is_hour_off:
        tally.add("jobs during which clocks were changed, their end mended by their elapsed time")
        return start_s, start_s + elapsed_s
    return pair
