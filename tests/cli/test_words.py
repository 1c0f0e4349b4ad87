from __future__ import annotations

import pytest

from malletrain.cli import words
from tests.cli.views import job


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (0.25, "0.25"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.96, "100"),
        (950.0, "950"),
        (999.6, "1.00k"),
        (1_234.0, "1.23k"),
        (45_600.0, "45.6k"),
        (1_200_000.0, "1.20M"),
        (5e12, "5T"),
    ],
)
def test_compact(number: float, text: str) -> None:
    assert words.compact(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.43, "0.4s"),
        (4.0, "4s"),
        (59.6, "1m00s"),
        (192.0, "3m12s"),
        (7_500.0, "2h05m"),
        (273_600.0, "3d04h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


def test_a_headline_gives_the_terminal_no_orders() -> None:
    assert words.headline("went \x1b[2Jaway\nTraceback") == "went ?[2Jaway"
    assert words.headline("") == ""


@pytest.mark.parametrize("value", [None, 0.4321, 12.3456, 1.2345e-7, 9.87e12])
def test_a_loss_fits_its_column(value: float | None) -> None:
    assert 0 < len(words.loss(value)) <= 8


@pytest.mark.parametrize(
    ("phase", "activity", "pinned", "status"),
    [
        ("active", "training", None, "training"),
        ("active", "training", 4, "profiling"),
        ("active", "rescaling", 4, "rescaling"),
        ("suspended", "waiting", None, "suspended"),
        ("suspended", "stopping", None, "stopping"),
        ("failed", "over", None, "failed"),
        ("cancelled", "stopping", None, "stopping"),
    ],
)
def test_status(phase: str, activity: str, pinned: int | None, status: str) -> None:
    assert words.status(job(1, "x", phase=phase, activity=activity, pinned_nodes=pinned)) == status
