"""Whatever happens, in whatever order: the rules that must hold after every event."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.core.actions import Rescale, Stop
from malletrain.core.apply import apply, replay
from malletrain.core.events import (
    AnyEvent,
    JobCancelled,
    JobFinished,
    JobResumed,
    JobSuspended,
    RescaleDone,
    RescaleFailed,
    WokeUp,
    WorkersLost,
)
from malletrain.core.model import Phase
from malletrain.core.settings import AdvisorKind, AdvisorSettings, CoreSettings
from tests.core.world import World, spec

NODES = [f"{group}{index}" for group in "ab" for index in range(4)]
JOBS = [spec("j1"), spec("j2", least=2, most=4), spec("j3", least=3, most=3), spec("j4", most=2)]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sets(st.sampled_from(NODES), min_size=1, max_size=4)),
        st.tuples(st.just("leave"), st.sets(st.sampled_from(NODES), min_size=1, max_size=4)),
        st.tuples(st.just("lose"), st.sets(st.sampled_from(NODES), min_size=1, max_size=4)),
        st.tuples(st.just("submit"), st.sampled_from(JOBS)),
        st.tuples(st.sampled_from(["suspend", "resume", "cancel"]), st.sampled_from(JOBS)),
        st.tuples(st.sampled_from(["done", "failed", "dead", "crash"]), st.integers(0, 3)),
        st.tuples(st.just("end"), st.sampled_from(JOBS)),
        st.tuples(st.just("train"), st.floats(0.1, 100.0)),
    ),
    min_size=10,
    max_size=40,
)


def play(world: World, what: str, value: object) -> None:
    now_s = world.now_s + 0.5
    match what, value:
        case "join", set(ids):
            world.join(*sorted(ids), at_s=now_s)
        case "leave", set(ids):
            world.leave(*sorted(ids))
        case "lose", set(ids):
            world.lose(*sorted(ids))
        case "submit", job:
            world.submit(job)  # type: ignore[arg-type]
        case "train", float(seconds):
            world.train(seconds)
        case "suspend" | "resume" | "cancel" as verb, job:
            event = {"suspend": JobSuspended, "resume": JobResumed, "cancel": JobCancelled}[verb]
            world.feed(event(at_s=now_s, job_id=job.id))  # type: ignore[attr-defined]
        case "end", job:
            end_if_training(world, job.id, now_s)  # type: ignore[attr-defined]
        case verb, int(index):
            answer(world, verb, index, now_s)


def end_if_training(world: World, job_id: str, now_s: float) -> None:
    job = world.cluster.jobs.get(job_id)
    if job and job.node_ids and not job.is_over:
        world.feed(JobFinished(at_s=now_s, job_id=job_id, samples=job.done_samples))


def answer(world: World, verb: str, index: int, now_s: float) -> None:
    """End an order under way, or break a member, as the live system would report it."""
    if not world.pending:
        return
    action = world.pending.pop(index % len(world.pending))
    job = world.job(action.job_id)
    if verb == "crash" and job.node_ids:
        world.pending.append(action)
        world.feed(
            WorkersLost(
                at_s=now_s,
                job_id=action.job_id,
                generation=job.running_generation,
                node_ids=job.node_ids[:1],
                reason="crash",
            )
        )
    elif verb in ("failed", "dead") and isinstance(action, Rescale) and action.node_ids:
        world.feed(
            RescaleFailed(
                at_s=now_s,
                job_id=action.job_id,
                generation=action.generation,
                reason="drawn",
                node_ids=job.node_ids,
                is_group_dead=verb == "dead",
                is_job_fault=verb == "failed",
            )
        )
    else:
        alive = [n for n in getattr(action, "node_ids", ()) if n in world.cluster.nodes]
        world.feed(
            RescaleDone(
                at_s=now_s,
                job_id=action.job_id,
                generation=action.generation,
                node_ids=tuple(alive),
                stall_s=0.2,
                samples=job.done_samples * 0.9,
            )
        )


def check_rules(world: World) -> None:
    """`World` has checked ownership and the ledger; here what users see of counts."""
    for job in world.cluster.jobs.values():
        assert len(job.node_ids) <= job.spec.max_nodes
        if job.phase is Phase.FINISHED:
            assert job.held_node_ids == ()
    for event in world.journal:
        for action in getattr(event, "actions", ()):
            if isinstance(action, Rescale) and action.node_ids:
                bounds = world.job(action.job_id).spec
                assert bounds.min_nodes <= len(action.node_ids) <= bounds.max_nodes
                assert len(set(action.node_ids)) == len(action.node_ids)


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(AdvisorKind), steps)
def test_rules_hold_whatever_happens(kind: AdvisorKind, drawn: list[tuple[str, object]]) -> None:
    world = World(CoreSettings(advisor=AdvisorSettings(kind=kind)), is_patient=True)
    world.truth = {"j1": {n: 100.0 * n**0.3 for n in range(1, 9)}}
    world.join(*NODES[:4])
    world.submit(*JOBS[:2])
    for what, value in drawn:
        play(world, what, value)
        check_rules(world)

    # The journal rebuilds the state, through its written form.
    written = msgspec.json.encode(world.journal)
    journal = msgspec.json.decode(written, type=list[AnyEvent])
    assert replay(journal) == world.cluster

    # Every answer to an order that is no more is a no-op.
    for event in world.journal:
        if isinstance(event, RescaleDone | RescaleFailed):
            assert apply(world.cluster, event) == world.cluster


@settings(max_examples=120, deadline=None)
@given(steps)
def test_once_things_calm_down_all_usable_nodes_train(drawn: list[tuple[str, object]]) -> None:
    world = World(is_patient=True)
    world.submit(spec("hungry", most=8))
    for what, value in drawn:
        play(world, what, value)
    if world.job("hungry").phase is not Phase.ACTIVE:
        return
    world.join(*NODES)
    world.feed(WokeUp(at_s=world.now_s + 1e4))
    world.finish()
    for _ in range(4):
        world.feed(WokeUp(at_s=world.now_s + 1e4))
        world.finish()
    staying = [n for n in world.cluster.nodes.values() if n.leaving_at_s is None]
    held = {n for job in world.cluster.jobs.values() for n in job.held_node_ids}
    wanted = sum(j.spec.max_nodes for j in world.cluster.jobs.values() if j.phase is Phase.ACTIVE)
    assert len(held & {n.id for n in staying}) >= min(len(staying), wanted) - 2
    assert not any(isinstance(action, Stop) for action in world.pending)
