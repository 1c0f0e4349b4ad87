from __future__ import annotations

import math
import re
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.core import advisor
from malletrain.core.advisor import explain, is_known, measuring_ends_at_s, scales
from malletrain.core.ledger import JobLedger, Ledger, NodeSeconds
from malletrain.core.model import (
    Cluster,
    Job,
    JobSpec,
    Node,
    Phase,
    Pin,
    RescaleCost,
    Scalability,
)
from malletrain.core.scalability import observe
from malletrain.core.settings import AdvisorKind, AdvisorSettings, CoreSettings
from malletrain.core.view import View

INFORMED = CoreSettings()
INVERSE = CoreSettings(advisor=AdvisorSettings(kind=AdvisorKind.INVERSE_ORDER))
STATIC = CoreSettings(advisor=AdvisorSettings(kind=AdvisorKind.STATIC))


def advise(state: Cluster, settings: CoreSettings) -> dict[str, Pin]:
    return advisor.advise(View(msgspec.structs.replace(state, settings=settings)))


def job(job_id: str, *, model: str = "", most: int = 64, least: int = 1, owner: str = "") -> Job:
    spec = JobSpec(job_id, job_id, least, most, model or job_id, owner=owner)
    return Job(spec, submitted_at_s=0.0)


def cluster(nodes: int, *jobs: Job) -> Cluster:
    return Cluster(
        now_s=1000.0,
        nodes={f"n{i}": Node(f"n{i}", 0.0) for i in range(nodes)},
        jobs={j.spec.id: j for j in jobs},
    )


def placed(state: Cluster, counts: dict[str, int]) -> Cluster:
    """The state with its jobs training on so many nodes."""
    names = iter(state.nodes)
    return changed(
        state, **{j: {"node_ids": tuple(next(names) for _ in range(n))} for j, n in counts.items()}
    )


def changed(state: Cluster, **jobs: dict[str, object]) -> Cluster:
    new = {j: msgspec.structs.replace(state.jobs[j], **fields) for j, fields in jobs.items()}
    return msgspec.structs.replace(state, jobs={**state.jobs, **new})


def later(state: Cluster, seconds: float) -> Cluster:
    return msgspec.structs.replace(state, now_s=state.now_s + seconds)


def measured(
    state: Cluster, model: str, *points: tuple[int, float], steps: int = 100, noise: float = 0.02
) -> Cluster:
    scalability = state.curves.get(model, Scalability())
    for nodes, rate in points:
        scalability = observe(scalability, nodes, rate, (noise * rate) ** 2, steps)
    return msgspec.structs.replace(state, curves={**state.curves, model: scalability})


def followed(
    state: Cluster, settings: CoreSettings, rate: Callable[[int], float]
) -> tuple[Cluster, list[dict[str, int]]]:
    """Obey the advisor until it asks for nothing; return its pins by job at each step."""
    history = []
    for _ in range(100):
        pins = advise(state, settings)
        if not pins:
            return state, history
        history.append({j: pin.nodes for j, pin in pins.items()})
        state = changed(state, **{j: {"pin": pins.get(j)} for j in state.jobs})
        state = placed(state, history[-1])
        ledger = {
            j: JobLedger(node_s=NodeSeconds(profiling=10.0))
            for j in {j for h in history for j in h}
        }
        state = later(msgspec.structs.replace(state, ledger=Ledger(jobs=ledger)), 10.0)
        for j, nodes in history[-1].items():
            state = measured(state, state.jobs[j].spec.model_key, (nodes, rate(nodes)))
    pytest.fail("the advisor never comes to an end")


def test_scales_go_down_in_equal_ratios_with_both_ends() -> None:
    assert scales(1, 64, 4) == (64, 16, 4, 1)
    assert scales(2, 3, 4) == (3, 2)
    assert scales(5, 5, 4) == (5,)
    assert scales(1, 8, 1) == (8,)


def test_inverse_order_steps_down_from_the_largest_scale_and_then_lets_go() -> None:
    state = cluster(80, job("a"))
    _, history = followed(state, INVERSE, lambda n: 10.0 * n)
    assert history == [{"a": 64}, {"a": 16}, {"a": 4}, {"a": 1}]


