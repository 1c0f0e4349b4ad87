from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from malletrain.cli.main import app
from malletrain.traces.stats import TraceSummary, most_idle_nodes, size_at, summary
from tests.traces.logs import load_text

LOG = """node,idle_from_s,idle_to_s
a,0,100
b,50,1000
c,50,90
c,500,1100
d,700,7000
a,9000,10000
"""


def of(directory: Path, text: str = LOG, nodes: int | None = None) -> TraceSummary:
    return summary(load_text(directory, text, nodes=nodes))


def test_how_much_is_idle(tmp_path: Path) -> None:
    found = of(tmp_path, nodes=10)
    total_s = 100 + 950 + 40 + 600 + 6300 + 1000
    assert found.idle_node_s == total_s
    assert found.mean_idle_nodes == total_s / 10_000
    assert found.idle_share == total_s / 100_000
    assert (found.nodes, found.intervals) == (4, 6)
    assert of(tmp_path).idle_share is None


def test_the_median_of_idle_nodes_is_over_time(tmp_path: Path) -> None:
    head = "node,idle_from_s,idle_to_s\n"
    assert of(tmp_path, head + "a,0,100\nb,0,49\nc,0,49\n").median_idle_nodes == 1
    assert of(tmp_path, head + "a,0,100\nb,0,51\nc,0,51\n").median_idle_nodes == 3
    assert of(tmp_path, head + "a,0,10\nb,90,100\n").median_idle_nodes == 0


def test_the_most_idle_at_once_is_of_a_part_and_one_that_left_counts_no_more(
    tmp_path: Path,
) -> None:
    trace = load_text(tmp_path, LOG)
    assert most_idle_nodes(trace, 0, 10_000) == 3
    assert most_idle_nodes(trace, 0, 50) == 1
    assert most_idle_nodes(trace, 100, 600) == 2
    assert most_idle_nodes(trace, 7000, 9000) == 0


def test_what_the_logs_own_ends_cause_is_no_event(tmp_path: Path) -> None:
    found = of(tmp_path)
    # Joins at 50 (two nodes), 500, 700, 9000; leaves at 90, 100, 1000, 1100, 7000.
    assert found.events == 9
    assert found.join_sizes == ((1, 3), (2, 1))
    assert found.leave_sizes == ((1, 5),)
    assert found.median_event_gap_s == pytest.approx(250)


def test_how_long_fragments_are(tmp_path: Path) -> None:
    found = of(tmp_path)
    assert found.median_interval_s == 775
    assert found.mean_interval_s == pytest.approx(8990 / 6)
    assert found.duration_bounds_s[:3] == (60, 600, 3600)
    assert found.share_of_count == pytest.approx([1 / 6, 1 / 6, 3 / 6, 1 / 6, 0, 0])
    assert found.share_of_time == pytest.approx(
        [40 / 8990, 100 / 8990, 2550 / 8990, 6300 / 8990, 0, 0]
    )


def test_how_many_leave_within_a_minute_depends_on_their_age(tmp_path: Path) -> None:
    lasts_s = [59, 60, 119, 120, 359, 4000]
    log = "node,idle_from_s,idle_to_s\n" + "".join(
        f"n{i},0,{lasts}\n" for i, lasts in enumerate(lasts_s)
    )
    found = of(tmp_path, log + "late,3990,4000\n")
    # The node that the log's end takes from view after 10 s says nothing of its first minute.
    assert found.ages_s[:3] == (0, 60, 300)
    assert found.share_leaving_by_age[:3] == pytest.approx((1 / 6, 2 / 5, 1 / 2))


def test_a_size_is_found_by_its_share_of_the_moments() -> None:
    sizes = ((1, 5), (4, 3), (9, 2))
    assert [size_at(sizes, share) for share in (0.5, 0.51, 0.8, 1.0)] == [1, 4, 4, 9]
    assert size_at((), 0.5) == 0


def test_the_command_prints_a_table_and_what_was_assumed(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(LOG + "a,10")
    result = CliRunner().invoke(app, ["trace", "stats", str(path), "--nodes", "10"])
    assert result.exit_code == 0, result.output
    assert "share of the machine's time" in result.stdout
    assert " 9.0%\n" in result.stdout
    assert result.stderr == "a last line that was cut off, left out: 1\n"


def test_the_command_prints_json(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(
        "1|2026-01-05T00:00|2026-01-05T01:00|a\n2|2026-01-05T00:00|2026-01-05T00:30|b\n"
    )
    arguments = ["trace", "stats", str(path), "--columns", "JobID, Start, End, NodeList"]
    arguments += ["--warm-up-s", "0", "--drain-s", "0", "--time-zone", "Europe/Berlin", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = msgspec.json.decode(result.stdout)
    assert found["idle_node_s"] == 1800
    assert found["idle_share"] == 0.25
    assert any("all that the log names: 2" in note for note in found["notes"])


def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    result = CliRunner().invoke(app, ["trace", "stats", str(path), "--outage-s", "60"])
    assert result.exit_code == 2
    assert result.stderr == ("malletrain: --outage-s cannot apply to a log of the format idle\n")
    result = CliRunner().invoke(app, ["trace", "stats", str(tmp_path / "no.csv")])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
