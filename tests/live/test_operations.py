"""The settings that docs/operations.md lists are those there are, with their defaults and units."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from malletrain.config import Config

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
TABLES = "core|live|worker|local|scavenge|slurm|pbs"
ROW = re.compile(rf"^\| `((?:{TABLES})\.[a-z_.]+)` \| (.*?) \| ?(.*?) \| (.+) \|$", re.MULTILINE)
UNITS = {"_s": "s", "_days": "days", "_nodes": "nodes", "_messages": "messages", "_steps": "steps"}


def settings(struct: Struct, where: str = "") -> Iterator[tuple[str, object]]:
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, Struct):
            yield from settings(value, f"{where}{name}.")
        else:
            yield f"{where}{name}", value


def in_words(value: object) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return json.dumps(value)
    return f'"{value}"' if isinstance(value, str) else str(value or 0)


def rows() -> dict[str, tuple[str, str]]:
    return {key: (default, unit) for key, default, unit, _ in ROW.findall(PAGE.read_text())}


def test_every_setting_is_listed_with_its_default_and_no_other() -> None:
    expected = {
        key: "none" if value is None or value == {} else in_words(value)
        for key, value in settings(Config())
    }
    assert {key: default for key, (default, _) in rows().items()} == expected


def test_units_are_those_that_the_names_say() -> None:
    for key, (_, unit) in rows().items():
        for suffix, name in UNITS.items():
            if key.endswith(suffix):
                assert unit == name, key


def test_settings_that_the_text_names_exist() -> None:
    named = set(re.findall(rf"`((?:{TABLES})\.[a-z_.]+)`", PAGE.read_text()))
    assert named <= rows().keys()
