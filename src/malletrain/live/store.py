"""The journal: every event in order, on disk before anyone acts on it.

One SQLite file in WAL mode with full sync. A batch of events is one transaction, and so one
sync. Every so many events the state itself is kept as well, so that a restart replays only what
came after it: the last two states, and the first of each day, up to which older events can be
forgotten. Each row bears a checksum: SQLite has none, and a flipped bit in a number would
replay into a state that never was.

The file is made aside and renamed, and only read before it is known to be sound, its log and its
index as well: a damaged journal, or one of a newer version, is refused as it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from malletrain.core.events import AnyEvent
from malletrain.core.model import Cluster
from malletrain.errors import InvariantError, JournalError, JournalWriteError
from malletrain.live import wal

#: "MTJ1": tells our files from other SQLite databases.
_APPLICATION_ID = 0x4D544A31
#: Raise it whenever older code could not replay what newer code writes, or the other way round.
SCHEMA_VERSION = 1
_BUSY_TIMEOUT_S = 5.0
_SCHEMA = f"""
CREATE TABLE events (seq INTEGER PRIMARY KEY, crc INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, crc INTEGER NOT NULL, body BLOB NOT NULL);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""
_DAY_S = 86_400.0
_WRITE_TROUBLES = ("full", "disk i/o", "readonly", "unable to open")
_LOCKED = "locked"
_LOCKED_ADVICE = (
    "another program has locked it: end that program (`fuser` with the path names it), such as a "
    "sqlite3 shell or a backup"
)
#: How often a log is read that looks damaged: it may have been written to meanwhile.
_LOG_READS = 3

_encoder = msgspec.json.Encoder()
_event_decoder = msgspec.json.Decoder(AnyEvent)
_cluster_decoder = msgspec.json.Decoder(Cluster)


class _Dated(Struct):
    """Of a snapshot, only its time."""

    now_s: float


