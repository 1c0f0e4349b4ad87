from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from malletrain.errors import JournalError
from malletrain.live.store import SqliteStore
from malletrain.report import Comparison, gather
from malletrain.report.page import clock, render, write_report
from tests.report.story import two_jobs

VOID = {"meta", "br", "link", "img", "hr", "input"}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [
            values[name] or "" for name in ("href", "src", "xlink:href") if name in values
        ]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def page() -> _Page:
    twin = Comparison(
        final_loss=0.51234,
        twin_final_loss=0.51236,
        tolerance=1e-3,
        twin_losses=((100.0, 2.0), (200.0, 1.0)),
        is_exactly_once=True,
        stated_rates=(0.0, 100.0, 150.0),
    )
    run = gather(two_jobs().events, {"wide": twin})
    parsed = _Page()
    parsed.feed(render(run, ["The device is <emulated>."]))
    return parsed


def test_the_page_is_well_formed_and_needs_nothing_else(page: _Page) -> None:
    assert page.open == []
    assert len(page.ids) == len(set(page.ids)) > 0
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)


def test_the_page_tells_the_run(page: _Page) -> None:
    text = re.sub(r"\s+", " ", " ".join(page.text))
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
