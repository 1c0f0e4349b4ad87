from __future__ import annotations

import hashlib
import math
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.core.apply import apply, replay
from malletrain.core.events import (
    AnyEvent,
    CheckpointSaved,
    JobCancelled,
    JobNoted,
    JobSubmitted,
    NodesJoined,
    NodesLeaving,
    NodesLost,
    ProgressReported,
    WokeUp,
)
from malletrain.core.model import Cluster, JobSpec, Node
from malletrain.errors import InvariantError, JournalError, JournalWriteError
from malletrain.live.store import SqliteStore, read_events, read_history

_times = st.floats(0, 1e6)
_nodes = st.sampled_from([f"n{i}" for i in range(4)])
_jobs = st.sampled_from(["j1", "j2"])


def spec(job_id: str) -> JobSpec:
    return JobSpec(id=job_id, name=job_id, min_nodes=1, max_nodes=4, model_key="m")


EVENTS = st.one_of(
    st.builds(
        lambda at_s, n: NodesJoined(at_s=at_s, nodes=(Node(id=n, opened_at_s=at_s),)),
        _times,
        _nodes,
    ),
    st.builds(
        lambda at_s, n: NodesLeaving(at_s=at_s, node_ids=(n,), deadline_at_s=at_s + 5),
        _times,
        _nodes,
    ),
    st.builds(lambda at_s, n: NodesLost(at_s=at_s, node_ids=(n,), reason="ü"), _times, _nodes),
    st.builds(lambda at_s, j: JobSubmitted(at_s=at_s, spec=spec(j)), _times, _jobs),
    st.builds(lambda at_s, j: JobCancelled(at_s=at_s, job_id=j), _times, _jobs),
    st.builds(lambda at_s, j, t: JobNoted(at_s=at_s, job_id=j, note=t), _times, _jobs, st.text()),
    st.builds(lambda at_s, j: CheckpointSaved(at_s=at_s, job_id=j, samples=at_s), _times, _jobs),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    store.append([WokeUp(at_s=float(i)) for i in range(10)])
    yield store
    store.close()


def edit(path: Path, statement: str) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute(statement)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


@given(
    batches=st.lists(st.lists(EVENTS, min_size=1, max_size=4), max_size=6),
    snapshot_after=st.sets(st.integers(0, 5)),
)
@settings(max_examples=20, deadline=None)
def test_replaying_the_journal_rebuilds_the_state(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[AnyEvent]],
    snapshot_after: set[int],
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.sqlite"
    store = SqliteStore(path)
    state = Cluster()
    for index, batch in enumerate(batches):
        for event in batch:
            state = apply(state, event)
        store.append(batch)
        if index in snapshot_after:
            store.snapshot(state)
    store.close()

    again = SqliteStore(path)
    recovered = again.load()
    again.close()
    assert replay(recovered.events, recovered.snapshot) == state
    assert replay(read_events(path)) == state


def test_a_snapshot_spares_the_replay(journal: SqliteStore) -> None:
    journal.snapshot(Cluster(now_s=9.0))
    journal.append([WokeUp(at_s=10.0)])
    recovered = journal.load()
    assert recovered.snapshot == Cluster(now_s=9.0)
    assert recovered.events == (WokeUp(at_s=10.0),)


@pytest.mark.usefixtures("journal")
def test_a_living_journal_can_be_read_from_the_side(path: Path) -> None:
    assert len(list(read_events(path))) == 10


DAY_S = 86_400.0


class Days:
    """A journal of ten events a day, each day's with three snapshots among them."""

    def __init__(self, path: Path, days: int) -> None:
        self.path = path
        self.store = SqliteStore(path)
        self.state = Cluster()
        #: The state after each event, from none on.
        self.states = [self.state]
        for number in range(10 * days):
            event = NodesJoined(
                at_s=number * DAY_S / 10, nodes=(Node(id=f"n{number}", opened_at_s=0.0),)
            )
            self.state = apply(self.state, event)
            self.states.append(self.state)
            self.store.append([event])
            if number % 10 in (2, 5, 8):
                self.store.snapshot(self.state)

    def snapshots(self) -> list[int]:
        db = sqlite3.connect(self.path)
        seqs = [seq for (seq,) in db.execute("SELECT seq FROM snapshots ORDER BY seq")]
        db.close()
        return seqs

    def events(self) -> list[int]:
        db = sqlite3.connect(self.path)
        seqs = [seq for (seq,) in db.execute("SELECT seq FROM events ORDER BY seq")]
        db.close()
        return seqs


def test_the_last_two_states_are_kept_and_the_first_of_each_day(path: Path) -> None:
    journal = Days(path, 4)
    journal.store.close()
    assert journal.snapshots() == [3, 13, 23, 33, 36, 39]


@pytest.mark.parametrize(
    ("kept_days", "first"),
    [(30.0, 1), (3.9, 1), (2.7, 14), (1.0, 24), (0.0, 37)],
)
def test_a_trimmed_journal_starts_from_a_state_and_ends_as_before(
    path: Path, kept_days: float, first: int
) -> None:
    journal = Days(path, 4)
    journal.store.trim(4 * DAY_S - kept_days * DAY_S, at_most=1000)
    assert journal.events() == list(range(first, 41))
    recovered = journal.store.load()
    assert replay(recovered.events, recovered.snapshot) == journal.state
    journal.store.close()
    history = read_history(path)
    assert history.snapshot == (journal.states[first - 1] if first > 1 else None)
    assert replay(history.events, history.snapshot) == journal.state
    assert len(history.events) == 41 - first
    again = SqliteStore(path)
    again.append([WokeUp(at_s=4 * DAY_S)])
    assert again.seq == 41
    again.close()


def test_trimming_goes_on_where_it_left_off_and_can_be_read_meanwhile(path: Path) -> None:
    journal = Days(path, 4)
    for left in (35, 30, 25, 20, 17, 17):
        journal.store.trim(3 * DAY_S, at_most=5)
        assert len(journal.events()) == left
        history = read_history(path)
        assert history.snapshot == journal.states[23]
        assert len(history.events) == 17
    journal.store.close()


def test_a_damaged_state_is_no_place_to_start_from(path: Path) -> None:
    journal = Days(path, 4)
    journal.store.trim(3 * DAY_S, at_most=1000)
    journal.store.close()
    edit(path, "UPDATE snapshots SET crc = 0 WHERE seq IN (23, 39)")
    store = SqliteStore(path)
    recovered = store.load()
    assert replay(recovered.events, recovered.snapshot) == journal.state
    # The first from which all that follows is there.
    assert read_history(path).snapshot == journal.states[33]
    store.close()


def test_without_any_sound_state_a_trimmed_journal_is_refused(path: Path) -> None:
    journal = Days(path, 4)
    journal.store.trim(3 * DAY_S, at_most=1000)
    journal.store.close()
    edit(path, "UPDATE snapshots SET crc = 0")
    with pytest.raises(JournalError, match="event 1 is missing"):
        SqliteStore(path)
    with pytest.raises(JournalError, match="no state is sound that led to event 24"):
        read_history(path)


@pytest.mark.usefixtures("journal")
def test_only_its_owner_can_read_it(path: Path) -> None:
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE events SET body = x'00' WHERE seq = 4", "event 4 has a wrong checksum"),
        ("DELETE FROM events WHERE seq = 7", "event 7 is missing"),
        ("PRAGMA user_version = 99", "version 99, of a newer malletrain"),
        ("PRAGMA application_id = 1", "no journal of malletrain"),
        ("UPDATE events SET crc = 0, body = '{}' WHERE seq = 2", "event 2"),
        ("DROP TABLE events", "no such table"),
    ],
)
def test_a_damaged_or_newer_journal_is_refused_as_it_is(
    path: Path, journal: SqliteStore, statement: str, message: str
) -> None:
    journal.close()
    edit(path, statement)
    before = path.read_bytes()
    with pytest.raises(JournalError, match=message):
        SqliteStore(path)
    with pytest.raises(JournalError, match=message):
        list(read_events(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100])
