"""The batch script, run by a real shell with an `srun` that tells its options and does its work."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from malletrain.batch.pilot_script import PilotFiles
from malletrain.batch.slurm.script import slurm_script
from malletrain.config import ScavengeSettings, SlurmSettings

FILES = PilotFiles(
    Path("/shared/my run/endpoint.json"), Path("/shared/token"), Path("/shared/logs")
)
IN_JOB = {
    "SLURMD_NODENAME": "n7",
    "SLURM_ARRAY_JOB_ID": "3",
    "SLURM_ARRAY_TASK_ID": "2",
    "SLURM_JOB_ID": "5",
}


class Pilots:
    """Runs scripts in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._add("srun", 'while [ "$1" != /bin/sh ]; do echo "$1"; shift; done\nexec "$@"')
        self._add("box", 'printf "%s\\n" box "$@"\necho "KEPT=$KEPT SET=$SET"')

    def _add(self, name: str, script: str) -> None:
        program = self._folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def words(
        self,
        scavenge: ScavengeSettings,
        slurm: SlurmSettings | None = None,
        *,
        env: Mapping[str, str] = IN_JOB,
        submitter: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return srun's options, the words of the command below it, and a line of its environment.

        The command begins with `box`.
        """
        scavenge = replace(scavenge, wrapper=("box", *scavenge.wrapper))
        script = slurm_script(11, scavenge, slurm or SlurmSettings(), FILES, submitter or {})
        path = f"{self._folder}:/usr/bin:/bin"
        done = subprocess.run(
            ["sh"],
            input=script,
            env={"PATH": path, **env},
            text=True,
            capture_output=True,
            check=True,
        )
        assert not done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def pilots(tmp_path: Path) -> Pilots:
    return Pilots(tmp_path)


def after(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_the_agent_is_a_step_of_its_own(pilots: Pilots) -> None:
    words = pilots.words(
        ScavengeSettings(interpreter="/opt/py/bin/python", wrapper=("exec",)),
        SlurmSettings(srun_options=("--mem=8G",)),
    )
    command = words.index("box")
    assert {"--ntasks=1", "--export=ALL", "--mem=8G"} <= set(words[:command])
    assert words[command:][:5] == ["box", "exec", "/opt/py/bin/python", "-P", "-m"]
    assert after(words, "-m") == "malletrain.node.agent"
    assert after(words, "--controller") == "/shared/my run/endpoint.json"


def test_the_agent_knows_itself_by_the_id_of_the_arrays_task(pilots: Pilots) -> None:
    words = pilots.words(ScavengeSettings())
    assert after(words, "--node-id") == "n7-3_2"
    assert after(words, "--host") == "n7"
    assert after(words, "--pilot-id") == "3_2"


@pytest.mark.parametrize(
    ("address", "group"), [("n7", ""), ("row1.rack2.n7", "row1.rack2"), ("root.n7", "root")]
)
def test_the_group_is_all_switches_above_the_node(pilots: Pilots, address: str, group: str) -> None:
    words = pilots.words(ScavengeSettings(), env={**IN_JOB, "SLURM_TOPOLOGY_ADDR": address})
    assert after(words, "--group") == group


def test_a_node_without_a_topology_or_gpus(pilots: Pilots) -> None:
    words = pilots.words(ScavengeSettings())
    assert (after(words, "--group"), after(words, "--gpus")) == ("", "0")


def test_gpus_and_the_end_are_slurms_word_where_it_tells_them(pilots: Pilots) -> None:
    told = {"SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_END_TIME": "1796070467"}
    words = pilots.words(ScavengeSettings(), env={**IN_JOB, **told})
    assert (after(words, "--gpus"), after(words, "--expected-end")) == ("4", "1796070467")


def test_the_end_is_reckoned_from_the_start_where_slurm_does_not_tell_it(
    pilots: Pilots, tmp_path: Path
) -> None:
    clock = tmp_path / "date"
    clock.write_text("#!/bin/sh\necho 1000\n")
    clock.chmod(0o755)
    assert after(pilots.words(ScavengeSettings()), "--expected-end") == str(1000 + 11 * 60)


def test_the_prologue_and_kept_variables_reach_the_agent(pilots: Pilots) -> None:
    words = pilots.words(
        ScavengeSettings(prologue="export SET=$KEPT-and-more", keep_env=("KEPT", "ABSENT")),
        submitter={"KEPT": 'it\'s "kept" $HOME', "OTHER": "no"},
    )
    assert words[-1] == 'KEPT=it\'s "kept" $HOME SET=it\'s "kept" $HOME-and-more'
