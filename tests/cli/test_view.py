from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from malletrain.cli import watch
from malletrain.cli.view import Usage, cluster_screen, sparkline, usage
from malletrain.live.state_dir import StateDir
from malletrain.live.views import ClusterView
from tests.cli.fake_controller import fake_controller
from tests.cli.views import empty_cluster, job, large_cluster, node, small_cluster

HISTORY = [Usage(used, 8) for used in (0, 2, 5, 8, 6)] * 80


def drawn(
    view: ClusterView, width: int, height: int, history: Sequence[Usage] = HISTORY
) -> list[str]:
    """What a terminal a good deal larger would show: overflow is not cut off here."""
    console = Console(width=width * 4, height=height * 4, color_system=None)
    with console.capture() as capture:
        console.print(cluster_screen(view, width, height, history))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize(
    "view",
    [empty_cluster(), small_cluster(), large_cluster(), large_cluster(300, 4, 1)],
    ids=["empty", "small", "large", "one-group"],
)
@pytest.mark.parametrize(
    ("width", "height"), [(40, 12), (80, 24), (100, 30), (132, 43), (160, 45), (200, 60)]
)
def test_nothing_leaves_the_screen(view: ClusterView, width: int, height: int) -> None:
    lines = drawn(view, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 45)])
def test_says_what_a_reader_wants_to_know(width: int, height: int) -> None:
    text = "\n".join(drawn(small_cluster(), width, height))
    assert "7/8 nodes used, 1 leaving" in text
    assert "25.9k samples/s" in text
    assert "4 running, 1 waiting, 1 over" in text
    for fact in ("digits-cnn", "2→3", "profiling", "12.3k/50k  25%", "0.4321", "4/3/1", "failed"):
        assert fact in text
    for held in ("node-1 digits-cnn", "node-5 idle", "node-6 ↓compute-heavy", "node-7 ↑digits-cnn"):
        assert held in text
    assert "training 84%" in text or "training 1.21k (83.6%)" in text
    assert "4s ago: node-6 leaves: compute-heavy 1→0" in text
    assert "broken: exited with 1 after 3 restarts" in text
    assert "3 malformed messages" in text
    assert "refused" not in text
    assert "Traceback" not in text


def test_a_wide_screen_says_more() -> None:
    head = next(line for line in drawn(small_cluster(), 200, 45) if line.startswith("JOB"))
    for title in ("min-max", "stall", "node-s", "measured at", "note"):
        assert title in head


def test_the_busiest_jobs_and_the_sum_of_the_others() -> None:
    lines = drawn(large_cluster(), 80, 24)
    jobs = [line for line in lines if line.startswith("sweep-")]
    more = next(line for line in lines if line.startswith("… and") and "samples/s" in line)
    assert len(jobs) >= 5
    assert f"… and {1000 - len(jobs)} more" in more


def test_all_groups_are_accounted_for() -> None:
    lines = drawn(large_cluster(), 80, 24)
    shown = [line for line in lines if "125 nodes: 1" in line]
    more = next(line for line in lines if "more groups" in line)
    assert f"{40 - len(shown)} more groups: {5000 - 125 * len(shown):,} nodes" in more


def test_failed_and_finished_jobs_come_last() -> None:
    lines = drawn(small_cluster(), 80, 24)
    order = [
        i for i, line in enumerate(lines) if line.startswith(("mlp-wide", "patient", "broken"))
    ]
    names = [lines[i].split()[0] for i in order]
    assert names[:3] == ["mlp-wide", "patient", "broken"]


def test_trouble_is_said_at_the_top() -> None:
    view = msgspec.structs.replace(small_cluster(), trouble="the journal cannot be written")
    assert drawn(view, 80, 24)[1] == "trouble  the journal cannot be written"


def test_an_empty_cluster_says_what_to_do() -> None:
    text = "\n".join(drawn(empty_cluster(), 80, 24, ()))
    assert "malletrain submit" in text
    assert "NODES  none" in text
    assert "none yet" in text


def test_sparkline_shows_full_and_none() -> None:
    assert sparkline([0, 1, 4, 8], 8) == "·▂▅█"


def test_usage_counts_held_nodes() -> None:
    assert usage(small_cluster()) == Usage(used_nodes=7, offered_nodes=8)


def test_rows_keep_their_places() -> None:
    view = small_cluster()
    jobs = [job(n, name, nodes=("x",) * n) for n, name in enumerate(("aa", "bb", "cc"))]
    nodes = [node(f"node-{n}", group, "idle") for n in (10, 2) for group in ("g10", "g2")]
    view = msgspec.structs.replace(view, jobs=tuple(reversed(jobs)), nodes=tuple(nodes))
    lines = drawn(view, 80, 24)
    assert [line[:2] for line in lines if line[:2] in ("aa", "bb", "cc")] == ["aa", "bb", "cc"]
    drawn_nodes = [line.split() for line in lines if "node-10" in line]
    assert [line[0] for line in drawn_nodes] == ["g2", "g10"]
    assert all(line[1] == "node-2" for line in drawn_nodes)


def test_what_is_not_known_or_not_wrong_is_not_shown_as_a_figure() -> None:
    jobs = (
        job(1, "fresh", samples_per_s=0.0, work_samples=None, done_samples=0.0),
        job(2, "paused", activity="waiting", phase="suspended", samples_per_s=0.0),
    )
    view = msgspec.structs.replace(empty_cluster(), jobs=jobs, counters={"refused_tokens": 0})
    lines = drawn(view, 80, 24, ())
    assert "jobs: 1 running, 1 suspended" in lines[0]
    assert "\N{EN DASH}" in next(line for line in lines if line.startswith("fresh"))
    assert not any(line.startswith("ports") for line in lines)


def test_interrupting_top_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with fake_controller(StateDir(tmp_path)) as controller:
        controller.answers["GET /v1/state"] = (200, small_cluster())

        def interrupt(_: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(watch.sys.stdout, "isatty", lambda: True)
        monkeypatch.setattr(watch.time, "sleep", interrupt)
        watch.top(state_dir=tmp_path)
    assert [request.path for request in controller.requests] == ["/v1/state"] * 2