def test_inverse_order_starts_at_what_there_is() -> None:
    _, history = followed(cluster(40, job("a")), INVERSE, lambda n: 10.0 * n)
    assert history == [{"a": 40}, {"a": 16}, {"a": 4}, {"a": 1}]


def test_turns_wait_for_room_and_only_some_jobs_are_profiled_at_once() -> None:
    jobs = [job(f"j{i}", most=8) for i in range(6)]
    settings = CoreSettings(
        advisor=AdvisorSettings(kind=AdvisorKind.INVERSE_ORDER, max_profiling_jobs=2)
    )
    assert advise(cluster(20, *jobs), settings).keys() == {"j0", "j1"}
    assert advise(cluster(10, *jobs), settings).keys() == {"j0"}
    _, history = followed(cluster(10, *jobs), settings, lambda n: 10.0 * n)
    assert {j for pins in history for j in pins} == {j.spec.id for j in jobs}
    assert all(sum(pins.values()) <= 10 for pins in history)


def test_jobs_of_one_model_are_profiled_once() -> None:
    state = cluster(80, job("a", model="m", most=16), job("b", model="m", most=16))
    _, history = followed(state, INVERSE, lambda n: 10.0 * n)
    assert {j for pins in history for j in pins} == {"a"}


def test_a_scale_that_is_never_known_is_left_when_the_budget_is_spent() -> None:
    state = placed(cluster(80, job("a")), {"a": 64})
    state = changed(state, a={"pin": Pin(64, 900.0, "", reached_at_s=950.0)})
    assert advise(later(state, 9.0), INVERSE)["a"].nodes == 64
    assert measuring_ends_at_s(advise(state, INVERSE), INVERSE.advisor) == 1010.0
    assert advise(later(state, 10.0), INVERSE)["a"].nodes == 16
    assert advise(later(state, 10.0), INFORMED) == {}


def test_the_budget_counts_from_when_the_scale_is_reached() -> None:
    pin = Pin(64, 950.0, "")
    state = changed(cluster(80, job("a")), a={"pin": pin})
    assert advise(state, INVERSE)["a"] is pin
    reached = advise(placed(state, {"a": 64}), INVERSE)["a"]
    assert reached.reached_at_s == 1000.0
    state = changed(placed(state, {"a": 64}), a={"pin": reached})
    assert advise(later(state, 59.0), INVERSE)["a"] is reached


def test_a_pin_larger_than_what_is_left_skips_to_what_is_possible() -> None:
    state = changed(cluster(10, job("a")), a={"pin": Pin(64, 990.0, "")})
    assert advise(state, INVERSE)["a"].nodes == 4
    assert advise(changed(cluster(0, job("a")), a={"pin": Pin(64, 990.0, "")}), INVERSE) == {}


@pytest.mark.parametrize(
    "fields", [{"phase": Phase.SUSPENDED}, {"phase": Phase.FINISHED}, {"retry_at_s": 2000.0}]
)
@pytest.mark.parametrize("settings", [INFORMED, INVERSE])
def test_a_job_that_is_not_to_run_is_not_pinned(
    fields: dict[str, object], settings: CoreSettings
) -> None:
    state = changed(cluster(80, job("a")), a={"pin": Pin(16, 990.0, ""), **fields})
    assert advise(state, settings) == {}


def test_leaving_nodes_and_quotas_bound_the_pins() -> None:
    state = cluster(20, job("a", owner="ann"), job("b", owner="ann"))
    leaving = {n: msgspec.structs.replace(state.nodes[n], leaving_at_s=1.0) for n in ("n0", "n1")}
    state = msgspec.structs.replace(state, nodes={**state.nodes, **leaving})
    # 18 stay, and one of them is the minimum of b.
    assert advise(state, INVERSE)["a"].nodes == 17
    settings = msgspec.structs.replace(INVERSE, quotas={"ann": 6})
    assert {j: pin.nodes for j, pin in advise(state, settings).items()} == {"a": 5}


def test_the_static_advisor_pins_nothing() -> None:
    assert advise(cluster(80, job("a")), STATIC) == {}


def contended(
    cost: RescaleCost | None = None, second: tuple[tuple[int, float], ...] = ((8, 70.0),)
) -> Cluster:
    """Two jobs share all nodes; of the second, only its present scale is known."""
    state = placed(cluster(16, job("a", most=16), job("b", most=16)), {"a": 8, "b": 8})
    state = measured(state, "a", (1, 10.0), (3, 29.0), (6, 56.0), (8, 72.0), (16, 130.0))
    state = measured(state, "b", *second)
    costs = {} if cost is None else {"a": cost, "b": cost}
    return msgspec.structs.replace(state, rescale_costs=costs)


