"""The job script, run by a real shell with a wrapper that prints what it is told."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from malletrain.batch.pbs.script import groups_path, pbs_script
from malletrain.batch.pilot_script import PilotFiles
from malletrain.config import ScavengeSettings


def said(folder: Path, scavenge: ScavengeSettings, job_id: str = "12[3].pbs01") -> list[str]:
    """Run the script where PBS says that the host is nid0001; return the words of the agent's."""
    files = PilotFiles(folder / "my state" / "endpoint.json", folder / "token", folder / "my logs")
    files.log_dir.mkdir()
    groups_path(files).write_text("nid00010 far\nnid0001 rack 3\n")
    (folder / "nodes").write_text("nid0001.site.example\n")
    echo = folder / "echo"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o700)
    done = subprocess.run(
        ["/bin/sh"],
        input=pbs_script(600, scavenge, files),
        env={
            "PATH": "/usr/bin:/bin",
            "PBS_JOBID": job_id,
            "PBS_NODEFILE": str(folder / "nodes"),
        },
        text=True,
        capture_output=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.splitlines()


def value_of(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_the_agent_is_told_of_its_node(tmp_path: Path) -> None:
    began_at_s = time.time()
    words = said(tmp_path, ScavengeSettings(wrapper=(str(tmp_path / "echo"),)))
    assert value_of(words, "--host") == "nid0001"
    assert value_of(words, "--pilot-id") == "12[3].pbs01"
    assert value_of(words, "--node-id") == "nid0001-12[3].pbs01"
    assert value_of(words, "--group") == "rack 3"
    ends_at_s = float(value_of(words, "--expected-end"))
    assert began_at_s + 599 <= ends_at_s <= time.time() + 600
    assert value_of(words, "--controller") == str(tmp_path / "my state" / "endpoint.json")


def test_the_prologue_comes_before_the_agent_and_may_fail(tmp_path: Path) -> None:
    scavenge = ScavengeSettings(
        wrapper=(str(tmp_path / "echo"),),
        interpreter="/opt/my python",
        prologue="echo ready\nfalse\n",
        leave_signals=("SIGTERM", "SIGUSR2"),
    )
    words = said(tmp_path, scavenge)
    assert words[:2] == ["ready", "/opt/my python"]
    assert words.count("--leave-signal") == 2
