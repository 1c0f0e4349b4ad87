"""Run a batch system's programs: bounded in time, counted, and written down for administrators."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from malletrain.clock import Clock
from malletrain.errors import BatchError

_log = logging.getLogger(__name__)

#: Of what a program says when it fails; it ends in a line for the user.
_MAX_REASON = 300


class CommandKind(enum.Enum):
    #: It reads the scheduler's state, and costs its time.
    QUERY = "query"
    #: It submits or cancels pilots.
    ORDER = "order"
    #: It only asks whether the scheduler is there.
    PING = "ping"


class CommandRecord(Struct, frozen=True, kw_only=True):
    """One line of the log of commands."""

    at_s: float
    kind: CommandKind
    command: tuple[str, ...]
    took_s: float
    #: Exit status; None where it did not end in time.
    status: int | None


class CommandFailedError(BatchError):
    """A program ended with an error; `status` is its exit status, `output` all it wrote."""

    def __init__(self, message: str, status: int, output: str) -> None:
        super().__init__(message, is_transient=True)
        self.status = status
        self.output = output


class NoAnswerError(BatchError):
    """A program did not end in time: whether it did what it was to do nobody knows."""


class Commands:
    """Runs programs and appends a `CommandRecord` for each to a log of JSON lines."""

    def __init__(
        self,
        log_path: Path,
        clock: Clock,
        environment: Mapping[str, str],
        *,
        limit_s: float = 60.0,
    ) -> None:
        """Take the programs' whole environment, and how long each may take."""
        self._log_path = log_path
        self._clock = clock
        self._limit_s = limit_s
        self._environment = dict(environment)

    async def run(self, kind: CommandKind, command: Sequence[str], stdin: str = "") -> str:
        """Return what the program wrote to its standard output.

        Raises:
            CommandFailedError: it ended with another status than 0.
            BatchError: it is not installed, or did not end within the limit.
        """
        began_at_s = self._clock.now_s()
        status: int | None = None
        try:
            status, output, errors = await self._output_of(command, stdin)
        finally:
            record = CommandRecord(
                at_s=began_at_s,
                kind=kind,
                command=tuple(command),
                took_s=self._clock.now_s() - began_at_s,
                status=status,
            )
            self._write_down(record)
        if status:
            raise CommandFailedError(
                f"{command[0]} ended with {status}: {_one_line(errors or output)}",
                status,
                output + errors,
            )
        return output

    async def _output_of(self, command: Sequence[str], stdin: str) -> tuple[int, str, str]:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
            )
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                raise BatchError(
                    f"{command[0]} could not be started: {error.strerror}", is_transient=True
                ) from error
            raise BatchError(
                f"{command[0]} is not installed here, or not on the PATH: run this on a login or "
                "service node",
                is_transient=False,
            ) from None
        try:
            async with asyncio.timeout(self._limit_s):
                output, errors = await process.communicate(stdin.encode())
        except TimeoutError:
            raise NoAnswerError(
                f"{command[0]} did not end within {self._limit_s:g} s", is_transient=True
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, output.decode(errors="replace"), errors.decode(errors="replace")

    def _write_down(self, record: CommandRecord) -> None:
        try:
            self._log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._log_path.open("ab") as log:
                log.write(msgspec.json.encode(record) + b"\n")
        except OSError as error:
            # What the program said counts, whether it can be written down or not.
            _log.error("%s cannot be written: %s", self._log_path, error.strerror)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MAX_REASON] or "it said nothing"
