"""What users may ask over HTTP, and what they are told; the CLI's client shares these types."""

from __future__ import annotations

from msgspec import Struct

#: Beyond, sums of worths lose what the other jobs are worth, or overflow.
MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6


class Submission(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job as its user describes it."""

    name: str
    command: tuple[str, ...]
    cwd: str
    min_nodes: int = 1
    max_nodes: int = 1
    weight: float = 1.0
    #: The job is done after so many; None leaves the end to the script.
    samples: float | None = None
    env: tuple[tuple[str, str], ...] = ()
    #: Jobs with one key share what is learned of their scaling; "" takes the name.
    model_key: str = ""
    deadline_at_s: float | None = None
    owner: str = ""


class Submitted(Struct, frozen=True, kw_only=True):
    job_id: str
    #: What will not do as its user may hope; the job was accepted all the same.
    warnings: tuple[str, ...] = ()


class NodeCount(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    count: int


class Explanation(Struct, frozen=True, kw_only=True):
    text: str


class LogPage(Struct, frozen=True, kw_only=True):
    text: str
    #: Where to read on, in the file of `worker`.
    offset: int
    worker: str = ""
    path: str = ""
