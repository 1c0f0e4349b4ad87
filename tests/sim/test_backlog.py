from __future__ import annotations

import pytest

from malletrain.errors import UsageError
from malletrain.sim.backlog import Backlog
from malletrain.sim.settings import ReplayOptions
from tests.sim.scenes import job, workload

THREE = workload(
    job("a", work_samples=1.0),
    job("b", work_samples=1.0, submitted_at_s=10.0),
    job("c", work_samples=1.0, submitted_at_s=10.0),
)


def backlog(**options: object) -> Backlog:
    return Backlog(THREE, ReplayOptions(**options))


def ids(backlog: Backlog, now_s: float, present: int) -> list[str]:
    return [job.id for job in backlog.take(now_s, present)]


def test_jobs_come_in_when_they_are_submitted() -> None:
    waiting = backlog()
    assert waiting.next_at_s(0) == 0.0
    assert ids(waiting, 5.0, 0) == ["a"]
    assert waiting.next_at_s(1) == 10.0
    assert ids(waiting, 9.9, 1) == []
    assert ids(waiting, 10.0, 1) == ["b", "c"]
    assert waiting.is_exhausted
    assert waiting.next_at_s(0) is None


def test_no_more_are_in_the_system_than_may_be() -> None:
    waiting = backlog(max_parallel=2)
    assert ids(waiting, 100.0, 0) == ["a", "b"]
    assert waiting.next_at_s(2) is None
    assert ids(waiting, 100.0, 2) == []
    assert ids(waiting, 100.0, 1) == ["c"]


def test_a_repeated_list_starts_again_at_once_with_ids_of_its_own() -> None:
    waiting = backlog(max_parallel=7, repeat=True)
    taken = waiting.take(20.0, 0)
    assert [job.id for job in taken] == ["a", "b", "c", "a#2", "b#2", "c#2", "a#3"]
    assert [job.submitted_at_s for job in taken] == [0.0, 10.0, 10.0, 20.0, 20.0, 20.0, 20.0]
    assert not waiting.is_exhausted


def test_endless_jobs_have_no_work_that_could_be_done() -> None:
    assert [job.work_samples for job in backlog(endless=True).take(10.0, 0)] == [None] * 3
    assert [job.work_samples for job in backlog().take(10.0, 0)] == [1.0] * 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repeat": True}, "--max-parallel"),
        ({"repeat": True, "max_parallel": 3, "endless": True}, "endless or repeat"),
    ],
)
def test_what_would_never_end_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        backlog(**options)