def test_informed_asks_where_the_answer_may_change_what_is_best() -> None:
    pins = advise(contended(), INFORMED)
    assert pins.keys() == {"b"}
    assert pins["b"].nodes in scales(1, 16, 4)
    assert "times what it costs" in pins["b"].reason


def test_informed_does_not_ask_when_rescales_cost_more_than_the_answer_is_worth() -> None:
    dear = RescaleCost(scale_up_s=600.0, scale_down_s=600.0)
    assert advise(contended(dear), INFORMED) == {}


def test_informed_does_not_ask_what_it_knows() -> None:
    known = ((1, 10.0), (3, 28.0), (6, 54.0), (8, 70.0), (16, 128.0))
    assert advise(contended(second=known), INFORMED) == {}


def test_informed_does_not_ask_for_a_job_about_to_end() -> None:
    state = contended()
    spec = msgspec.structs.replace(state.jobs["b"].spec, work_samples=1000.0)
    state = changed(state, b={"spec": spec, "done_samples": 900.0})
    assert advise(state, INFORMED) == {}


def test_informed_waits_until_the_present_scale_is_known_and_steady() -> None:
    state = contended()
    assert advise(measured(msgspec.structs.replace(state, curves={}), "a"), INFORMED) == {}
    assert advise(changed(state, b={"is_broken": True}), INFORMED) == {}


def test_informed_profiles_a_job_at_one_scale_at_most() -> None:
    _, history = followed(contended(), INFORMED, lambda n: 9.0 * n**0.98)
    assert len({pins["b"] for pins in history}) == 1


@given(
    nodes=st.integers(0, 100),
    jobs=st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 60), st.none() | st.integers(1, 80)),
        max_size=8,
    ),
    kind=st.sampled_from(AdvisorKind),
    passed_s=st.floats(0, 200),
)
def test_pins_always_fit(
    nodes: int, jobs: list[tuple[int, int, int | None]], kind: AdvisorKind, passed_s: float
) -> None:
    members = []
    for i, (least, more, pinned) in enumerate(jobs):
        pin = None if pinned is None else Pin(max(pinned, least), 1000.0, "")
        member = job(f"j{i}", least=least, most=least + more)
        members.append(msgspec.structs.replace(member, pin=pin))
    settings = CoreSettings(advisor=AdvisorSettings(kind=kind))
    state = later(cluster(nodes, *members), passed_s)
    pins = advise(state, settings)
    assert sum(pin.nodes for pin in pins.values()) <= nodes
    for job_id, pin in pins.items():
        assert pin.nodes >= state.jobs[job_id].spec.min_nodes
    assert advise(state, settings) == pins


def test_a_scale_is_known_by_its_interval_and_its_steps() -> None:
    member = job("a")
    state = cluster(8, member)
    assert not is_known(member, 4, state)
    assert not is_known(member, 4, measured(state, "a", (4, 10.0), steps=7))
    assert is_known(member, 4, measured(state, "a", (4, 10.0), steps=8))
    noisy = measured(state, "a", (4, 10.0), steps=8, noise=0.5)
    assert not is_known(member, 4, noisy)
    enough = math.ceil((1.96 * 0.5 / INFORMED.advisor.relative_precision) ** 2)
    assert is_known(member, 4, measured(state, "a", (4, 10.0), steps=enough, noise=0.5))


def test_explain_tells_what_is_known_and_what_is_being_measured() -> None:
    state = cluster(80, job("a"))
    assert "nothing is measured" in explain(state.jobs["a"], state)
    state = placed(measured(state, "a", (4, 40.0)), {"a": 4})
    state = changed(state, a={"pin": Pin(16, 990.0, "the largest scale first")})
    text = explain(state.jobs["a"], state)
    assert "measured on 4 (±0.4%) nodes" in text
    assert re.search(r"it should do (39|40)[.0-9]* samples/s ± 2%", text)
    assert "held at 16 nodes" in text
    assert "the largest scale first" in text
    assert text.endswith(".")
