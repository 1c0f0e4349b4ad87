"""The job script of a pilot under PBS."""

from __future__ import annotations

import shlex
from pathlib import Path

from malletrain.batch.pilot_script import PilotFiles, ShellWords, pilot_script
from malletrain.config import ScavengeSettings


def groups_path(files: PilotFiles) -> Path:
    """Where pilots look up their hosts' groups, which PBS does not tell them: `HOST GROUP`."""
    return files.log_dir / "groups"


def pbs_script(limit_s: int, scavenge: ScavengeSettings, files: PilotFiles) -> str:
    """Return what `qsub` reads.

    The agent is the job's own process on its one node: signals come to the whole session there, so
    no launcher is needed.
    """
    groups = shlex.quote(str(groups_path(files)))
    return pilot_script(
        scavenge,
        files,
        ShellWords(
            host='"$malletrain_host"',
            pilot_id='"$PBS_JOBID"',
            ends_at_s='"$malletrain_ends_at_s"',
            group='"$malletrain_group"',
            gpus='"$malletrain_gpus"',
        ),
        first_lines=(
            # Before anything that takes time: PBS has begun to count.
            f"malletrain_ends_at_s=$(($(date +%s) + {limit_s}))",
            # With or without its domain, depending on the site.
            'malletrain_host=$(head -n 1 "$PBS_NODEFILE")',
            "malletrain_host=${malletrain_host%%.*}",
            f'malletrain_group=$(sed -n "s/^$malletrain_host //p" {groups})',
            "malletrain_gpus=$(ls -d /dev/nvidia[0-9]* 2>/dev/null | wc -l)",
        ),
    )
