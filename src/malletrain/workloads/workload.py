"""What is to be trained in a replay: malleable jobs, and how their models truly scale."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray


class TrueCurve(Struct, frozen=True, cache_hash=True):
    """Samples/s at some numbers of nodes, sorted, the first at 1 node; linear in between.

    The papers' data and their replayer's interpolation are of this form (BFTrainer, section 3.3).
    """

    nodes: tuple[int, ...]
    samples_per_s: tuple[float, ...]

    def rates(self, max_nodes: int) -> NDArray[np.float64]:
        """Return the samples/s of 0 ... `max_nodes` nodes, shape `(max_nodes + 1,)`, read-only."""
        return _rates(self, max_nodes)


@lru_cache(maxsize=4096)
def _rates(curve: TrueCurve, max_nodes: int) -> NDArray[np.float64]:
    rates = np.interp(
        np.arange(max_nodes + 1), (0, *curve.nodes), (0.0, *curve.samples_per_s)
    ).astype(np.float64)
    rates.flags.writeable = False
    return rates


class MalleableJob(Struct, frozen=True, kw_only=True):
    """A job as the world knows it; what of this the system is told is the policy's matter."""

    id: str
    #: Of `Workload.curves`.
    curve: str
    submitted_at_s: float
    min_nodes: int = 1
    max_nodes: int
    #: None: it never ends.
    work_samples: float | None
    #: What a rescale stalls it, in seconds of progress.
    scale_up_s: float
    scale_down_s: float
    #: What its nodes are counted under in reports; "" means its curve.
    job_class: str = ""
    owner: str = ""
    weight: float = 1.0
    deadline_at_s: float | None = None


class Workload(Struct, frozen=True, kw_only=True):
    """Jobs in order of submission; times count from the trace's start."""

    name: str
    jobs: tuple[MalleableJob, ...]
    curves: dict[str, TrueCurve]
    #: Where it comes from: the file, or the generator with every parameter and the seed.
    description: str = ""
