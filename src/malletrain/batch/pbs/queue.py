"""PBS's queue, by its own programs and as an ordinary user."""

from __future__ import annotations

import getpass
import math
from collections.abc import Mapping

from malletrain.batch.commands import CommandFailedError, CommandKind, Commands
from malletrain.batch.pbs import build, parse
from malletrain.batch.pbs.refusals import refusal
from malletrain.batch.pbs.script import groups_path, pbs_script
from malletrain.batch.pbs.survey import groups_of, survey_of
from malletrain.batch.pilot_script import PilotFiles
from malletrain.batch.queue import Survey
from malletrain.config import PbsSettings, ScavengeSettings


class PbsQueue:
    """A `Queue`. A survey is two queries, or three where there are reservations."""

    def __init__(
        self,
        commands: Commands,
        *,
        scavenge: ScavengeSettings,
        pbs: PbsSettings,
        files: PilotFiles,
    ) -> None:
        """Take the commands' runner.

        Args:
            commands: runs PBS's programs.
            scavenge: how pilots behave.
            pbs: how they are submitted.
            files: that they need of the controller.
        """
        self._commands = commands
        self._scavenge = scavenge
        self._pbs = pbs
        self._files = files
        self._user = getpass.getuser()
        self._groups: Mapping[str, str] = {}

    async def survey(self) -> Survey:
        # Jobs first: a pilot that starts in between is seen twice, and not never.
        jobs = tuple(parse.jobs(await self._ask(build.show_jobs())))
        at_s, vnodes = parse.nodes(await self._ask(build.show_nodes()))
        reservations: tuple[parse.Reservation, ...] = ()
        if any(vnode.reservations for vnode in vnodes.values()):
            reservations = parse.reservations(await self._ask(build.show_reservations()))
        self._publish(groups_of(vnodes.values()))
        return survey_of(
            at_s,
            vnodes,
            jobs,
            reservations,
            name=self._files.job_name,
            user=self._user,
            queue=self._pbs.queue,
        )

    async def is_up(self) -> bool:
        try:
            return parse.is_up(await self._commands.run(CommandKind.PING, build.ping()))
        except CommandFailedError:
            return False

    async def submit(self, count: int, walltime_s: float) -> tuple[str, ...]:
        # PBS counts whole seconds. Rounded up, a pilot would outlast its hole.
        limit_s = math.floor(walltime_s)
        self._make_log_dir()
        command = build.submit(
            count,
            limit_s,
            self._files.job_name,
            self._files.log_dir,
            self._pbs,
            keep_env=self._scavenge.keep_env,
        )
        text = pbs_script(limit_s, self._scavenge, self._files)
        try:
            answer = await self._commands.run(CommandKind.ORDER, command, text)
        except CommandFailedError as error:
            raise refusal(error) from error
        return parse.submitted(answer, count)

    async def cancel(self, pilot_ids: tuple[str, ...]) -> None:
        if not pilot_ids:
            return
        try:
            await self._commands.run(CommandKind.ORDER, build.cancel(pilot_ids))
        except CommandFailedError as error:
            if not parse.is_only_of_the_gone(error.output):
                raise

    async def _ask(self, command: tuple[str, ...]) -> str:
        return await self._commands.run(CommandKind.QUERY, command)

    def _publish(self, groups: Mapping[str, str]) -> None:
        """Write down for pilots what their hosts' groups are."""
        if groups == self._groups:
            return
        self._make_log_dir()
        path = groups_path(self._files)
        new = path.with_suffix(".new")
        new.write_text("".join(f"{host} {group}\n" for host, group in sorted(groups.items())))
        new.replace(path)
        self._groups = groups

    def _make_log_dir(self) -> None:
        self._files.log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