_date_decoder = msgspec.json.Decoder(_Dated)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a journal holds: a state, and the events since."""

    #: None: the events begin with the first there ever was.
    snapshot: Cluster | None
    events: tuple[AnyEvent, ...]


class EventStore(Protocol):
    """Where the controller keeps what happened. Called from one thread at a time."""

    def load(self) -> Recovered: ...

    def append(self, events: Sequence[AnyEvent]) -> None:
        """Keep them all, or none.

        Raises:
            JournalWriteError: none was kept; later it may work.
        """
        ...

    def snapshot(self, cluster: Cluster) -> None:
        """Keep the state that all events so far have led to."""
        ...

    def trim(self, before_s: float, at_most: int) -> None:
        """Forget events from before that time, the oldest first, where a kept state has them."""
        ...

    def close(self) -> None: ...


class SqliteStore:
    """The `EventStore` on disk."""

    def __init__(self, path: Path) -> None:
        """Open the journal, or make a new one.

        Raises:
            JournalError: it is damaged or of another version; it was not touched.
            JournalWriteError: there is none and it could not be made.
        """
        self.path = path
        if not path.exists():
            _make(path)
        # All that a start needs is read before anything may be written.
        _check_log(path, _content(_beside(path, "-shm")))
        with _reading(path) as db:
            self._seq = _newest_seq(db)
            _recover(db, self._seq, path)
        self._db = _connect(path, "mode=rw")
        try:
            with _write_errors(path):
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
        except BaseException:
            self._db.close()
            raise

    @property
    def seq(self) -> int:
        """The number of the newest event; they count from 1."""
        return self._seq

    def load(self) -> Recovered:
        """Read the newest sound snapshot and the events since.

        Raises:
            JournalError: an event is missing, damaged, or unknown to this version.
        """
        with _read_errors(self.path):
            return _recover(self._db, self._seq, self.path)

    def append(self, events: Sequence[AnyEvent]) -> None:
        bodies = [_body(event) for event in events]
        rows = [
            (seq, zlib.crc32(body), body) for seq, body in enumerate(bodies, start=self._seq + 1)
        ]
        with _write_errors(self.path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
        self._seq += len(rows)

    def snapshot(self, cluster: Cluster) -> None:
        body = _encoder.encode(cluster)
        row = (self._seq, zlib.crc32(body), body)
        with _write_errors(self.path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", row)
            self._thin_snapshots()

    def trim(self, before_s: float, at_most: int) -> None:
        """Forget up to so many events, as long as they are older than a kept state of that time.

        Raises:
            JournalWriteError: nothing was forgotten; later it may work.
        """
        with _write_errors(self.path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            # Should the newest be damaged, the one before needs the events since.
            rows = self._db.execute("SELECT * FROM snapshots ORDER BY seq DESC LIMIT -1 OFFSET 1")
            times = ((seq, _time_s(body, crc)) for seq, crc, body in rows)
            old = (seq for seq, at_s in times if at_s is not None and at_s <= before_s)
            if (start := next(old, None)) is None:
                return
            self._db.execute("DELETE FROM snapshots WHERE seq < ?", (start,))
            self._db.execute(
                "DELETE FROM events WHERE seq IN "
                "(SELECT seq FROM events WHERE seq <= ? ORDER BY seq LIMIT ?)",
                (start, at_most),
            )

    def close(self) -> None:
        self._db.close()

    def _thin_snapshots(self) -> None:
        """Of those that are not the last two any more, keep the first of each day.

        Two, so that little is replayed should the newest be damaged.
        """
        older = self._db.execute("SELECT * FROM snapshots ORDER BY seq DESC LIMIT 2 OFFSET 2")
        days = [(seq, _day(_time_s(body, crc))) for seq, crc, body in older]
        if days and (days[0][1] is None or days[0][1] in [day for _, day in days[1:]]):
            self._db.execute("DELETE FROM snapshots WHERE seq = ?", (days[0][0],))


def read_history(path: Path) -> Recovered:
    """Read all that a journal has, of a living controller or a dead one.

    Where its oldest events were forgotten, the history starts with the state that they led to.

    Raises:
        JournalError: there is none, or it is damaged or of another version.
    """
    if not path.exists():
        _check_alone(path)
        raise JournalError(f"there is no journal at {path}: no controller ever ran there")
    _check_log(path)
    with _reading(path) as db:
        # One view of it all, whatever is written meanwhile.
        db.execute("BEGIN")
        seq, start = _start(db, path)
        return Recovered(start, tuple(_events_after(db, seq, path)))


def read_events(path: Path) -> tuple[AnyEvent, ...]:
    """Read the events of `read_history`, for what needs no state."""
    return read_history(path).events


def _start(db: sqlite3.Connection, path: Path) -> tuple[int, Cluster | None]:
    """Return the oldest state from which all events are there, and its number."""
    (first,) = db.execute("SELECT COALESCE(MIN(seq), 1) FROM events").fetchone()
    if first == 1:
        return 0, None
    rows = db.execute("SELECT * FROM snapshots WHERE seq >= ? ORDER BY seq", (first - 1,))
    if (start := next(_sound(rows), None)) is None:
        raise JournalError(_damaged(path, f"no state is sound that led to event {first}"))
    return start


def _make(path: Path) -> None:
    _check_alone(path)
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    with _write_errors(path), contextlib.closing(sqlite3.connect(aside)) as db:
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(_SCHEMA)
    aside.chmod(0o600)
    aside.replace(path)


def _check_alone(path: Path) -> None:
    """Refuse what is left of a journal whose main file is gone."""
    for suffix in ("-wal", "-shm"):
        if (left := _beside(path, suffix)).exists():
            raise JournalError(
                f"the journal {path} is gone, but its {left.name} is there, which may hold events; "
                f"it was not touched: restore a copy of both, or name another state directory to "
                f"start anew"
            )


def _check_log(path: Path, index: bytes = b"") -> None:
    detail = ""
    for _ in range(_LOG_READS):
        detail = wal.damage(_content(_beside(path, "-wal")), index) or ""
        if not detail:
            return
    raise JournalError(_damaged(path, detail))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open and check it, changing none of its files."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_read_errors(path))
        if _beside(path, "-shm").exists():
            # A living controller's index is shared; without one, SQLite makes its own in memory.
            db = _connect(path, "mode=ro&readonly_shm=1")
        else:
            # Nobody has it open, and SQLite would make an index beside it: let it be elsewhere.
            prefix = f".{path.name}."
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix=prefix, dir=path.parent)
            )
            for own in (path, _beside(path, "-wal")):
                if own.exists():
                    _link(own, Path(folder, own.name))
            db = _connect(Path(folder, path.name), "mode=ro")
        stack.enter_context(contextlib.closing(db))
        _check_kind(db, path)
        yield db


def _link(source: Path, target: Path) -> None:
    """Give the file a second name, or copy it where a file can have but one."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # Any thread may use it, one at a time: that is up to the caller.
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _body(event: AnyEvent) -> bytes:
    """Encode it, and make sure that the next start can read it: JSON writes infinity as null."""
    body = _encoder.encode(event)
    try:
        is_same = _event_decoder.decode(body) == event
    except msgspec.DecodeError:
        is_same = False
    if not is_same:
        raise InvariantError(
            f"the journal could not give this event back, and was not given it: {event}"
        )
    return body


