from __future__ import annotations

import pytest

from malletrain.batch.pbs.states import Fitness, fitness


@pytest.mark.parametrize(
    "state", ["busy", "job-busy", "job-exclusive", "resv-exclusive", "job-exclusive,resv-exclusive"]
)
def test_what_others_use_is_no_business_of_ours(state: str) -> None:
    assert fitness(state) is Fitness.OTHERS


@pytest.mark.parametrize("state", ["provisioning", "wait-provisioning", "initializing", "free-ish"])
def test_what_may_come_to_be_free_is_left_alone(state: str) -> None:
    assert fitness(state) is Fitness.OTHERS


@pytest.mark.parametrize(
    "state",
    [
        *("offline", "down", "stale", "state-unknown", "unresolvable", "maintenance", "sleep"),
        *("offline,job-exclusive", "job-busy, offline", "down,offline", "state-unknown,down"),
    ],
)
def test_one_word_out_of_service_is_enough(state: str) -> None:
    assert fitness(state) is Fitness.UNFIT


def test_free_is_free_alone() -> None:
    assert fitness("free") is Fitness.FREE
    assert fitness("free,busy") is Fitness.OTHERS
    assert fitness("") is Fitness.OTHERS
