"""Whether pilots will find on a node what they need: tried on an idle node, where there is one."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import msgspec

from malletrain import __version__, processes
from malletrain.batch.commands import CommandFailedError, CommandKind, Commands
from malletrain.batch.pilot_script import interpreter_words
from malletrain.batch.slurm import build
from malletrain.cli.doctor import Finding, Verdict
from malletrain.config import Config, ScavengeSettings
from malletrain.errors import BatchError
from malletrain.live.state_dir import StateDir
from malletrain.node.probe import NodeProbe

#: A probe waits so long for an idle node; its job ends within a minute.
_IDLE_WITHIN_S = 15
_MODULE = "malletrain.node.probe"
_SKEW_LIMIT_S = 5.0


async def node_findings(
    commands: Commands, state_dir: StateDir, config: Config, address: str
) -> tuple[Finding, ...]:
    """Run a probe on a node by `srun`, and judge what it says."""
    state_dir.shared.mkdir(mode=0o700, parents=True, exist_ok=True)
    with closing(socket.create_server((address, 0))) as listener:
        port = listener.getsockname()[1]
        try:
            said = await commands.run(CommandKind.ORDER, _command(state_dir, config, address, port))
        except CommandFailedError as error:
            return (_not_run(error),)
        except BatchError as error:
            return (_finding("probe", Verdict.WARN, str(error), "try again later"),)
    try:
        found = msgspec.json.decode(said.strip().splitlines()[-1], type=NodeProbe)
    except (msgspec.DecodeError, IndexError):
        advice = "it must print one line of JSON: keep the prologue in [scavenge] quiet"
        return (_finding("probe", Verdict.FAIL, f"the probe said {said[:80]!r}", advice),)
    return tuple(judge(found, config.scavenge, time.time()))


def _command(state_dir: StateDir, config: Config, address: str, port: int) -> tuple[str, ...]:
    scavenge = config.scavenge
    probe = [
        *(*interpreter_words(scavenge), *processes.PYTHON[1:], "-m", _MODULE),
        *("--address", address, "--port", str(port), "--shared", str(state_dir.shared)),
        *("--scratch", scavenge.scratch_dir, "--subnet", scavenge.subnet),
    ]
    script = f"{scavenge.prologue}\nexec {shlex.join(probe)}"
    return (*build.run_at_once(_IDLE_WITHIN_S, config.slurm), "/bin/sh", "-c", script)


def _not_run(error: CommandFailedError) -> Finding:
    if "busy" in error.output or "Unable to allocate" in error.output:
        return _finding(
            "probe",
            Verdict.WARN,
            "no node is idle now, so nothing was tried on one",
            "run this again when `sinfo -t idle` lists nodes",
        )
    return _finding(
        "probe",
        Verdict.FAIL,
        str(error),
        "set interpreter and prologue in [scavenge] to what starts a Python with malletrain there",
    )


def judge(found: NodeProbe, scavenge: ScavengeSettings, now_s: float) -> Iterator[Finding]:
    """Judge what a node says."""
    yield _finding("probe", Verdict.OK, f"ran on {found.host}")
    if found.malletrain != __version__:
        yield _finding(
            "malletrain",
            Verdict.FAIL,
            f"{found.malletrain} there, {__version__} here",
            "install the same version on both, or set interpreter in [scavenge]",
        )
    if found.torch is None:
        yield _finding(
            "pytorch",
            Verdict.FAIL,
            "not installed there",
            "set interpreter and prologue in [scavenge], or pip install 'malletrain[train]'",
        )
    yield _judged(
        "route",
        found.route_problem,
        "the controller's address can be reached",
        "set address or subnet in [scavenge]; ask the administrator whether nodes may open TCP "
        "connections to this machine",
    )
    yield _judged(
        "shared files",
        found.files_problem,
        "the controller's files can be read and written",
        "set shared_dir in [scavenge] to a directory that all nodes see",
    )
    yield _judged(
        "scratch", found.scratch_problem, f"{scavenge.scratch_dir} is writable", "set scratch_dir"
    )
    if scavenge.subnet:
        yield _judged("subnet", found.subnet_problem, f"in {scavenge.subnet}", "set subnet")
    skew_s = found.now_s - now_s
    yield _judged(
        "clock",
        f"{skew_s:+.0f} s off this machine's" if abs(skew_s) > _SKEW_LIMIT_S else "",
        "agrees with this machine's",
        "ask the administrator to synchronise the nodes' clocks",
    )


def _judged(check: str, problem: str, well: str, advice: str) -> Finding:
    if problem:
        return _finding(check, Verdict.FAIL, problem, advice)
    return _finding(check, Verdict.OK, well)


def _finding(check: str, verdict: Verdict, found: str, advice: str = "") -> Finding:
    return Finding(check=f"node {check}", verdict=verdict, found=found, advice=advice)
