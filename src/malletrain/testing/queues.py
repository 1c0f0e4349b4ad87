"""What the scavenger relies on, whatever the batch system: a suite for adapters' tests to inherit.

It needs pytest, and a site to try the adapter on: the real batch system, or programs that play it.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from malletrain.batch.commands import CommandKind, CommandRecord, Commands
from malletrain.batch.pilot_script import PilotFiles
from malletrain.batch.queue import Queue, Survey
from malletrain.clock import WallClock
from malletrain.errors import BatchError

_LIMIT_S = 30.0
_PAUSE_S = 0.1
#: Administrators count them.
_MOST_QUERIES = 3


class QueueSite(Protocol):
    """A batch system with two idle nodes at least, and nobody else on it."""

    @property
    def hosts(self) -> frozenset[str]:
        """The idle nodes' names."""
        ...

    @property
    def programs(self) -> frozenset[str]:
        """Every program that the adapter may run."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment in which they are found and are about this site."""
        ...

    @property
    def unknown_pilot_id(self) -> str:
        """A pilot's id, well formed, of none that ever was."""
        ...

    def queue(self, commands: Commands, files: PilotFiles) -> Queue:
        """Make the adapter."""
        ...

    def fill(self) -> None:
        """Have somebody else take every node."""
        ...

    def free(self) -> None:
        """Have them give all back, so that what waits starts."""
        ...

    def stop_server(self) -> None: ...

    def start_server(self) -> None: ...


class QueueContract:
    """Subclasses have a fixture `site`."""

    @pytest.fixture
    def site(self) -> QueueSite:
        raise NotImplementedError

    # -- surveys -----------------------------------------------------------------------------------

    def test_a_survey_shows_what_is_idle(self, site: QueueSite, tmp_path: Path) -> None:
        began_at_s = time.time()
        survey = asyncio.run(_queue(site, tmp_path).survey())
        assert set(survey.idle) == site.hosts
        assert not survey.waiting
        assert not survey.running
        # Some programs tell the time in whole seconds.
        assert began_at_s - 1 <= survey.at_s <= time.time() + 1

    def test_what_others_use_is_not_idle(self, site: QueueSite, tmp_path: Path) -> None:
        site.fill()
        survey = asyncio.run(_queue(site, tmp_path).survey())
        assert not survey.idle
        assert not survey.running

    def test_no_answer_is_an_error_and_never_no_nodes(
        self, site: QueueSite, tmp_path: Path
    ) -> None:
        queue = _queue(site, tmp_path, _silent(site, tmp_path / "silent"))
        with pytest.raises(BatchError) as error:
            asyncio.run(queue.survey())
        assert_is_one_line(error.value)
        with pytest.raises(BatchError) as error:
            asyncio.run(queue.submit(2, 600.0))
        assert_is_one_line(error.value)
        assert not asyncio.run(queue.is_up())

    # -- pilots ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("count", [1, 2])
    def test_submitted_pilots_wait_until_they_are_cancelled(
        self, site: QueueSite, tmp_path: Path, count: int
    ) -> None:
        site.fill()
        queue = _queue(site, tmp_path)
        ids = asyncio.run(queue.submit(count, 600.0))
        assert len(set(ids)) == count
        assert asyncio.run(queue.survey()).waiting == dict.fromkeys(ids, 600.0)
        asyncio.run(queue.cancel(ids[:1]))
        assert set(_survey_once(queue, lambda s: ids[0] not in s.waiting).waiting) == {*ids[1:]}
        asyncio.run(queue.cancel(ids))
        assert not _survey_once(queue, lambda s: not s.waiting).running

    def test_pilots_start_where_nodes_are_idle(self, site: QueueSite, tmp_path: Path) -> None:
        site.fill()
        queue = _queue(site, tmp_path)
        ids = asyncio.run(queue.submit(2, 600.0))
        site.free()
        survey = _survey_once(queue, lambda s: len(s.running) == 2)
        assert not survey.waiting
        assert set(survey.running.values()) == set(ids)
        assert set(survey.running) <= site.hosts
        assert not set(survey.running) & set(survey.idle)
        asyncio.run(queue.cancel(ids))
        assert not _survey_once(queue, lambda s: not s.running).waiting

    def test_pilots_of_another_controller_are_not_ours(
        self, site: QueueSite, tmp_path: Path
    ) -> None:
        site.fill()
        other = _queue(site, tmp_path / "other")
        ids = asyncio.run(other.submit(1, 600.0))
        assert not asyncio.run(_queue(site, tmp_path / "ours").survey()).waiting
        asyncio.run(other.cancel(ids))

    def test_cancelling_what_is_gone_or_never_was_is_no_error(
        self, site: QueueSite, tmp_path: Path
    ) -> None:
        site.fill()
        queue = _queue(site, tmp_path)
        ids = asyncio.run(queue.submit(2, 600.0))
        for _ in range(2):
            asyncio.run(queue.cancel((*ids, site.unknown_pilot_id)))
        assert not _survey_once(queue, lambda s: not s.waiting).running
        before = _log(tmp_path)
        asyncio.run(queue.cancel(()))
        assert _log(tmp_path) == before

    # -- failures ----------------------------------------------------------------------------------

    def test_a_server_that_is_away_is_told(self, site: QueueSite, tmp_path: Path) -> None:
        queue = _queue(site, tmp_path)
        assert asyncio.run(queue.is_up())
        site.stop_server()
        assert not asyncio.run(queue.is_up())
        with pytest.raises(BatchError) as error:
            asyncio.run(queue.survey())
        assert_is_one_line(error.value)
        assert error.value.is_transient
        site.start_server()
        _until(lambda: asyncio.run(queue.is_up()), "the server is up again")

    def test_programs_that_are_not_installed_are_named(
        self, site: QueueSite, tmp_path: Path
    ) -> None:
        (tmp_path / "nothing").mkdir()
        queue = _queue(site, tmp_path, {**site.environment, "PATH": str(tmp_path / "nothing")})
        for attempt in (queue.survey(), queue.submit(1, 600.0), queue.is_up()):
            with pytest.raises(BatchError, match="not installed") as error:
                asyncio.run(attempt)
            assert_is_one_line(error.value)
            assert not error.value.is_transient

    # -- the audit log -----------------------------------------------------------------------------

    def test_every_program_that_runs_is_written_down(self, site: QueueSite, tmp_path: Path) -> None:
        site.fill()
        queue = _queue(site, tmp_path, _counting(site, tmp_path / "counting"))
        asyncio.run(queue.survey())
        queries = _log(tmp_path)
        assert {record.kind for record in queries} == {CommandKind.QUERY}
        assert len(queries) <= _MOST_QUERIES
        asyncio.run(queue.is_up())
        ids = asyncio.run(queue.submit(2, 600.0))
        asyncio.run(queue.cancel(ids))
        later = [record.kind for record in _log(tmp_path)[len(queries) :]]
        assert later == [CommandKind.PING, CommandKind.ORDER, CommandKind.ORDER]
        ran = (tmp_path / "counting" / "calls").read_text().split()
        assert Counter(ran) == Counter(record.command[0] for record in _log(tmp_path))
        assert set(ran) <= site.programs


