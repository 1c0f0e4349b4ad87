"""The worker's side of the protocol, message by message."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from malletrain.train.membership import Membership
from malletrain.wire import (
    AbortGroup,
    GroupFailed,
    GroupReady,
    PrepareGroup,
    Switch,
    WorkerSettings,
)


class Worker:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self._said = threading.Condition()
        self.membership = Membership(
            "me", "job", WorkerSettings(checkpoint_dir=""), torch.device("cpu"), self._send
        )

    def _send(self, message: Any) -> None:
        with self._said:
            self.sent.append(message)
            self._said.notify_all()

    def prepare(
        self, generation: int, *members: str, is_immediate: bool = False, to: tuple[str, ...] = ()
    ) -> None:
        self.membership.receive(
            PrepareGroup(
                job_id="job",
                generation=generation,
                members=members,
                to=to or members,
                is_immediate=is_immediate,
            )
        )
        if members == ("me",):
            # Alone it needs nobody to be ready.
            ready = GroupReady(worker_id="me", job_id="job", generation=generation)
            self.await_sent(lambda message: message == ready)

    def await_sent(self, is_it: Callable[[Any], bool]) -> None:
        with self._said:
            assert self._said.wait_for(lambda: any(map(is_it, self.sent)), 10)

    def switch(self, generation: int) -> None:
        self.membership.receive(Switch(job_id="job", generation=generation, to=("me",)))

    def abort(self, generation: int) -> None:
        self.membership.receive(AbortGroup(job_id="job", generation=generation, to=("me",)))


@pytest.fixture
def worker() -> Worker:
    """Trains alone in generation 5."""
    worker = Worker()
    worker.prepare(5, "me", is_immediate=True)
    worker.membership.await_next()
    assert worker.membership.generation == 5
    return worker


@pytest.mark.parametrize("generation", [4, 5])
def test_a_generation_that_is_not_newer_changes_nothing(worker: Worker, generation: int) -> None:
    group = worker.membership.group
    worker.membership.receive(
        PrepareGroup(
            job_id="job", generation=generation, members=("x",), to=("me",), is_immediate=True
        )
    )
    worker.switch(generation)
    worker.abort(generation)
    assert worker.membership.ballot() == 0
    assert not worker.membership.is_revoked
    assert worker.membership.group is group


def test_the_ballot_is_cast_once_the_switch_is_allowed(worker: Worker) -> None:
    worker.prepare(6, "me")
    assert worker.membership.ballot() == 0
    worker.switch(6)
    assert worker.membership.ballot() == 6
    entered = worker.membership.enter(6)
    assert entered is not None
    assert entered.is_member
    assert worker.membership.generation == 6
    assert worker.membership.ballot() == 0


def test_a_leaver_votes_without_a_group(worker: Worker) -> None:
    worker.prepare(6, "x", to=("me", "x"))
    worker.switch(6)
    assert worker.membership.ballot() == 6
    entered = worker.membership.enter(6)
    assert entered is not None
    assert not entered.is_member
    # Nobody stays: it must save the state for those to come.
    assert entered.is_handover
    assert entered.is_saver


def test_a_switch_of_another_generation_allows_nothing(worker: Worker) -> None:
    worker.prepare(7, "me")
    worker.switch(6)
    worker.switch(8)
    assert worker.membership.ballot() == 0


def test_an_aborted_generation_is_forgotten(worker: Worker) -> None:
    worker.prepare(6, "me")
    worker.abort(6)
    worker.switch(6)
    assert worker.membership.ballot() == 0
    assert worker.membership.enter(6) is None


def test_a_newer_generation_takes_the_place_of_one_in_the_making(worker: Worker) -> None:
    worker.prepare(6, "me", "never-there")
    worker.prepare(7, "me", is_immediate=True)
    worker.abort(6)
    assert worker.membership.is_revoked
    assert worker.membership.await_next().generation == 7


def test_only_the_first_addressee_saves_a_suspended_job(worker: Worker) -> None:
    worker.prepare(6, to=("other", "me"))
    worker.switch(6)
    entered = worker.membership.enter(6)
    assert entered is not None
    assert not entered.is_saver


def test_another_life_is_for_the_newest_of_what_comes_together(worker: Worker) -> None:
    worker.prepare(6, "me", "other", is_immediate=True)
    with ThreadPoolExecutor(1) as pool:
        life = pool.submit(worker.membership.await_another_life)
        worker.await_sent(lambda message: isinstance(message, GroupFailed))
        worker.prepare(7, "me", "other", is_immediate=True)
        # The other one failed that, for the same reason.
        worker.prepare(8, "me", "other", is_immediate=True)
        assert life.result().generation == 8
