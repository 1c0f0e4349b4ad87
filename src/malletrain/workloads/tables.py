"""A table that a user wrote, into a struct: each error is one line of key, value and limit."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo

from malletrain.errors import WorkloadError

T = TypeVar("T", bound=Struct)

#: No number may be more; as seconds, 30 years.
MOST = 1e9
_DIGITS = 40


def read(
    kind: type[T],
    table: Mapping[str, Any],
    bounds: Mapping[str, tuple[float, float]],
    *,
    is_text: bool = False,
) -> T:
    """Return the table as a struct whose numbers keep `bounds`, else 0 ... `MOST`.

    `is_text` takes numbers from strings, as a command line has them.

    Raises:
        WorkloadError: which key, what it has and what it may have; the caller knows where it is.
    """
    fields = _fields(kind)
    for key in table:
        if key not in fields:
            raise WorkloadError(f"unknown key {show(key)}: {suggest(str(key), fields, 'keys')}")
    for key, field in fields.items():
        if field.required and key not in table:
            raise WorkloadError(f"{key} is missing: it must be {_words(field.type)}")
    try:
        struct = msgspec.convert(table, kind, strict=not is_text)
    except msgspec.ValidationError as error:
        key = str(error).partition("`$.")[2].split("`")[0].split("[")[0].split(".")[0]
        words = _words(fields[key].type)
        raise WorkloadError(f"{key} = {show(table[key])}: it must be {words}") from error
    for key, field in fields.items():
        value = getattr(struct, field.name)
        if isinstance(value, int | float):
            check_number(key, value, *bounds.get(key, (0.0, MOST)))
    return struct


@lru_cache
def _fields(kind: type[Struct]) -> dict[str, FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def check_number(name: str, value: float, least: float, most: float) -> None:
    """Refuse a number outside its bounds, and nan."""
    if not least <= value <= most:
        raise WorkloadError(f"{name} = {show(value)}: it must be from {least:.12g} to {most:.12g}")


def _words(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of " + ", ".join(str(choice.value) for choice in kind)
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    for name, words in (
        ("dict", "a table"),
        ("list", "a list of tables"),
        ("str", "text"),
        ("bool", "true or false"),
        ("float", "a number"),
        ("int", "a whole number, without a point"),
    ):
        if text.startswith(name):
            return words
    raise TypeError(f"no words for {kind}")


def suggest(wrong: str, known: Iterable[str], what: str) -> str:
    """Return what may have been meant: the nearest of `known`, else all of them."""
    names = list(known)
    if near := difflib.get_close_matches(wrong, names, n=1):
        return f"did you mean {near[0]}?"
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"the {what} are {listed}" if names else f"there are no {what}"


def show(value: object) -> str:
    """Return a user's value on one short line."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number this long.
        return "a number of thousands of digits"
    return text if len(text) <= _DIGITS else f"{text[: _DIGITS - 3]}..."
