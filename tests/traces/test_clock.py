from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from malletrain.errors import TraceError, UsageError
from malletrain.traces.clock import Clock, duration_s
from malletrain.traces.tally import Tally
from malletrain.traces.trace import Trace
from tests.traces.logs import WHOLE, idle, load_text, note

HEADER = "JobID|Start|End|Elapsed|NodeList\n"


def load_berlin(directory: Path, *lines: str, **options: Any) -> Trace:
    text = HEADER + "".join(f"{line}\n" for line in lines)
    return load_text(directory, text, **{**WHOLE, "time_zone": "Europe/Berlin", **options})


@pytest.mark.parametrize(
    ("text", "zone", "readings"),
    [
        ("2026-01-01T00:00:00", None, (1767225600,)),
        ("2026-01-01 01:00:00", "Europe/Berlin", (1767225600,)),
        ("2025-12-31T19:00:00", "-05:00", (1767225600,)),
        ("2026-01-01T02:00:00+02:00", "Europe/Berlin", (1767225600,)),
        ("2026-01-01T00:00:00Z", None, (1767225600,)),
        ("1767225600", "Europe/Berlin", (1767225600,)),
        ("1767225600.5", None, (1767225600.5,)),
        ("Unknown", None, ()),
        ("", None, ()),
        # The hour from 2 to 3 is there twice, the hour from 2 to 3 is skipped.
        ("2026-10-25T02:30:00", "Europe/Berlin", (1792888200, 1792891800)),
        ("2026-03-29T02:30:00", "Europe/Berlin", (1774747800,)),
    ],
)
def test_times_are_read(text: str, zone: str | None, readings: tuple[float, ...]) -> None:
    assert Clock(zone, Tally()).readings(text, "Start") == readings


def test_what_the_clock_had_to_assume_is_counted(tmp_path: Path) -> None:
    rest = "1|2026-03-29T00:00:00|2026-03-29T06:00:00||a"
    trace = load_berlin(tmp_path, rest, "2|2026-03-29T02:30:00|2026-03-29T04:00:00||b")
    assert note(trace, "the hour that clocks skipped").endswith(": 1")
    assert ("b", 0, 9000) in idle(trace)
    utc = load_berlin(
        tmp_path, rest, "2|2026-03-29T01:30:00|2026-03-29T04:00:00||b", time_zone=None
    )
    assert note(utc, "times without offset were taken as UTC")


@pytest.mark.parametrize(
    ("end", "elapsed", "lasts_s"),
    [
        # From 01:30 to the first 02:30, to the second one, and to the one that must be meant.
        ("02:30:00", "01:00:00", 3600),
        ("02:30:00", "02:00:00", 7200),
        ("02:30:00", "", 3600),
        ("03:30:00", "03:00:00", 10800),
    ],
)
def test_in_the_hour_that_comes_twice_the_elapsed_time_chooses(
    tmp_path: Path, end: str, elapsed: str, lasts_s: float
) -> None:
    trace = load_berlin(
        tmp_path,
        "1|2026-10-25T01:30:00|2026-10-25T09:30:00||a",
        f"2|2026-10-25T01:30:00|2026-10-25T{end}|{elapsed}|b",
    )
    assert idle(trace) == [("b", lasts_s, 9 * 3600)]


@pytest.mark.parametrize("end", ["02:10:00", "02:50:00"])
def test_a_clock_that_was_set_back_unknown_to_us_is_mended_by_elapsed(
    tmp_path: Path, end: str
) -> None:
    minutes = int(end[3:5]) - 40 + 60
    trace = load_berlin(
        tmp_path,
        "1|2026-10-25T02:40:00|2026-10-25T09:40:00||a",
        f"2|2026-10-25T02:40:00|2026-10-25T{end}|{minutes}:00|b",
        time_zone=None,
    )
    assert idle(trace) == [("b", minutes * 60, 7 * 3600)]
    assert note(trace, "clocks were changed").endswith(": 1")


def test_a_zone_that_is_none_or_of_no_use_is_refused(tmp_path: Path) -> None:
    line = "1|2026-01-01T00:00:00Z|2026-01-01T01:00:00Z||a"
    with pytest.raises(UsageError, match="--time-zone 'Mars/Phobos': there is no such zone here"):
        load_berlin(tmp_path, line, time_zone="Mars/Phobos")
    with pytest.raises(UsageError, match="--time-zone cannot apply: every time of the log has"):
        load_berlin(tmp_path, line)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784), ("02:03:04", 7384), ("03:04.5", 184), ("99825.0", 99825), ("", None)],
)
def test_durations_are_read(text: str, seconds: float | None) -> None:
    assert duration_s(text, "Elapsed") == seconds


@pytest.mark.parametrize("text", ["-1:00:00", "inf", "1e308", "soon"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(TraceError, match=f"Elapsed is '{text}': it must be seconds"):
        duration_s(text, "Elapsed")


def test_a_duration_of_hundreds_of_digits_is_refused() -> None:
    with pytest.raises(TraceError, match=r"Elapsed is '9{56}\.\.\.: it must be seconds"):
        duration_s("9" * 5000 + "-00:00:00", "Elapsed")


def test_milliseconds_are_no_time() -> None:
    with pytest.raises(TraceError, match="Start is '1767225600000': it must be a time"):
        Clock(None, Tally()).readings("1767225600000", "Start")
