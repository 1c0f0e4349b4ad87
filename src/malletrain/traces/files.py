"""Lines of a text file that may be compressed; whatever is wrong with the file is said in one line.

How it is compressed is seen by its first bytes, not by its name.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from malletrain.errors import TraceError, UsageError
from malletrain.traces.tally import Tally

_Record = TypeVar("_Record")
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
#: A file without line ends is no log; it would be read into memory as one line.
_MAX_LINE_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 16
#: Compressed or packed in ways that are not read here.
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"\x04\x22\x4d\x18": "lz4"}
_MOST_SHOWN = 60
_CUT = "it ends in the middle: the file was not copied or compressed to its end"


class UnreadableError(TraceError):
    """The file is no readable text; the message names the file and the line already."""


class Lines:
    """The lines of a file, and where one is in it."""

    def __init__(self, source: str, buffer: io.BufferedReader) -> None:
        self.source = source
        #: Of the line given last; the first is 1.
        self.number = 0
        #: The line given last has no line end: it is the file's last, and perhaps not whole.
        self.is_unended = False
        self._buffer = buffer

    def first(self) -> str:
        """Return the first line that is not blank without taking it, "" where there is none."""
        with self._readable():
            head = self._buffer.peek(_BUFFER_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
        first, *_ = head.splitlines() or [b""]
        return first.decode(errors="replace").strip()

    def __iter__(self) -> Iterator[str]:
        with self._readable():
            for raw in iter(lambda: self._buffer.readline(_MAX_LINE_BYTES), b""):
                self.number += 1
                line = raw.decode("utf-8-sig" if self.number == 1 else "utf-8")
                self.is_unended = raw[-1] != 0x0A
                if "\0" in line:
                    raise self._error("it is no text")
                if self.is_unended and len(raw) == _MAX_LINE_BYTES:
                    raise self._error(f"it is longer than {_MAX_LINE_BYTES:,} bytes: no log's")
                yield line

    def rest(self) -> bytes:
        """Return all that is left, for formats that are no lines."""
        with self._readable():
            return self._buffer.read()

    def error(self, message: object) -> TraceError:
        """Return the error of the line given last."""
        return TraceError(f"{self.source}, line {max(self.number, 1)}: {message}")

    def _error(self, message: object) -> UnreadableError:
        return UnreadableError(f"{self.source}, line {max(self.number, 1)}: {message}")

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:
            advice = "it is not UTF-8 text; iconv -f latin1 -t utf-8 may mend it"
            raise self._error(advice) from error
        except EOFError as error:
            raise self._error(_CUT) from error
        except (OSError, zlib.error) as error:
            raise self._error(f"it cannot be read further: {error}") from error


@contextmanager
def open_lines(path: Path) -> Iterator[Lines]:
    """Open a file that is plain text, or compressed by gzip or zstd.

    Raises:
        UnreadableError: there is no such file, or it cannot be read.
    """
    try:
        raw = path.open("rb")
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}") from error
    with raw:
        try:
            magic = raw.peek(4)[:4]
        except OSError as error:
            raise UnreadableError(f"{path}: {error.strerror or error}") from error
        _check_packing(path, raw)
        yield Lines(path.name, _decompressed(raw, magic))


def named_path(text: str | Path) -> Path:
    """Return the path that a user named; a leading `~` is a home.

    Raises:
        UsageError: there is no such home, or no file can have such a name.
    """
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"{text}: there is no such home directory here; write the path in full"
        ) from error
    if "\0" in str(path):
        raise UsageError(f"{quoted(str(path))} is no file's name")
    return path


def quoted(text: str) -> str:
    """Return what a log has, on one short line."""
    shown = repr(text)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN - 3]}..."


def _check_packing(path: Path, raw: io.BufferedReader) -> None:
    head = raw.peek(8)
    for magic, name in _OTHERS.items():
        if head.startswith(magic):
            raise UnreadableError(
                f"{path.name}, line 1: it is packed by {name}: unpack it, or pack it by gzip "
                "or zstd"
            )


def _decompressed(raw: io.BufferedReader, magic: bytes) -> io.BufferedReader:
    if magic.startswith(_GZIP):
        # GzipFile is a raw stream in all but its type.
        stream: Any = gzip.GzipFile(fileobj=raw)
        return io.BufferedReader(stream, _BUFFER_BYTES)
    if magic == _ZSTD:
        return io.BufferedReader(_ZstdStream(raw), _BUFFER_BYTES)
    return raw


class _ZstdStream(io.RawIOBase):
    """Decompress frames one after another; the library's own reader takes a cut frame as whole."""

    def __init__(self, raw: io.BufferedReader) -> None:
        try:
            import zstandard  # noqa: PLC0415  # an extra: only these files need it
        except ImportError as error:
            raise UnreadableError(
                "reading .zst needs zstandard: pip install 'malletrain[replay]'"
            ) from error
        self._error = zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
        self._frame = self._new_frame()
        self._is_in_frame = False
        self._raw = raw
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._ready:
            chunk = self._frame.unused_data or self._raw.read(_BUFFER_BYTES)
            if not chunk:
                if self._is_in_frame:
                    raise EOFError
                return 0
            self._ready = memoryview(self._decompress(chunk))
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _decompress(self, chunk: bytes) -> bytes:
        if self._frame.eof:
            self._frame = self._new_frame()
        try:
            data = self._frame.decompress(chunk)
        except self._error as error:
            raise OSError(str(error)) from error
        self._is_in_frame = not self._frame.eof
        return data


def without_cut_line(records: Iterable[_Record], lines: Lines, tally: Tally) -> Iterator[_Record]:
    """Leave out the file's last line if it has no line end and cannot be read: it was cut off."""
    try:
        yield from records
    except TraceError as error:
        is_cut = lines.is_unended and lines.number > 1
        if not is_cut or isinstance(error, UnreadableError):
            raise
        tally.add("a last line that was cut off, left out")
