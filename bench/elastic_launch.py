"""`torchrun --nnodes=1:4` on this machine, one agent a node, measured from outside."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from bench.step_times import read

_LIMIT_S = 120.0
_POLL_S = 0.05
#: As short as its own settings allow.
_RENDEZVOUS = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


class ElasticLaunch:
    """Agents of one elastic job; the first of them hosts the rendezvous and is never ended."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._agents: list[subprocess.Popen[bytes]] = []
        self._event_at_s = time.monotonic()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        # Without it a rescale hangs: rank 0 never republishes the master's address.
        self._environment = {
            **os.environ,
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parent.parent),
        }

    def __enter__(self) -> ElasticLaunch:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self._agents:
            _kill_tree(agent)

    def add(self, count: int) -> None:
        """Start more nodes."""
        for _ in range(count):
            self._agents.append(self._start())
        self._event_at_s = time.monotonic()

    def _start(self) -> subprocess.Popen[bytes]:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:4"]
        options = [
            "--nproc-per-node=1",
            "--rdzv-id=bench",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{self._port}",
            f"--rdzv-conf={_RENDEZVOUS}",
            "--max-restarts=100",
            "--monitor-interval=0.1",
        ]
        script = str(Path(__file__).with_name("elastic_script.py"))
        with (self._directory / "agents.log").open("ab") as log:
            return subprocess.Popen(
                [*torchrun, *options, script, str(self._directory)],
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def end_politely(self, count: int) -> None:
        """End the newest nodes as a batch system would, with SIGTERM."""
        self._event_at_s = time.monotonic()
        for _ in range(count):
            self._agents.pop().terminate()

    def kill_one(self) -> None:
        """Kill the newest node without notice."""
        agent = self._agents.pop()
        self._event_at_s = time.monotonic()
        _kill_tree(agent)

    def wait_steps(self, steps: int) -> None:
        """Wait until that many steps have begun since the last event."""
        self._wait(lambda: len(self._since(self._event_at_s)) >= steps)

    def stall_s(self, workers: int, steps: int) -> float:
        """Return the longest time without a step since the last event, once all train again."""
        self._wait(lambda: self._is_steady(workers, steps))
        event_at_s = self._event_at_s
        times = sorted(self._since(0.0))
        before = max(t for t in times if t <= event_at_s)
        after = [before, *(t for t in times if t > event_at_s)]
        return max(b - a for a, b in itertools.pairwise(after))

    def _is_steady(self, workers: int, steps: int) -> bool:
        """So many processes that did not train at the event, or do again, have taken steps."""
        newest = [s for s in read(self._directory).values() if s and s[0].at_s > self._event_at_s]
        return sum(len(s) >= steps for s in newest) >= workers

    def _since(self, at_s: float) -> list[float]:
        marks = [mark for marks in read(self._directory).values() for mark in marks]
        return [mark.at_s for mark in marks if mark.is_begin and mark.at_s > at_s]

    def _wait(self, is_so: Callable[[], bool]) -> None:
        give_up_at_s = time.monotonic() + _LIMIT_S
        while not is_so():
            if time.monotonic() > give_up_at_s:
                log = (self._directory / "agents.log").read_text(errors="replace")
                raise TimeoutError(f"the reference did not train on:\n{log[-2000:]}")
            time.sleep(_POLL_S)


def _kill_tree(agent: subprocess.Popen[bytes]) -> None:
    """Kill an agent with its workers, which have sessions of their own, as a lost node does."""
    for process in [*psutil.Process(agent.pid).children(recursive=True), psutil.Process(agent.pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    agent.wait()
