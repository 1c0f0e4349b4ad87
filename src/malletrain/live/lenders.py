"""Which batch system lends the nodes, made as it is configured, and where they can call us."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from malletrain.batch.base import BatchSystem
from malletrain.batch.commands import Commands
from malletrain.batch.local import PRELOAD, LocalBatch
from malletrain.batch.pbs.queue import PbsQueue
from malletrain.batch.pilot_script import PilotFiles
from malletrain.batch.queue import Queue
from malletrain.batch.scavenger import Scavenger
from malletrain.batch.slurm import build
from malletrain.batch.slurm.queue import SlurmQueue
from malletrain.clock import Clock
from malletrain.config import BatchName, Config, LocalSettings, ScavengeSettings
from malletrain.errors import ConfigError, UsageError
from malletrain.live.state_dir import StateDir
from malletrain.network import own_address

_LOOPBACK = "127.0.0.1"


def lender(name: BatchName, state_dir: StateDir, config: Config, clock: Clock) -> BatchSystem:
    """Make the batch system of this name."""
    if name is BatchName.LOCAL:
        return local_batch(state_dir.path, config.local)
    queue = queue_of(name, state_dir, config, clock)
    return Scavenger(queue, config.scavenge, clock, logs=state_dir.pilots_dir, jitter=random.random)


def listening_address(name: BatchName, scavenge: ScavengeSettings) -> str:
    """Return the address at which the nodes of this batch system reach the controller.

    Raises:
        ConfigError: this machine has none such.
    """
    if name is BatchName.LOCAL:
        # Nobody else can reach the port.
        return _LOOPBACK
    if scavenge.address:
        return scavenge.address
    if scavenge.subnet:
        try:
            return own_address(scavenge.subnet)[1]
        except UsageError as error:
            raise ConfigError(f"scavenge.subnet: {error}") from error
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise ConfigError(
            f"{socket.gethostname()} has no address that nodes could call ({error.strerror}): set "
            f"address or subnet in [scavenge]"
        ) from error


def queue_of(name: BatchName, state_dir: StateDir, config: Config, clock: Clock) -> Queue:
    """Make the queue from which a scavenger takes nodes."""
    files = pilot_files(state_dir)
    if name is BatchName.PBS:
        commands = Commands(state_dir.commands_path, clock, os.environ)
        return PbsQueue(commands, scavenge=config.scavenge, pbs=config.pbs, files=files)
    environment = build.environment(os.environ)
    return SlurmQueue(
        Commands(state_dir.commands_path, clock, environment),
        clock,
        scavenge=config.scavenge,
        slurm=config.slurm,
        files=files,
        environment=environment,
    )


def pilot_files(state_dir: StateDir) -> PilotFiles:
    """Return what pilots need of the controller's."""
    return PilotFiles(
        state_dir.pilot_endpoint_path, state_dir.pilot_token_path, state_dir.pilots_dir
    )


def local_batch(
    state_dir: Path, local: LocalSettings, preload: Sequence[str] = PRELOAD
) -> LocalBatch:
    """Make the local batch system as it is configured."""
    return LocalBatch(
        state_dir,
        max_nodes=local.max_nodes,
        grace_s=local.grace_s,
        trace_path=Path(local.trace) if local.trace else None,
        speed=local.speed,
        away_limit_s=local.controller_away_limit_s,
        preload=preload,
        agent_options=(
            "--hang-limit-s",
            str(local.hang_limit_s),
            "--heartbeat-limit-s",
            str(local.heartbeat_limit_s),
        ),
    )
