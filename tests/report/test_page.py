from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.errors import JournalError
from malletrain.live.store import SqliteStore
from malletrain.report import Comparison, gather
from malletrain.report.page import clock, render, write_report
from tests.report.parsed_page import ParsedPage
from tests.report.story import two_jobs


@pytest.fixture(scope="module")
def page() -> ParsedPage:
    twin = Comparison(
        final_loss=0.51234,
        twin_final_loss=0.51236,
        tolerance=1e-3,
        twin_losses=((100.0, 2.0), (200.0, 1.0)),
        is_exactly_once=True,
        stated_rates=(0.0, 100.0, 150.0),
    )
    run = gather(two_jobs().events, {"wide": twin})
    return ParsedPage(render(run, ["The device is <emulated>."]))


def test_the_page_is_well_formed_and_needs_nothing_else(page: ParsedPage) -> None:
    page.assert_it_is_whole()


def test_the_page_tells_the_run(page: ParsedPage) -> None:
    text = page.text
    assert "2 malleable training jobs" in text
    assert "0.51236" in text
    assert "The device is <emulated>." in text
    assert "8 decisions" in text
    assert "undisturbed" in text
    assert "lost to preemption" in text


def test_without_twins_and_data_nothing_is_said_of_them() -> None:
    story = two_jobs()
    assert "nothing measured" not in render(gather(story.events))
    story.submit("late", max_nodes=2)
    text = render(gather(story.events))
    assert text.count("nothing measured") == 2
    for word in ("exactly once", "undis-", "trained the same"):
        assert word not in text


def test_a_page_of_no_events_can_be_read() -> None:
    assert "0 malleable training jobs" in render(gather([]))


def test_the_report_is_written_from_a_journal(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "journal.sqlite")
    store.append(two_jobs().events)
    store.close()
    run = write_report(tmp_path / "journal.sqlite", tmp_path / "report.html")
    assert run.node_events == 11
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_without_a_journal_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no journal"):
        write_report(tmp_path / "journal.sqlite", tmp_path / "report.html")


def test_times_are_written_as_on_a_clock() -> None:
    assert [clock(7.4), clock(187), clock(3723)] == ["0:07", "3:07", "1:02:03"]