def _check_kind(db: sqlite3.Connection, path: Path) -> None:
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application_id != _APPLICATION_ID:
        raise JournalError(_damaged(path, "it is no journal of malletrain"))
    if version != SCHEMA_VERSION:
        whose = "a newer" if version > SCHEMA_VERSION else "an older"
        raise JournalError(
            f"the journal {path} has version {version}, of {whose} malletrain; this one reads "
            f"version {SCHEMA_VERSION}: run that one, or name another state directory"
        )


def _newest_seq(db: sqlite3.Connection) -> int:
    (seq,) = db.execute("SELECT COALESCE(MAX(seq), 0) FROM events").fetchone()
    return int(seq)


def _recover(db: sqlite3.Connection, newest: int, path: Path) -> Recovered:
    # A snapshot that is damaged, or that this version cannot read, costs time, as long as there
    # is an older one, or all events are.
    newest_first = db.execute("SELECT * FROM snapshots ORDER BY seq DESC")
    seq, snapshot = next(_sound(newest_first), (0, None))
    events = tuple(_events_after(db, seq, path))
    if seq + len(events) != newest:
        raise JournalError(_damaged(path, f"the snapshot is of event {seq}"))
    return Recovered(snapshot, events)


def _events_after(db: sqlite3.Connection, after: int, path: Path) -> Iterator[AnyEvent]:
    expected = after
    rows = db.execute("SELECT seq, crc, body FROM events WHERE seq > ? ORDER BY seq", (after,))
    for seq, crc, body in rows:
        expected += 1
        if seq != expected:
            raise JournalError(_damaged(path, f"event {expected} is missing"))
        if not _is_sound(body, crc):
            raise JournalError(_damaged(path, f"event {seq} has a wrong checksum"))
        try:
            yield _event_decoder.decode(body)
        except msgspec.DecodeError as error:
            raise JournalError(_damaged(path, f"event {seq} is unknown here: {error}")) from error


def _sound(snapshots: Iterable[tuple[int, int, object]]) -> Iterator[tuple[int, Cluster]]:
    """Yield (number of the newest event in it, state) of those that can be read."""
    for seq, crc, body in snapshots:
        if isinstance(body, bytes) and _is_sound(body, crc):
            with contextlib.suppress(msgspec.DecodeError):
                yield seq, _cluster_decoder.decode(body)


def _time_s(body: object, crc: int) -> float | None:
    """Return the time of a snapshot; None where it cannot be read."""
    if not isinstance(body, bytes) or not _is_sound(body, crc):
        return None
    try:
        return _date_decoder.decode(body).now_s
    except msgspec.DecodeError:
        return None


def _day(time_s: float | None) -> float | None:
    return None if time_s is None else time_s // _DAY_S


def _is_sound(body: object, crc: int) -> bool:
    return isinstance(body, bytes) and zlib.crc32(body) == crc


def _damaged(path: Path, detail: str) -> str:
    return (
        f"the journal {path} is damaged: {detail}; it was not touched: "
        f"restore a copy, or name another state directory to start anew"
    )


@contextlib.contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if _LOCKED in str(error).lower():
            raise JournalError(f"cannot read the journal {path}: {_LOCKED_ADVICE}") from error
        raise JournalError(_damaged(path, str(error))) from error


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Tell a full disk or a lock, which passes, from a damaged journal, which does not."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if _LOCKED in str(error).lower():
            raise JournalWriteError(
                f"cannot write the journal {path}: {_LOCKED_ADVICE}; nothing is lost, and training "
                f"goes on meanwhile"
            ) from error
        if any(trouble in str(error).lower() for trouble in _WRITE_TROUBLES):
            raise JournalWriteError(
                f"cannot write the journal {path}: {error}; make room on its disk: nothing is "
                f"lost, and training goes on meanwhile"
            ) from error
        raise JournalError(_damaged(path, str(error))) from error
