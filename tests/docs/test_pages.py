"""The pages keep their promises: links lead somewhere, the tutorial's script runs."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import malletrain.train as mt

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        goal = page.parent / name if name else page
        assert goal.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(goal), f"{page.name} links to {target}"


def test_the_tutorials_script_runs_alone(tmp_path: Path) -> None:
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    script = re.findall(r"```python\n(.*?)```", tutorial, re.DOTALL)[0]
    path = tmp_path / "train.py"
    path.write_text(script)
    ran = subprocess.run(
        [sys.executable, path, "2"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    assert "done 8192 samples" in ran.stdout


def test_the_guide_names_every_parameter_and_no_other() -> None:
    guide = (ROOT / "docs" / "training.md").read_text()
    table = guide[guide.index("| parameter of `attach`") : guide.index("`batches` takes")]
    listed = set(re.findall(r"`(\w+)", "".join(re.findall(r"^\| (.+?) \|", table, re.MULTILINE))))
    taken = set(inspect.signature(mt.attach).parameters) - {"model", "optimizer"}
    assert listed - {"attach"} == taken
    sentence = guide[guide.index("`batches` takes") :].split(".")[0]
    loop = set(inspect.signature(mt.Session.batches).parameters) - {"self", "dataset"}
    assert set(re.findall(r"`(\w+)`", sentence)) - {"batches"} == loop


def test_the_readmes_diff_changes_ten_lines_at_most() -> None:
    readme = (ROOT / "README.md").read_text()
    diff = readme[readme.index("```diff") :].split("```")[1]
    changed = [line for line in diff.splitlines() if line[:1] in ("+", "-")]
    assert 0 < len(changed) <= 10
