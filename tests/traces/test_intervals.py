from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.errors import TraceError
from malletrain.traces.intervals import IdleInterval, IntervalEnd, read, write

HEADER = "node,idle_from_s,idle_to_s,end\n"


def intervals(text: str) -> list[IdleInterval]:
    return list(read(io.StringIO(text), "log.csv"))


def test_the_columns_that_may_be_missing_have_their_defaults() -> None:
    first, second = intervals("node,idle_from_s,idle_to_s\nnid003,0,475.5\nx,1e3,1192\n")
    assert first == IdleInterval(node="nid003", from_s=0.0, to_s=475.5, group="nid")
    assert second.end is IntervalEnd.PLANNED


def test_a_kill_and_a_group_are_read() -> None:
    (interval,) = intervals("group,node,idle_from_s,idle_to_s,end\nrack 7,n1,5,6,kill\n")
    assert interval == IdleInterval(
        node="n1", from_s=5.0, to_s=6.0, end=IntervalEnd.KILL, group="rack 7"
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "line 1: the first line must name the columns; node, idle_from_s, idle_to_s"),
        ("node,idle_from_s\n", "line 1: the first line must name the columns; idle_to_s"),
        ("node,idle_from_s,idle_to_s,why\n", "line 1: unknown column 'why'"),
        (HEADER + "n1,0,1,planned\nn1,2\n", "line 3: it has another number of columns"),
        (HEADER + "n1,0,1,planned,more\n", "line 2: it has another number of columns"),
        (HEADER + ",0,1,planned\n", "line 2: '' is no node's name"),
        (HEADER + "../n,0,1,planned\n", "line 2: '../n' is no node's name"),
        (HEADER + "n1,zero,1,planned\n", "line 2: idle_from_s is 'zero': it must be seconds"),
        (HEADER + "n1,0,inf,planned\n", "line 2: idle_to_s is 'inf'"),
        (HEADER + "n1,0,1e308,planned\n", "line 2: idle_to_s is '1e308': it must be seconds, 0 to"),
        (HEADER + "n\x1b[1m,0,1,planned\n", "line 2: 'n\\x1b[1m' is no node's name"),
        ("node,node,idle_from_s,idle_to_s\n", "line 1: the first line names the column node twice"),
        (HEADER + "n1,-1,1,planned\n", "line 2: idle_from_s is '-1'"),
        (HEADER + "n1,5,5,planned\n", "line 2: idle_to_s 5 is not after idle_from_s 5"),
        (HEADER + "n1,0,1,crash\n", "line 2: end is 'crash': it may be planned or kill"),
        (HEADER + "n1,5,6,kill\nn2,4,6,kill\n", "line 3: it starts before the line above"),
        (HEADER + "n1,0,9,kill\nn1,8,12,kill\n", "line 3: it overlaps another interval of"),
        (HEADER + 'n1,0,"9,kill\n', "line 2: unexpected end of data"),
    ],
)
def test_a_wrong_line_is_named(text: str, error: str) -> None:
    with pytest.raises(TraceError) as caught:
        intervals(text)
    assert str(caught.value).startswith(f"log.csv, {error}")


def test_lines_before_a_wrong_one_are_yielded() -> None:
    stream = read(io.StringIO(HEADER + "n1,0,1,kill\nnonsense\n"), "log.csv")
    assert next(stream).node == "n1"
    with pytest.raises(TraceError):
        next(stream)


tenths = st.integers(0, 10**7).map(lambda tenth: tenth / 10)


@given(st.lists(st.tuples(tenths, tenths, st.sampled_from(IntervalEnd), st.sampled_from("ab,"))))
def test_what_was_written_is_read_back(drawn: list[tuple[float, float, IntervalEnd, str]]) -> None:
    written = [
        IdleInterval(node=f"n{i}", from_s=from_s, to_s=from_s + 1 + lasts_s, end=end, group=group)
        for i, (from_s, lasts_s, end, group) in enumerate(drawn)
    ]
    text = io.StringIO(newline="")
    write(written, text)
    back = intervals(text.getvalue())
    assert [i.from_s for i in back] == sorted(i.from_s for i in written)
    by_node = {i.node: i for i in written}
    for interval in back:
        original = by_node[interval.node]
        assert (interval.end, interval.group) == (original.end, original.group)
        assert interval.to_s == pytest.approx(original.to_s, abs=0.051)


def test_the_bundled_trace_is_one() -> None:
    path = Path(__file__).parents[2] / "examples" / "demo-trace.csv"
    with path.open(newline="") as lines:
        nodes = {interval.node for interval in read(lines, path.name)}
    assert len(nodes) == 8
