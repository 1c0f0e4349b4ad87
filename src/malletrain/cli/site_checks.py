"""Whether a site's batch system would lend us nodes: asked by `doctor`, and by `up` at first."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from malletrain.batch.commands import Commands
from malletrain.batch.pbs import facts as pbs_facts
from malletrain.batch.slurm import build, facts
from malletrain.cli.doctor import Finding, Verdict
from malletrain.cli.node_checks import node_findings
from malletrain.cli.pbs_doctor import diagnose_pbs
from malletrain.cli.slurm_doctor import diagnose_slurm
from malletrain.clock import WallClock
from malletrain.config import BatchName, Config
from malletrain.errors import ConfigError, UserError
from malletrain.live.lenders import listening_address, pilot_files
from malletrain.live.state_dir import StateDir, file_system_of, is_network_file_system

#: The checks that fail where the scheduler does not answer.
UNREACHABLE = frozenset({"slurm controller", "pbs server"})


def site_findings(name: BatchName, state_dir: StateDir, config: Config) -> tuple[Finding, ...]:
    """Ask the batch system, and judge what it says; nothing for local nodes."""
    if name is BatchName.LOCAL:
        return ()
    of_site = _of_pbs if name is BatchName.PBS else _of_slurm
    findings = of_site(state_dir, config)
    return (_address(name, config), _shared_dir(state_dir), *findings)


def pilot_findings(name: BatchName, state_dir: StateDir, config: Config) -> tuple[Finding, ...]:
    """Try on an idle node what pilots will need there; only Slurm runs a program at once."""
    if name is not BatchName.SLURM:
        return ()
    environment = build.environment(os.environ)
    commands = Commands(state_dir.commands_path, WallClock(), environment)
    try:
        address = listening_address(name, config.scavenge)
    except ConfigError:
        return ()  # told by `site_findings`
    return asyncio.run(node_findings(commands, state_dir, config, address))


def refuse_bad_site(name: BatchName, state_dir: StateDir, config: Config) -> None:
    """Refuse to start where pilots could not be had, or would do harm.

    A scheduler that does not answer is no reason: it comes back, and training may go on meanwhile.

    Raises:
        UserError: each fault in a line, with what to do about it.
    """
    bad = [
        finding
        for finding in site_findings(name, state_dir, config)
        if finding.verdict is Verdict.FAIL and finding.check not in UNREACHABLE
    ]
    if bad:
        told = "\n".join(f"{f.check}: {f.found} -> {f.advice}" for f in bad)
        raise UserError(f"{told}\nall checks: malletrain doctor --batch {name.value}")


def _address(name: BatchName, config: Config) -> Finding:
    try:
        address = listening_address(name, config.scavenge)
    except ConfigError as error:
        return Finding(
            check="address", verdict=Verdict.FAIL, found=str(error), advice="see docs/slurm.md"
        )
    is_loopback = address.startswith("127.") or address in ("::1", "localhost")
    return Finding(
        check="address",
        verdict=Verdict.WARN if is_loopback else Verdict.OK,
        found=f"nodes call {address}",
        advice="that is this machine alone: set address or subnet in [scavenge]"
        if is_loopback
        else "",
    )


def _shared_dir(state_dir: StateDir) -> Finding:
    shared = state_dir.shared
    existing = next(place for place in (shared, *shared.parents) if place.exists())
    kind = file_system_of(existing.resolve(), Path("/proc/mounts").read_text())
    if is_network_file_system(kind):
        return Finding(check="shared files", verdict=Verdict.OK, found=f"{shared} is on {kind}")
    return Finding(
        check="shared files",
        verdict=Verdict.WARN,
        found=f"{shared} is on {kind or 'a file system'} of this machine",
        advice="nodes read the endpoint there and write logs and checkpoints: set shared_dir in "
        "[scavenge] to a directory that all of them see",
    )


def _of_slurm(state_dir: StateDir, config: Config) -> tuple[Finding, ...]:
    environment = build.environment(os.environ)
    clock = WallClock()
    found = asyncio.run(
        facts.gather(
            Commands(state_dir.commands_path, clock, environment, limit_s=20.0),
            clock,
            config.scavenge,
            config.slurm,
            pilot_files(state_dir),
            path=environment.get("PATH", ""),
        )
    )
    return diagnose_slurm(found)


def _of_pbs(state_dir: StateDir, config: Config) -> tuple[Finding, ...]:
    clock = WallClock()
    found = asyncio.run(
        pbs_facts.gather(
            Commands(state_dir.commands_path, clock, os.environ, limit_s=20.0),
            clock,
            config.scavenge,
            config.pbs,
            path=os.environ.get("PATH", ""),
        )
    )
    return diagnose_pbs(found)
