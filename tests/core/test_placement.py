from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from malletrain.core.model import Node
from malletrain.core.placement import assign, natural_key
from malletrain.core.settings import PlacementKind


def node(
    node_id: str, group: str = "", end_s: float | None = None, leaving_s: float | None = None
) -> Node:
    return Node(node_id, 0.0, group=group, expected_end_at_s=end_s, leaving_at_s=leaving_s)


def cabinet(number: int, size: int) -> list[Node]:
    return [node(f"h{number}n{i}", f"h{number}") for i in range(1, size + 1)]


def by_id(*nodes: Node) -> dict[str, Node]:
    return {n.id: n for n in nodes}


@dataclass(frozen=True)
class Case:
    targets: dict[str, int]
    held: dict[str, tuple[str, ...]]
    free: list[Node]
    nodes: dict[str, Node]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    nodes = [
        node(
            f"h{group}n{i}",
            f"h{group}",
            draw(st.none() | st.floats(0, 100)),
            draw(st.sampled_from([None, None, None, 50.0])),
        )
        for group in range(draw(st.integers(1, 4)))
        for i in range(draw(st.integers(1, 6)))
    ]
    shuffled = draw(st.permutations(nodes))
    jobs = [f"j{i}" for i in range(draw(st.integers(1, 4)))]
    holder = {n.id: draw(st.sampled_from([*jobs, ""])) for n in shuffled}
    held = {job: tuple(n.id for n in shuffled if holder[n.id] == job) for job in jobs}
    targets = {job: draw(st.integers(0, 8)) for job in jobs}
    free = [n for n in shuffled if not holder[n.id]]
    return Case(targets, held, free, by_id(*nodes))


@given(cases())
def test_every_rule_of_placement_holds(case: Case) -> None:
    placed = assign(case.targets, case.held, case.free, case.nodes)
    assert placed.keys() == case.targets.keys()
    everything = [n for nodes in placed.values() for n in nodes]
    assert len(everything) == len(set(everything)), "a node was given twice"
    assert all(case.nodes[n].leaving_at_s is None for n in everything)

    free = {n.id for n in case.free if n.leaving_at_s is None}
    short = 0
    for job, target in case.targets.items():
        usable = [n for n in case.held[job] if case.nodes[n].leaving_at_s is None]
        survivors = [n for n in placed[job] if n in case.held[job]]
        joiners = placed[job][len(survivors) :]
        assert placed[job][: len(survivors)] == tuple(survivors), "survivors come first"
        assert survivors == [n for n in usable if n in survivors], "in rank order"
        assert len(survivors) == min(target, len(usable)), "nobody migrates"
        assert free.issuperset(joiners)
        assert len(placed[job]) <= target
        short += target - len(placed[job])
    assert short == 0 or free.issubset(everything), "free nodes are left while a job lacks some"


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_free_nodes_does_not_matter(case: Case, random: Random) -> None:
    shuffled = list(case.free)
    random.shuffle(shuffled)
    assert assign(case.targets, case.held, shuffled, case.nodes) == assign(
        case.targets, case.held, case.free, case.nodes
    )


def test_names_are_ordered_as_people_do() -> None:
    assert sorted(["h10n1", "h9n10", "h9n2", "login"], key=natural_key) == [
        "h9n2",
        "h9n10",
        "h10n1",
        "login",
    ]


def test_a_growing_job_prefers_the_groups_it_holds() -> None:
    nodes = by_id(*cabinet(1, 4), *cabinet(2, 4))
    placed = assign({"a": 4}, {"a": ("h2n3",)}, [nodes[n] for n in nodes if n != "h2n3"], nodes)
    assert placed["a"] == ("h2n3", "h2n1", "h2n2", "h2n4")


def test_jobs_stand_side_by_side_along_the_line_of_groups() -> None:
    free = [*cabinet(10, 2), *cabinet(2, 3), *cabinet(1, 2)]
    placed = assign({"a": 3, "b": 4}, {}, free, by_id(*free))
    assert placed["a"] == ("h1n1", "h1n2", "h2n1")
    assert placed["b"] == ("h2n2", "h2n3", "h10n1", "h10n2")


def test_of_a_group_those_that_stay_longest_go_first() -> None:
    free = [
        node("h1n1", "h1", end_s=50.0),
        node("h1n2", "h1", end_s=90.0),
        node("h1n3", "h1"),
        node("h2n1", "h2"),
    ]
    placed = assign({"a": 2, "b": 2}, {}, free, by_id(*free))
    assert placed == {"a": ("h1n3", "h1n2"), "b": ("h1n1", "h2n1")}


def test_in_join_order_nodes_go_out_as_they_came() -> None:
    free = [*cabinet(2, 1), *cabinet(1, 1), *cabinet(3, 1)]
    placed = assign({"a": 2}, {}, free, by_id(*free), PlacementKind.JOIN_ORDER)
    assert placed["a"] == ("h2n1", "h1n1")


def test_by_lifetime_the_longest_lived_go_first() -> None:
    free = [node("n1", end_s=50.0), node("n2", end_s=90.0), node("n3", end_s=20.0)]
    placed = assign({"a": 2}, {}, free, by_id(*free), PlacementKind.LIFETIME)
    assert placed["a"] == ("n2", "n1")


def test_a_shrinking_job_gives_up_its_smallest_groups() -> None:
    nodes = by_id(*cabinet(1, 3), *cabinet(2, 1), *cabinet(3, 2))
    placed = assign({"a": 3}, {"a": ("h2n1", "h1n1", "h3n1", "h1n2", "h3n2", "h1n3")}, [], nodes)
    assert placed["a"] == ("h1n1", "h1n2", "h1n3")


def test_within_a_group_what_ends_soonest_goes_first() -> None:
    nodes = by_id(node("n1"), node("n2", end_s=50.0), node("n3", end_s=20.0), node("n4"))
    placed = assign({"a": 2}, {"a": ("n4", "n3", "n2", "n1")}, [], nodes)
    assert placed["a"] == ("n4", "n1")


def test_leaving_and_lost_nodes_are_replaced() -> None:
    nodes = by_id(node("n1"), node("n2", leaving_s=9.0), node("n4"), node("n5"))
    held = {"a": ("n1", "n2", "n3")}
    placed = assign({"a": 3}, held, [nodes["n4"], nodes["n5"]], nodes)
    assert placed["a"] == ("n1", "n4", "n5")


def test_what_is_given_up_is_not_given_out_at_once() -> None:
    nodes = by_id(node("n1"), node("n2"), node("n3"))
    placed = assign({"a": 1, "b": 2}, {"a": ("n1", "n2")}, [nodes["n3"]], nodes)
    assert placed == {"a": ("n1",), "b": ("n3",)}


def test_too_few_free_nodes_go_to_the_jobs_in_order() -> None:
    free = [node(f"n{i}") for i in range(5)]
    placed = assign({"a": 4, "b": 4, "c": 4}, {}, free, by_id(*free))
    assert {job: len(nodes) for job, nodes in placed.items()} == {"a": 4, "b": 1, "c": 0}
