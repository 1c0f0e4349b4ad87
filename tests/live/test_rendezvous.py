from __future__ import annotations

import pytest

from malletrain.live import rendezvous as module
from malletrain.live.rendezvous import Rendezvous
from malletrain.wire import StoreAdd, StoreGet, StoreSet, StoreValue


class Room:
    def __init__(self) -> None:
        self.answers: list[tuple[str, int, bytes]] = []
        self.keys = Rendezvous(self.answer)

    def answer(self, node_id: str, value: StoreValue) -> None:
        self.answers.append((node_id, value.request, value.value))

    def set(self, key: str, value: bytes, generation: int = 1) -> bool:
        return self.keys.set(StoreSet(job_id="j", generation=generation, key=key, value=value))

    def get(self, node: str, key: str, request: int, generation: int = 1) -> bool:
        message = StoreGet(job_id="j", generation=generation, key=key, request=request)
        return self.keys.get(node, message)

    def add(self, node: str, key: str, amount: int, request: int) -> bool:
        message = StoreAdd(job_id="j", generation=1, key=key, amount=amount, request=request)
        return self.keys.add(node, message)


def test_whoever_asks_first_waits() -> None:
    room = Room()
    room.get("a", "k", 1)
    room.get("b", "k", 1)
    assert room.answers == []
    room.set("k", b"v")
    room.get("c", "k", 5)
    assert sorted(room.answers) == [("a", 1, b"v"), ("b", 1, b"v"), ("c", 5, b"v")]


def test_each_generation_has_keys_of_its_own() -> None:
    room = Room()
    room.set("k", b"1", generation=1)
    room.get("a", "k", 1, generation=2)
    assert room.answers == []
    room.set("k", b"2", generation=2)
    assert room.answers == [("a", 1, b"2")]


def test_an_old_generation_meets_no_more() -> None:
    room = Room()
    room.get("a", "k", 1, generation=1)
    room.keys.forget_before("j", 2)
    assert not room.set("k", b"v", generation=1)
    assert not room.get("b", "k", 1, generation=1)
    assert room.set("k", b"v", generation=2)
    assert room.answers == []


def test_a_sum_is_added_to_once_however_often_it_is_asked() -> None:
    room = Room()
    room.add("a", "n", 2, request=1)
    room.add("a", "n", 2, request=1)
    room.add("b", "n", 3, request=1)
    assert room.answers == [("a", 1, b"2"), ("a", 1, b"2"), ("b", 1, b"5")]
    room.set("text", b"abc")
    assert not room.add("a", "text", 1, request=2)


def test_a_lost_node_waits_for_nothing() -> None:
    room = Room()
    room.get("a", "k", 1)
    room.get("b", "k", 2)
    room.keys.forget_node("a")
    room.set("k", b"v")
    assert room.answers == [("b", 2, b"v")]


def test_a_job_that_is_over_may_begin_anew() -> None:
    room = Room()
    room.keys.forget_before("j", 7)
    room.keys.forget_job("j")
    assert room.set("k", b"v", generation=1)


def test_a_space_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SPACE_BYTES", 10)
    room = Room()
    assert room.set("a", b"12345")
    assert not room.set("b", b"12345")
    assert room.set("c", b"1")
