"""The job script of a pilot: shell lines that start a node's agent, whatever the batch system."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path

from malletrain import processes
from malletrain.batch.local import PRELOAD
from malletrain.config import ScavengeSettings


@dataclass(frozen=True, slots=True)
class PilotFiles:
    """What pilots need of the controller's, on a file system that the nodes share."""

    #: JSON with the controller's `url`.
    endpoint: Path
    token: Path
    #: Where what pilots write is kept.
    log_dir: Path

    @property
    def job_name(self) -> str:
        """What tells this controller's pilots from all other jobs; fit for every batch system."""
        digest = hashlib.blake2b(str(self.endpoint).encode(), digest_size=4)
        return f"malle-{digest.hexdigest()}"


@dataclass(frozen=True, slots=True)
class ShellWords:
    """What only the node knows, as the shell finds it out there: each is one word of shell."""

    host: str
    pilot_id: str
    #: Epoch s at which the walltime ends.
    ends_at_s: str
    #: Cabinet, switch or dragonfly group.
    group: str = "''"
    gpus: str = "0"


def pilot_script(
    settings: ScavengeSettings,
    files: PilotFiles,
    words: ShellWords,
    *,
    first_lines: tuple[str, ...] = (),
    launcher: tuple[str, ...] = (),
) -> str:
    """Return the script.

    Args:
        settings: whose prologue, wrapper and interpreter are used.
        files: of the controller.
        words: what the agent is told of its node.
        first_lines: shell lines that come before the prologue, which may take long.
        launcher: a program of the batch system's under which the agent runs, with its options.
    """
    lines = [*first_lines]
    if settings.prologue:
        lines.append(settings.prologue.rstrip("\n"))
    # The shell makes way: signals are the agent's.
    lines.append("exec " + " ".join(_agent_command(settings, files, words)))
    if launcher:
        # All of it below the launcher: what comes before may hear no signal, and take long.
        inner = "\n".join(lines)
        lines = [f"exec {shlex.join((*launcher, '/bin/sh', '-c', inner))}"]
    return "\n".join(["#!/bin/sh", "umask 077", *lines]) + "\n"


def interpreter_words(settings: ScavengeSettings) -> tuple[str, ...]:
    """Return how a node starts the Python that has malletrain."""
    return (*settings.wrapper, settings.interpreter or processes.PYTHON[0])


def _agent_command(settings: ScavengeSettings, files: PilotFiles, words: ShellWords) -> list[str]:
    fixed = {
        "--controller": files.endpoint,
        "--token-file": files.token,
        "--scratch-dir": settings.scratch_dir,
        "--preload": ",".join(PRELOAD),
        "--grace-s": settings.grace_s,
        "--shrink-within-s": settings.shrink_within_s,
        "--save-within-s": settings.save_within_s,
        "--leave-ahead-s": settings.leave_ahead_s,
        "--controller-away-limit-s": settings.controller_away_limit_s,
        "--heartbeat-limit-s": settings.heartbeat_limit_s,
        "--hang-limit-s": settings.hang_limit_s,
    }
    if settings.subnet:
        fixed["--subnet"] = settings.subnet
    python = (*interpreter_words(settings), *processes.PYTHON[1:])
    command = [*python, "-m", "malletrain.node.agent"]
    for option, value in fixed.items():
        command += [option, str(value)]
    for name in settings.leave_signals:
        command += ["--leave-signal", name]
    found_there = {
        # Two pilots on one host, one of them forgotten by the batch system, are two nodes.
        "--node-id": f"{words.host}-{words.pilot_id}",
        "--host": words.host,
        "--pilot-id": words.pilot_id,
        "--expected-end": words.ends_at_s,
        "--group": words.group,
        "--gpus": words.gpus,
    }
    quoted = [shlex.quote(word) for word in command]
    for option, word in found_there.items():
        quoted += [option, word]
    return quoted
