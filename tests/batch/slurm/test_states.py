"""Only what is idle and nothing else is ours; what is on its way out of service is to be left."""

from __future__ import annotations

import pytest

from malletrain.batch.slurm.states import Fitness, NodeState


@pytest.mark.parametrize("text", ["idle", "IDLE", "idle+dynamic_norm"])
def test_an_idle_node_is_ours_to_take(text: str) -> None:
    assert NodeState.parse(text).fitness is Fitness.FREE


@pytest.mark.parametrize(
    "text",
    [
        *("idle+drain", "allocated+drain", "mixed+completing+drain", "down", "down+not_responding"),
        *(
            "idle+maintenance+reserved",
            "allocated+not_responding",
            "idle+completing+not_responding",
        ),
        *("idle+powered_down", "idle+powering_down", "idle+reboot_requested", "idle+invalid_reg"),
        *("allocated+failing", "future", "error"),
    ],
)
def test_a_node_that_goes_out_of_service_is_unfit(text: str) -> None:
    assert NodeState.parse(text).fitness is Fitness.UNFIT


@pytest.mark.parametrize(
    "text",
    [
        *(
            "allocated",
            "mixed",
            "idle+planned+drain_soon",
            "idle+reserved",
            "idle+completing",
            "unknown",
        ),
        *("mixed+planned", "idle+powering_up", "idle+cloud", "idle+a_flag_of_next_year"),
    ],
)
def test_any_other_node_is_left_to_others(text: str) -> None:
    assert NodeState.parse(text).fitness is Fitness.OTHERS


def test_a_state_is_written_as_slurm_does() -> None:
    assert str(NodeState.parse("IDLE+RESERVED+MAINTENANCE")) == "idle+maintenance+reserved"


def test_an_idle_node_that_somebody_is_to_have_is_told_apart() -> None:
    assert NodeState.parse("idle+planned").fitness is Fitness.PLANNED
    assert NodeState.parse("idle+planned+drain").fitness is Fitness.UNFIT
    assert NodeState.parse("mixed+planned").fitness is Fitness.OTHERS