def assert_is_one_line(error: BatchError) -> None:
    """Check that it says something, and can be shown to a user as it is."""
    assert str(error).strip()
    assert "\n" not in str(error)


def _queue(site: QueueSite, folder: Path, environment: Mapping[str, str] | None = None) -> Queue:
    state_dir = folder / "state"
    commands = Commands(state_dir / "commands.jsonl", WallClock(), environment or site.environment)
    files = PilotFiles(state_dir / "endpoint.json", state_dir / "token", state_dir / "pilots")
    return site.queue(commands, files)


def _log(folder: Path) -> list[CommandRecord]:
    lines = (folder / "state" / "commands.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=CommandRecord) for line in lines]


def _silent(site: QueueSite, folder: Path) -> dict[str, str]:
    """Return an environment in which every program ends well and says nothing."""
    for program in site.programs:
        _write_program(folder / program, "exit 0")
    return {**site.environment, "PATH": f"{folder}:{site.environment['PATH']}"}


def _counting(site: QueueSite, folder: Path) -> dict[str, str]:
    """Return an environment in which every program notes in a file that it was run."""
    for program in site.programs:
        real = shutil.which(program, path=site.environment["PATH"])
        assert real, f"the site has no {program}"
        note = f'echo {program} >> "{folder}/calls"'
        _write_program(folder / program, f'{note}\nexec "{real}" "$@"')
    return {**site.environment, "PATH": f"{folder}:{site.environment['PATH']}"}


def _write_program(path: Path, lines: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o700)


def _survey_once(queue: Queue, is_so: Callable[[Survey], bool]) -> Survey:
    """Return the first survey of which it is so: batch systems take their time."""
    surveys: list[Survey] = []

    def is_there() -> bool:
        surveys.append(asyncio.run(queue.survey()))
        return is_so(surveys[-1])

    _until(is_there, "a survey shows it")
    return surveys[-1]


def _until(is_so: Callable[[], bool], what: str) -> None:
    give_up_at_s = time.monotonic() + _LIMIT_S
    while not is_so():
        assert time.monotonic() < give_up_at_s, f"it does not come to this: {what}"
        time.sleep(_PAUSE_S)
