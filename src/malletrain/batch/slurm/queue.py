"""Slurm's queue, by its own programs and as an ordinary user."""

from __future__ import annotations

import os
from collections.abc import Mapping

from malletrain.batch.commands import CommandFailedError, CommandKind, Commands
from malletrain.batch.pilot_script import PilotFiles
from malletrain.batch.queue import Survey
from malletrain.batch.slurm import build, parse
from malletrain.batch.slurm.refusals import refusal
from malletrain.batch.slurm.script import slurm_script
from malletrain.batch.slurm.survey import survey_of
from malletrain.clock import Clock
from malletrain.config import ScavengeSettings, SlurmSettings


class SlurmQueue:
    """A `Queue`. A survey is three queries, whatever the number of nodes and jobs."""

    def __init__(
        self,
        commands: Commands,
        clock: Clock,
        *,
        scavenge: ScavengeSettings,
        slurm: SlurmSettings,
        files: PilotFiles,
        environment: Mapping[str, str],
    ) -> None:
        """Take the commands' runner, which must have `build.environment`.

        Args:
            commands: runs Slurm's programs.
            clock: for the time of surveys.
            scavenge: how pilots behave.
            slurm: how they are submitted.
            files: that they need of the controller.
            environment: of which they keep what the settings name.
        """
        self._commands = commands
        self._clock = clock
        self._scavenge = scavenge
        self._slurm = slurm
        self._files = files
        self._environment = environment

    async def survey(self) -> Survey:
        at_s = self._clock.now_s()
        partition = self._slurm.partition
        nodes = parse.nodes(await self._ask(build.show_nodes(partition)), partition)
        jobs = parse.jobs(await self._ask(build.show_jobs()))
        reservations = parse.reservations(await self._ask(build.show_reservations()))
        name = self._files.job_name
        return survey_of(at_s, nodes, jobs, reservations, name=name, uid=os.getuid())

    async def is_up(self) -> bool:
        try:
            answer = await self._commands.run(CommandKind.PING, build.ping())
        except CommandFailedError as error:
            # It fails where any of the site's controllers is away, even if another serves.
            answer = error.output
        return parse.is_up(answer)

    async def submit(self, count: int, walltime_s: float) -> tuple[str, ...]:
        minutes = build.limit_min(walltime_s)
        self._files.log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = build.submit(
            count, minutes, self._files.job_name, self._files.log_dir, self._slurm
        )
        script = slurm_script(minutes, self._scavenge, self._slurm, self._files, self._environment)
        try:
            answer = await self._commands.run(CommandKind.ORDER, command, script)
        except CommandFailedError as error:
            raise refusal(error) from error
        return parse.submitted(answer, count)

    async def cancel(self, pilot_ids: tuple[str, ...]) -> None:
        if pilot_ids:
            await self._commands.run(CommandKind.ORDER, build.cancel(pilot_ids))

    async def _ask(self, command: tuple[str, ...]) -> str:
        return await self._commands.run(CommandKind.QUERY, command)
