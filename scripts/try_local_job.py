"""Let the installed `malletrain` train a job on two local nodes.

Usage: try_local_job.py MALLETRAIN DIR, with the job's script in DIR.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 120.0


def main(malletrain: str, work: Path) -> int:
    env = {**os.environ, "MALLETRAIN_STATE_DIR": str(work / "state"), "OMP_NUM_THREADS": "1"}

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [malletrain, *arguments],
            check=False,
            env=env,
            text=True,
            capture_output=True,
            timeout=LIMIT_S,
        )
        if done.returncode:
            raise SystemExit(
                f"malletrain {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    python = str(Path(malletrain).with_name("python"))
    call("up", "--batch", "local", "--nodes", "2", "--detach")
    try:
        call("submit", "--name", "wheel", "--max-nodes", "2", "--", python, str(work / "job.py"))
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            (job,) = json.loads(call("jobs", "--json"))
            if job["phase"] != "active":
                break
            if time.monotonic() > deadline_s:
                raise SystemExit(f"the job did not end within {LIMIT_S:g} s: {job}")
            time.sleep(0.5)
    finally:
        call("down")
    print(f"wheel: job {job['phase']} after {job['done_samples']:.0f} samples")
    return 0 if job["phase"] == "finished" and job["done_samples"] == 5120 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
