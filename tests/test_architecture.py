"""The layout is the architecture: who may import whom, and what the core may touch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import malletrain

ROOT = Path(malletrain.__file__).parent

#: Modules that know nothing of the product.
LEAVES = {"draws", "errors", "frames", "network", "processes"}
#: Package -> packages of ours that it may import. Modules named alone are allowed as such.
MAY_IMPORT = {
    "core": {"errors"},
    "allocate": {"core", "errors"},
    "traces": {"core", *LEAVES},
    "batch": {"core", "traces", "clock", "config", *LEAVES},
    "workloads": {*LEAVES},
    "devcluster": {*LEAVES},
    "sim": {"core", "allocate", "traces", "workloads", *LEAVES},
    "replay": {"core", "sim", "traces", "workloads", "config", *LEAVES},
    "train": {"core.model", "wire", *LEAVES},
    "node": {"core.model", "wire", "clock", *LEAVES},
    "live": {"core", "allocate", "batch", "wire", "clock", "config", *LEAVES},
    "impact": {"core", "traces", "batch.commands", "report.quantities", "errors"},
    "report": {"core", "live.store", "sim.results", "errors"},
    "cli": {
        *("core", "allocate", "batch", "live", "traces", "workloads", "sim", "replay", "report"),
        *("impact", "clock", "node.probe", "processes"),
        *("config", "devcluster", "errors"),
    },
}
#: What would make the pure layers impure.
IMPURE = {"time", "datetime", "random", "os", "io", "logging", "socket", "asyncio", "threading"}
IMPURE |= {"subprocess", "pathlib", "torch", "tempfile", "sqlite3"}


def imports_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            module = node.module or ""
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_arrows_point_one_way(package: str) -> None:
    allowed = {f"malletrain.{name}" for name in (*MAY_IMPORT[package], package)}
    allowed.add("malletrain.__version__")
    for path in modules(package):
        for name in imports_of(path):
            if name.split(".")[0] != "malletrain":
                continue
            is_allowed = any(name == a or name.startswith(f"{a}.") for a in allowed)
            assert is_allowed, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("package", ["core", "allocate"])
def test_the_pure_layers_touch_no_clock_no_chance_and_no_world(package: str) -> None:
    for path in modules(package):
        touched = {name.split(".")[0] for name in imports_of(path)} & IMPURE
        assert not touched, f"{path.relative_to(ROOT)} imports {sorted(touched)}"
        calls = {n.func.id for n in ast.walk(ast.parse(path.read_text())) if is_plain_call(n)}
        assert not calls & {"open", "print", "input"}, path


def is_plain_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def test_only_train_imports_torch() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        if "train" in path.relative_to(ROOT).parts:
            continue
        assert not any(n.split(".")[0] == "torch" for n in imports_of(path)), path


def test_no_module_asks_whether_it_is_simulated() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
        assert not {n for n in names if "simulat" in n.lower()}, path
