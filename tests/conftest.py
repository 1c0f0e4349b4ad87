"""No test may leave a process behind, whatever it tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.leftovers import no_process_left
from tests.slurm_cluster import make_slurm_cluster, slurm_cluster

__all__ = ["make_slurm_cluster", "slurm_cluster"]


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    with no_process_left():
        yield
