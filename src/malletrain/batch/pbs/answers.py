"""PBS's JSON, which is not always JSON, and its way of writing values."""

from __future__ import annotations

import math
import re
from typing import TypeVar

import msgspec

from malletrain.errors import BatchError

#: Texts that look like numbers are written as numbers.
Text = str | int | float | None

Answer = TypeVar("Answer")

#: PBS writes one member a line: its name, its value, and whether others follow. These are those
#: whose values are no plain texts or numbers, and may be no JSON.
_ODD_MEMBER = re.compile(
    r'^([ \t]*"[^"\n]*"[ \t]*:[ \t]*)'
    r'(?!"[^"\\\n]*",?[ \t]*$|(?:0|[1-9]\d*),?[ \t]*$|[{\[])'
    r"(.+?)(,?[ \t]*)$",
    re.MULTILINE,
)


def decode(text: str, kind: type[Answer], program: str) -> Answer:
    """Read what a program wrote.

    Raises:
        BatchError: it is empty or makes no sense.
    """
    if not text.strip():
        raise BatchError(f"{program} ended well and said nothing", is_transient=True)
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        # Maybe some other user's environment or comment is at fault; see `_mended`.
        pass
    try:
        return msgspec.json.decode(_mended(text), type=kind)
    except msgspec.DecodeError as error:
        raise BatchError(
            f"{program} ended well and said what makes no sense: {error}", is_transient=True
        ) from error


def text_of(value: Text) -> str:
    return "" if value is None else str(value)


def duration_s(value: Text) -> float:
    """Read seconds, or `hours:minutes:seconds`; what is not limited is infinite."""
    total_s = 0.0
    try:
        for part in text_of(value).split(":"):
            total_s = total_s * 60 + float(part)
    except ValueError:
        return math.inf
    return total_s


def _mended(text: str) -> str:
    r"""Return it with null for every value that is none in JSON.

    Up to version 23, numbers of users' environments such as 007, and quotes and backslashes in
    their texts, come as they are (openpbs issue 1255, pull requests 830, 2049, 2603).
    """
    return _ODD_MEMBER.sub(_mended_member, text)


def _mended_member(match: re.Match[str]) -> str:
    name, value, rest = match.groups()
    try:
        msgspec.json.decode(value)
    except msgspec.DecodeError:
        return f"{name}null{rest}"
    return match[0]
