"""What the pages for a cluster's users and administrators state is what the product does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import malletrain
from bench.harness import BENCHMARKS
from malletrain.config import PbsSettings, ScavengeSettings, SlurmSettings, parse

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = Path(malletrain.__file__).parent
USERS = (DOCS / "slurm.md").read_text()
ADMINISTRATORS = (DOCS / "administrators.md").read_text()
SETTINGS = {
    name: getattr(struct(), name)
    for struct in (ScavengeSettings, SlurmSettings, PbsSettings)
    for name in struct.__struct_fields__
}


@pytest.mark.parametrize("page", ["slurm.md", "pbs.md"])
def test_configurations_are_accepted(page: str) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        parse(block)


def test_settings_in_tables_are_accepted() -> None:
    examples = re.findall(r"`(\w+ = (?:\".*?\"|\[.*?\]))`", USERS)
    assert len(examples) >= 5
    for example in examples:
        parse(f"[scavenge]\n{example}\n")


@pytest.mark.parametrize("page", [USERS, ADMINISTRATORS], ids=["users", "administrators"])
def test_defaults_are_those_of_the_product(page: str) -> None:
    units_s = {"": 1, " s": 1, " h": 3600}
    stated = re.findall(r"`(\w+_s|max_\w+)` \(([\d.]+)( s| h|)\)", page)
    assert stated
    for name, number, unit in stated:
        assert SETTINGS[name] == float(number) * units_s[unit], name


def test_every_check_of_a_site_is_in_the_table() -> None:
    table = USERS[USERS.index("| check |") : USERS.index("Lines of `malletrain top`")]
    listed = set(
        re.findall(r"`([a-z ]+)`", " ".join(re.findall(r"^\|(.*?)\|", table, re.MULTILINE)))
    )
    modules = {"slurm_doctor.py": "slurm ", "node_checks.py": "node ", "site_checks.py": ""}
    checks = {prefix + name for module, prefix in modules.items() for name in checks_of(module)}
    assert listed == checks


def checks_of(module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((SOURCE / "cli" / module).read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        names = [k.value for k in node.keywords if k.arg == "check"]
        if node.func.id in ("_finding", "_judged"):
            names += node.args[:1]
        yield from (str(n.value) for n in names if isinstance(n, ast.Constant))


def test_lines_of_trouble_are_those_of_the_product() -> None:
    table = USERS[USERS.index("| line |") :]
    cells = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)[1:]
    lines = [phrase for cell in cells for phrase in re.findall(r"`(.+?)`", cell)]
    said = "\n".join(texts())
    assert len(lines) >= 6
    assert [line for line in lines if line not in said] == []


def texts() -> Iterator[str]:
    """Return every text in the source, parts of one formatted text in one."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.parametrize("page", [USERS, ADMINISTRATORS], ids=["users", "administrators"])
def test_settings_and_benchmarks_that_are_named_exist(page: str) -> None:
    names = set(re.findall(r"`(\w+_(?:s|dir|nodes|waiting|options|within_s))`", page))
    assert names
    assert names <= set(SETTINGS)
    assert set(re.findall(r"`\./run bench ([\w-]+)`", page)) <= set(BENCHMARKS)
