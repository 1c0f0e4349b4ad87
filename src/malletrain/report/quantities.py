"""Say what a replay found in words and units that a person reads: three digits, no prefixes."""

from __future__ import annotations

from malletrain.report.gains import Gain

#: For what is not known or does not apply.
NO_FIGURE = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"
_COUNTS = ((1e15, "quadrillion"), (1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
_DURATIONS = ((2 * 86400.0, 86400.0, "days"), (7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"))


def count(number: float) -> str:
    """Write how many: 950, 45,100, 1.23 million, 120 billion."""
    scale, word = scale_of(number)
    return f"{three_digits(number / scale)} {word}".rstrip()


def scale_of(number: float) -> tuple[float, str]:
    """Return what to divide by to write it short, and how that is called: 1e9 and billion."""
    scales = (one for one in _COUNTS if abs(number) >= 0.9995 * one[0])
    return next(scales, (1.0, ""))


def duration(seconds: float) -> str:
    """Write a duration: 0.4 s, 75 s, 3.2 minutes, 24 hours, 7 days."""
    for least_s, unit_s, unit in _DURATIONS:
        if seconds >= least_s:
            return f"{three_digits(seconds / unit_s)} {unit}"
    return f"{three_digits(seconds)} s"


def node_time(node_s: float) -> str:
    """Write node-seconds as node-hours, and as node-minutes below one of them."""
    if 0 < node_s < 3600:
        return f"{three_digits(node_s / 60)} node-minutes"
    return f"{three_digits(node_s / 3600)} node-hours"


def percent(share: float) -> str:
    """Write a share: 93.4%, 0.31%, 0%."""
    if not share:
        return "0%"
    if 0 < share < 5e-5:
        return "<0.01%"
    return f"{share:.2%}" if 0 < share < 0.00995 else f"{share:.1%}"


def more(gain: Gain | None) -> str:
    """Write a gain in percent with its interval: +8.1% ± 0.3, or without one of a single pair."""
    return " ".join(more_in_parts(gain)).rstrip()


def more_in_parts(gain: Gain | None) -> tuple[str, str]:
    if gain is None:
        return NO_FIGURE, ""
    mean = f"{gain.mean:+z.1%}".replace("-", _MINUS)
    if gain.high is None:
        return mean, ""
    half = 100 * (gain.high - gain.mean)
    return mean, f"\N{PLUS-MINUS SIGN} {half:.{1 if half >= 0.05 else 2}f}"


def three_digits(number: float) -> str:
    """Write a number with three significant digits, or with all that stand before the point."""
    size = abs(number)
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{number:,.{0 if number == int(number) else decimals}f}"