def test_another_file_in_its_place_is_refused_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(JournalError, match="damaged"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_a_damaged_page_is_refused(path: Path, journal: SqliteStore) -> None:
    journal.append([JobNoted(at_s=1.0, job_id="j", note="x" * 400) for _ in range(200)])
    journal.close()
    content = bytearray(path.read_bytes())
    content[2 * 4096 : 6 * 4096] = b"\xff" * (4 * 4096)
    path.write_bytes(content)
    with pytest.raises(JournalError, match="it was not touched"):
        SqliteStore(path)
    assert path.read_bytes() == bytes(content)


def test_a_damaged_snapshot_costs_only_time(path: Path, journal: SqliteStore) -> None:
    journal.snapshot(Cluster(now_s=9.0))
    journal.close()
    edit(path, "UPDATE snapshots SET crc = 0")
    store = SqliteStore(path)
    recovered = store.load()
    store.close()
    assert recovered.snapshot is None
    assert len(recovered.events) == 10


def test_a_full_disk_loses_nothing_and_can_be_tried_again(path: Path, journal: SqliteStore) -> None:
    (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
    journal._db.execute(f"PRAGMA max_page_count = {pages}")
    big = [JobNoted(at_s=1.0, job_id="j", note="x" * 1000) for _ in range(50)]
    with pytest.raises(JournalWriteError, match="make room"):
        journal.append(big)
    assert journal.seq == 10
    assert len(list(read_events(path))) == 10
    journal._db.execute("PRAGMA max_page_count = 100000")
    journal.append(big)
    assert len(list(read_events(path))) == 60


def test_every_kind_of_event_survives(path: Path, journal: SqliteStore) -> None:
    event = ProgressReported(
        at_s=0.1 + 0.2,
        job_id="j",
        generation=3,
        nodes=2,
        samples=1e9 + 0.5,
        steps=7,
        samples_per_s=1 / 3,
        variance=2.0**-40,
    )
    journal.append([event])
    assert list(read_events(path))[-1] == event


def test_where_no_controller_ever_ran_there_is_nothing_to_read(path: Path) -> None:
    with pytest.raises(JournalError, match="no controller ever ran"):
        list(read_events(path))


def test_an_event_of_a_later_version_is_refused(path: Path, journal: SqliteStore) -> None:
    body = b'{"type":"MoonLanded","at_s":1.0}'
    journal.close()
    edit(path, f"INSERT INTO events VALUES (11, {zlib.crc32(body)}, x'{body.hex()}')")
    with pytest.raises(JournalError, match="event 11 is unknown here"):
        SqliteStore(path)


_KILLED = """
import os, signal, sys
from pathlib import Path
from malletrain.core.events import WokeUp
from malletrain.live.store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
for number in range(20):
    store.append([WokeUp(at_s=float(number))])
os.kill(os.getpid(), signal.SIGKILL)
"""
_FRAME_BYTES = 24 + 4096


@pytest.fixture
def killed(path: Path) -> Path:
    """A journal whose controller was killed: all its events are in the log."""
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False)
    assert ended.returncode == -9
    return path


def sums(path: Path) -> dict[str, str]:
    files = sorted(path.parent.iterdir())
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("has_index", [True, False])
def test_a_killed_controllers_journal_is_whole(killed: Path, has_index: bool) -> None:
    if not has_index:
        killed.with_name(killed.name + "-shm").unlink()
    before = sums(killed)
    assert len(read_events(killed)) == 20
    assert sums(killed) == before
    store = SqliteStore(killed)
    assert len(store.load().events) == 20
    store.close()


@pytest.mark.parametrize("at", [0, 9, 17, 32 + 16, 32 + 100, 32 + 7 * _FRAME_BYTES + 8, -1])
def test_a_damaged_log_is_refused_as_it_is(killed: Path, at: int) -> None:
    flip(log_of(killed), at)
    before = sums(killed)
    with pytest.raises(JournalError, match=r"of its log|its log has"):
        SqliteStore(killed)
    assert sums(killed) == before


def test_a_log_damaged_below_its_last_write_tells_the_reader_too(killed: Path) -> None:
    flip(log_of(killed), 32 + 3 * _FRAME_BYTES + 50)
    before = sums(killed)
    with pytest.raises(JournalError, match="frame 4 of its log is damaged"):
        read_events(killed)
    assert sums(killed) == before


def test_the_torn_end_of_a_log_after_a_power_cut_is_left_out(killed: Path) -> None:
    killed.with_name(killed.name + "-shm").unlink()
    flip(log_of(killed), -1)
    store = SqliteStore(killed)
    assert len(store.load().events) == 19
    store.append([WokeUp(at_s=19.0)])
    assert store.seq == 20
    store.close()


def test_a_newer_journal_with_a_log_is_refused_as_it_is(killed: Path) -> None:
    script = (
        "import os, signal, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1])\n"
        "db.execute('PRAGMA user_version = 99')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(killed)], check=False)
    before = sums(killed)
    assert len(before) == 3
    for read in (SqliteStore, read_events):
        with pytest.raises(JournalError, match="version 99"):
            read(killed)
        assert sums(killed) == before


def test_a_log_without_its_journal_is_no_place_to_start_anew(killed: Path) -> None:
    killed.unlink()
    before = sums(killed)
    for read in (SqliteStore, read_events):
        with pytest.raises(JournalError, match=r"is gone, but its journal\.sqlite-wal is there"):
            read(killed)
    assert sums(killed) == before


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_could_not_be_read_back_is_not_written(
    path: Path, journal: SqliteStore, value: float
) -> None:
    with pytest.raises(InvariantError, match="could not give this event back"):
        journal.append([WokeUp(at_s=10.0), CheckpointSaved(at_s=1.0, job_id="j", samples=value)])
    assert journal.seq == len(read_events(path)) == 10


def test_a_locked_journal_is_told_from_a_full_disk(path: Path, journal: SqliteStore) -> None:
    journal._db.execute("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalWriteError, match="another program has locked it") as caught:
        journal.append([WokeUp(at_s=10.0)])
    assert "room" not in str(caught.value)
    other.close()
    journal.append([WokeUp(at_s=10.0)])
    assert journal.seq == 11
