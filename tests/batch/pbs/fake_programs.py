"""PBS's programs, played: they know one another by a file. Run as `PYTHON THIS PROGRAM ARGUMENTS`.

Nothing starts by itself: a test says when (`fake_pbs.FakePbs`).
"""

from __future__ import annotations

import contextlib
import fcntl
import getopt
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

State = dict[str, Any]
SERVER = "pbs01"


@contextlib.contextmanager
def changing(path: Path) -> Iterator[State]:
    """Give the state, and write it back."""
    with Path(f"{path}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(path.read_text())
        yield state
        path.write_text(json.dumps(state))


def qsub(state: State, arguments: list[str]) -> int:
    pairs, rest = getopt.getopt(arguments, "fN:S:p:l:r:J:q:P:v:c:m:j:o:")
    assert not rest, rest
    options = dict(pairs)
    resources = dict(value.split("=", 1) for name, value in pairs if name == "-l")
    if "-J" in options and options["-r"] != "y":
        return fail("qsub: cannot submit non-rerunable Array Job")
    if options.get("-q", "scavenge") != "scavenge":
        return fail("qsub: Unknown queue")
    state["last"] += 1
    number = state["last"]
    first, _, last = options.get("-J", "").partition("-")
    if first and int(first) >= int(last):
        return fail("qsub: illegal -J value")
    job_id = f"{number}[].{SERVER}" if first else f"{number}.{SERVER}"
    state["jobs"][job_id] = {
        "name": options["-N"],
        "owner": f"{state['user']}@login",
        "walltime_s": int(resources["walltime"]),
        "script": sys.stdin.read(),
        "waiting": [member(job_id, i) for i in range(int(first), int(last) + 1)]
        if first
        else [job_id],
        "running": {},
        "keep": options.get("-v", ""),
    }
    say(job_id)
    return 0


def qdel(state: State, arguments: list[str]) -> int:
    status = 0
    for job_id in arguments:
        job = state["jobs"].get(re.sub(r"\[\d+\]", "[]", job_id), {"waiting": [], "running": {}})
        if job_id in job["waiting"]:
            job["waiting"].remove(job_id)
        elif place := job["running"].pop(job_id, None):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(place["pid"], signal.SIGTERM)
        else:
            status = fail(f"qdel: Unknown Job Id {job_id}", 153)
    return status


def qstat(state: State, arguments: list[str]) -> int:
    if arguments == ["-B"]:
        say("Server             Max   Tot   Que   Run   Hld   Wat   Trn   Ext Status")
        say("---------------- ----- ----- ----- ----- ----- ----- ----- ----- -----------")
        say(f"{SERVER}                0     0     0     0     0     0     0     0 Active")
        return 0
    if arguments == ["-B", "-f", "-F", "json"]:
        say_json({"Server": {SERVER: {"default_queue": "workq", "max_array_size": 10000}}})
        return 0
    if arguments == ["-Q", "-f", "-F", "json"]:
        say_json({"Queue": state["queues"]})
        return 0
    assert arguments == ["-f", "-F", "json"], arguments
    jobs = {
        i: shown(i, job) for i, job in state["jobs"].items() if job["waiting"] or job["running"]
    }
    say_json({"Jobs": jobs} if jobs else {})
    return 0


def shown(job_id: str, job: State) -> State:
    attributes = {
        "Job_Name": job["name"],
        "Job_Owner": job["owner"],
        "job_state": ("B" if "[]" in job_id else "R") if job["running"] else "Q",
        "queue": "scavenge",
        "Resource_List": {"nodect": 1, "walltime": hours(job["walltime_s"])},
    }
    if "[]" in job_id:
        indices = [re.findall(r"\[(\d+)\]", waiting)[0] for waiting in job["waiting"]]
        attributes["array_indices_remaining"] = ",".join(indices) or "-"
    return attributes


def pbsnodes(state: State, arguments: list[str]) -> int:
    assert arguments == ["-av", "-F", "json"], arguments
    nodes = {}
    for name, node in state["nodes"].items():
        jobs = [
            job_id
            for job in state["jobs"].values()
            for job_id, place in job["running"].items()
            if place["host"] == name
        ] + node.get("jobs", [])
        nodes[name] = {
            "Mom": f"{name}.site.example",
            "ntype": "PBS",
            "state": "job-exclusive" if jobs and node["state"] == "free" else node["state"],
            "pcpus": 64,
            **({"jobs": jobs} if jobs else {}),
            **({"resv": node["resv"]} if "resv" in node else {}),
            "resources_available": {"host": name, "ncpus": 64, "tier0": f"rack-of-{name}"},
            "resv_enable": "True",
        }
    say_json({"nodes": nodes})
    return 0


def qmgr(_: State, arguments: list[str]) -> int:
    assert arguments == ["-c", "list sched default"], arguments
    say("Sched default\n    sched_host = pbs01\n    preempt_order = D\n    preempt_queue_prio = 50")
    return 0


def pbs_rstat(state: State, arguments: list[str]) -> int:
    assert arguments == ["-f"], arguments
    for text in state["reservations"]:
        say(text)
    return 0


def member(job_id: str, index: int) -> str:
    return job_id.replace("[]", f"[{index}]")


def hours(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def fail(reason: str, status: int = 1) -> int:
    sys.stderr.write(f"{reason}\n")
    return status


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def say_json(content: State) -> None:
    """Write it the way of PBS: a member a line."""
    head = {"timestamp": int(time.time()), "pbs_version": "22.05.11", "pbs_server": SERVER}
    say(json.dumps({**head, **content}, indent=4, separators=(",", ":")))


def main() -> int:
    program, *arguments = sys.argv[1:]
    with changing(Path(os.environ["FAKE_PBS_STATE"])) as state:
        if not state["is_up"]:
            return fail(f"{program}: cannot connect to server {SERVER} (errno=15010)", 255)
        return int(globals()[program](state, arguments))


if __name__ == "__main__":
    sys.exit(main())
