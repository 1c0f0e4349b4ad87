"""What `malletrain explain` says."""

from __future__ import annotations

from malletrain.allocate.exact import ExactAllocator
from malletrain.core.events import JobCancelled, RescaleFailed
from malletrain.core.explain import explain
from malletrain.core.settings import AdvisorKind, AdvisorSettings, CoreSettings
from tests.core.world import World, spec

STATIC = CoreSettings(advisor=AdvisorSettings(kind=AdvisorKind.STATIC))


def words(world: World, job_id: str) -> str:
    return explain(world.cluster, job_id, ExactAllocator())


def test_a_training_job_is_told_what_more_nodes_would_do_and_cost_the_others() -> None:
    world = World()
    world.truth = {"slow": {n: 100.0 + n for n in range(1, 9)}}
    world.join("a1", "a2", "a3", "a4")
    world.submit(spec("slow"), spec("fast"))
    for _ in range(6):
        world.train(100.0)
    text = words(world, "slow")
    assert "slow is training on 1 node (it may have 1 to 8)" in text
    assert "measured on 1" in text
    assert "On 2 nodes it should train 102 samples/s" in text
    assert "the others would lose" in text


def test_a_waiting_job_is_told_why() -> None:
    world = World(STATIC, is_patient=True)
    world.submit(spec("job"))
    assert "job is waiting on 0 nodes" in words(world, "job")
    # Without a measurement there are no samples/s to speak of.
    assert "samples/s" not in words(world, "job")
    world.join("a1")
    world.feed(
        RescaleFailed(
            at_s=1.0,
            job_id="job",
            generation=1,
            reason="exited with 1",
            node_ids=(),
            is_job_fault=True,
        )
    )
    text = words(world, "job")
    assert "backs off for 2 s after 1 failures" in text
    assert "Note: exited with 1" in text


def test_a_job_that_is_over_is_told_how_it_ended() -> None:
    world = World()
    world.submit(spec("job"))
    world.feed(JobCancelled(at_s=1.0, job_id="job"))
    assert words(world, "job") == "job is cancelled: 0 samples trained."


def test_a_huge_bound_asks_for_no_more_rates_than_there_are_nodes() -> None:
    world = World()
    world.join("a1", "a2")
    world.submit(spec("job", most=10_000_000))
    world.train(10.0)
    assert "as there are" in words(world, "job")
