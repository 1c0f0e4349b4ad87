"""One trace through the simulator and through the live controller: the same decisions, to a byte.

The controller is the one that `malletrain up` runs, with its inbox, pace, progress pool, journal
and recovery; it is told by the world what agents would say, and its orders go to the world.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from malletrain.core.actions import ReleaseNodes, Rescale, WakeAt
from malletrain.core.events import (
    AnyEvent,
    DecisionTaken,
    JobFinished,
    NodesLost,
    ProgressReported,
    RescaleDone,
    WokeUp,
    WorkersLost,
)
from malletrain.core.settings import AdvisorSettings, CoreSettings
from malletrain.sim.settings import LedgerKind, ModelIdentity, ReplayOptions, WorldSettings
from malletrain.sim.world import World
from tests.sim import scenes
from tests.sim.live_replay import LIVE, LiveReplay, live_replay

INTERVALS = scenes.drawn_intervals(1)
WORK = scenes.drawn_workload(1, num_jobs=10, work_s=1000.0)
UNTIL_S = scenes.length_of(INTERVALS)
#: Nodes are taken before a slow job has left them, crash, and are slow; messages are lost.
ROUGH = WorldSettings(
    grace_s=5.0,
    crashes_per_node_day=40.0,
    lost_message_share=0.2,
    slow_node_share=0.2,
    report_every_s=60.0,
)
#: An advisor that asks more than it would by default: pins are part of what is compared.
CURIOUS = CoreSettings(advisor=AdvisorSettings(answer_life_s=600.0))
OPTIONS = ReplayOptions(core=CURIOUS, world=ROUGH, seed=1)


def workers_die(world: World) -> None:
    """Let a worker of the largest job die now and then, on a node that lives."""
    for at_s in (500.0, 1100.0, 1102.0, 2300.0):
        world._agenda.put(at_s, partial(_worker_dies, world, at_s))


def _worker_dies(world: World, at_s: float) -> list[AnyEvent]:
    run = max(world.runs.values(), key=lambda run: len(run.node_ids))
    if not run.node_ids:
        return []
    node_id = run.node_ids[-1]
    events = world._meter.measured(run, at_s)
    world._break(run, {node_id}, at_s, "it raised")
    lost = WorkersLost(
        at_s=at_s,
        job_id=run.job.id,
        generation=run.generation,
        node_ids=(node_id,),
        reason="it raised",
    )
    return [*events, lost]


def replayed(options: ReplayOptions, name: str) -> tuple[bytes, scenes.Replay]:
    journal = BytesIO()
    replay = scenes.replay(INTERVALS, WORK, options, name=name, journal=journal)
    workers_die(replay.world)
    replay.run()
    return journal.getvalue(), replay


@pytest.fixture
def lived(tmp_path: Path) -> Callable[..., LiveReplay]:
    return partial(
        live_replay,
        tmp_path,
        INTERVALS,
        WORK,
        until_s=UNTIL_S,
        mishaps=workers_die,
    )


def decisions(events: tuple[AnyEvent, ...]) -> list[DecisionTaken]:
    return [event for event in events if isinstance(event, DecisionTaken)]


def journal_of(events: tuple[AnyEvent, ...]) -> bytes:
    return b"".join(msgspec.json.encode(decision) + b"\n" for decision in decisions(events))


@pytest.mark.parametrize("is_endless", [False, True], ids=["finite", "endless"])
@pytest.mark.parametrize("name", ["malletrain", "malletrain-inverse-order"])
def test_replay_and_live_controller_decide_alike(
    name: str, is_endless: bool, lived: Callable[..., LiveReplay]
) -> None:
    options = replace(OPTIONS, endless=is_endless)
    journal, replay = replayed(options, name)
    live = lived(options, name=name)
    assert journal_of(live.events) == journal
    assert live.cluster == replay.cluster
    assert_eventful(live.events, is_endless=is_endless)


@pytest.mark.parametrize(
    "options",
    [
        replace(OPTIONS, ledger=LedgerKind.PAPERS, max_parallel=3, repeat=True),
        replace(OPTIONS, identity=ModelIdentity.KNOWN, from_s=600.0),
    ],
    ids=["papers, repeated", "known models, part of the trace"],
)
def test_they_decide_alike_whatever_is_asked_of_the_replay(
    options: ReplayOptions, lived: Callable[..., LiveReplay]
) -> None:
    # The mishaps are of the exact ledger, and of the whole trace.
    journal = BytesIO()
    replay = scenes.replay(INTERVALS, WORK, options, journal=journal)
    replay.run()
    live = lived(options, name="malletrain", mishaps=lambda _world: None)
    assert journal_of(live.events) == journal.getvalue()
    assert live.cluster == replay.cluster
    assert len(decisions(live.events)) > 50


def assert_eventful(events: tuple[AnyEvent, ...], *, is_endless: bool) -> None:
    """Equal journals say little if nothing happened."""
    assert len(decisions(events)) > 100
    kinds = Counter(type(event) for event in events)
    assert kinds[WorkersLost] >= 3
    assert kinds[WokeUp] >= 4
    assert kinds[ProgressReported] > 50
    assert kinds[RescaleDone] > 50
    assert (kinds[JobFinished] > 0) is not is_endless
    reasons = {event.reason for event in events if isinstance(event, NodesLost)}
    assert reasons >= {"taken without notice", "the grace period is over", "released"}
    taken = decisions(events)
    actions = Counter(type(action) for decision in taken for action in decision.actions)
    assert actions.keys() == {Rescale, ReleaseNodes, WakeAt}
    rescales = [a for decision in taken for a in decision.actions if isinstance(a, Rescale)]
    assert any(not rescale.node_ids for rescale in rescales), "no job was suspended"
    pins = {(job_id, pin.nodes) for decision in taken for job_id, pin in decision.pins.items()}
    assert len(pins) >= 2


@pytest.mark.parametrize(
    "change",
    [
        {"live": replace(LIVE, progress_decide_s=30.0)},
        {"live": replace(LIVE, settle_s=0.5)},
        {"live": replace(LIVE, progress_journal_s=60.0)},
        {"name": "malletrain-inverse-order"},
        {"options": replace(OPTIONS, seed=2)},
    ],
    ids=["pace", "batches", "pooling", "advisor", "seed"],
)
def test_a_rule_that_is_different_on_one_side_shows(
    change: dict[str, object], lived: Callable[..., LiveReplay]
) -> None:
    journal, _ = replayed(OPTIONS, "malletrain")
    live = lived(**{"options": OPTIONS, "name": "malletrain", **change})
    assert decisions(live.events)
    assert journal_of(live.events) != journal
