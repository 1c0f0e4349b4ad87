"""A PBS that is none: programs on a PATH of their own, and nodes whose jobs are processes here."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from malletrain.batch.commands import Commands
from malletrain.batch.pbs.queue import PbsQueue
from malletrain.batch.pilot_script import PilotFiles
from malletrain.batch.queue import Queue
from malletrain.config import PbsSettings, ScavengeSettings
from tests.batch.pbs import fake_programs
from tests.batch.pbs.fake_programs import State

_PROGRAMS = frozenset({"qsub", "qdel", "qstat", "pbsnodes", "pbs_rstat"})
_OPEN = {"queue_type": "Execution", "enabled": "True", "started": "True"}
_QUEUES = {"workq": {**_OPEN, "Priority": 100}, "scavenge": {**_OPEN, "Priority": 1}}
_SOMEBODY = f"7.{fake_programs.SERVER}"
_END_LIMIT_S = 15.0


class FakePbs:
    """A `testing.queues.QueueSite`."""

    def __init__(self, folder: Path, scavenge: ScavengeSettings, hosts: int = 2) -> None:
        self._folder = folder
        self._scavenge = scavenge
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._state_path = folder / "state.json"
        self.hosts = frozenset(f"nid{number:04}" for number in range(1, hosts + 1))
        self.programs = _PROGRAMS
        self.unknown_pilot_id = f"99[3].{fake_programs.SERVER}"
        folder.mkdir()
        nodes = {host: {"state": "free"} for host in sorted(self.hosts)}
        state = {"is_up": True, "user": getpass.getuser(), "last": 1000, "nodes": nodes}
        self._state_path.write_text(
            json.dumps({**state, "jobs": {}, "reservations": [], "queues": _QUEUES})
        )
        for program in (*_PROGRAMS, "qmgr"):
            path = folder / "bin" / program
            path.parent.mkdir(exist_ok=True)
            play = f'"{sys.executable}" -IS "{fake_programs.__file__}" {program} "$@"'
            path.write_text(f"#!/bin/sh\nexec {play}\n")
            path.chmod(0o700)

    @property
    def environment(self) -> Mapping[str, str]:
        path = f"{self._folder / 'bin'}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "FAKE_PBS_STATE": str(self._state_path)}

    def queue(self, commands: Commands, files: PilotFiles) -> Queue:
        pbs = PbsSettings(queue="scavenge")
        return PbsQueue(commands, scavenge=self._scavenge, pbs=pbs, files=files)

    def changing(self) -> AbstractContextManager[State]:
        return fake_programs.changing(self._state_path)

    # -- others, and the server --------------------------------------------------------------------

    def fill(self) -> None:
        with self.changing() as state:
            for node in state["nodes"].values():
                node["jobs"] = [_SOMEBODY]

    def free(self) -> None:
        with self.changing() as state:
            for host, node in state["nodes"].items():
                node.pop("jobs", None)
                self._start_next(state, host)

    def stop_server(self) -> None:
        with self.changing() as state:
            state["is_up"] = False

    def start_server(self) -> None:
        with self.changing() as state:
            state["is_up"] = True

    # -- pilots ------------------------------------------------------------------------------------

    def preempt(self, host: str) -> None:
        """Signal the pilot there as PBS does, and give its node to somebody once it has ended."""
        pilot_id = next(iter(self._pilots_on(host)))
        process = self._processes.pop(pilot_id)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(_END_LIMIT_S) == 0
        with self.changing() as state:
            for job in state["jobs"].values():
                job["running"].pop(pilot_id, None)
            state["nodes"][host]["jobs"] = [_SOMEBODY]

    def close(self) -> None:
        """End all pilots; those that `qdel` has signalled do so by themselves."""
        with self.changing() as state:
            running = {p for job in state["jobs"].values() for p in job["running"]}
        for pilot_id, process in self._processes.items():
            if pilot_id in running:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(_END_LIMIT_S)

    def _start_next(self, state: State, host: str) -> None:
        for job in state["jobs"].values():
            if job["waiting"]:
                pilot_id = job["waiting"].pop(0)
                process = self._start(pilot_id, host, job["script"])
                self._processes[pilot_id] = process
                job["running"][pilot_id] = {"host": host, "pid": process.pid}
                return

    def _start(self, pilot_id: str, host: str, script: str) -> subprocess.Popen[bytes]:
        node_file = self._folder / f"{pilot_id}.nodes"
        node_file.write_text(f"{host}.site.example\n")
        script_path = self._folder / f"{pilot_id}.SC"
        script_path.write_text(script)
        with (self._folder / f"{pilot_id}.OU").open("wb") as output:
            return subprocess.Popen(
                ["/bin/sh", str(script_path)],
                env={**os.environ, "PBS_JOBID": pilot_id, "PBS_NODEFILE": str(node_file)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _pilots_on(self, host: str) -> list[str]:
        with self.changing() as state:
            return [
                pilot_id
                for job in state["jobs"].values()
                for pilot_id, place in job["running"].items()
                if place["host"] == host
            ]
