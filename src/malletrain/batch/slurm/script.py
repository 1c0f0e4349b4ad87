"""The batch script of a pilot."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from malletrain.batch.pilot_script import PilotFiles, ShellWords, pilot_script
from malletrain.config import ScavengeSettings, SlurmSettings


def slurm_script(
    minutes: int,
    scavenge: ScavengeSettings,
    slurm: SlurmSettings,
    files: PilotFiles,
    environment: Mapping[str, str],
) -> str:
    """Return the script of pilots with this time limit, which keep `keep_env` of an environment."""
    kept = [(name, environment[name]) for name in scavenge.keep_env if name in environment]
    return pilot_script(
        scavenge,
        files,
        ShellWords(
            host='"$SLURMD_NODENAME"',
            # Not SLURM_JOB_ID: `squeue` and `scancel` know an array's tasks by this.
            pilot_id='"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"',
            ends_at_s='"$malletrain_ends_at_s"',
            group='"$malletrain_group"',
            gpus='"${SLURM_GPUS_ON_NODE:-0}"',
        ),
        first_lines=(
            # Slurm has none where it cannot find out the user's own.
            "export PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}",
            *(f"export {name}={shlex.quote(value)}" for name, value in kept),
            # Slurm before 23.02 does not tell the end.
            f"malletrain_ends_at_s=${{SLURM_JOB_END_TIME:-$(($(date +%s) + {minutes * 60}))}}",
            # All switches above the node: `row1.rack7.node3`, without the node.
            'malletrain_group=${SLURM_TOPOLOGY_ADDR%"$SLURMD_NODENAME"}',
            "malletrain_group=${malletrain_group%.}",
        ),
        # Only steps hear SIGTERM while grace lasts, so the agent must be one. The job's own
        # `--export=NONE` would keep from it what the prologue sets.
        launcher=(
            *("srun", "--nodes=1", "--ntasks=1", "--export=ALL"),
            *("--cpu-bind=none", "--mpi=none", *slurm.srun_options),
        ),
    )
