"""Whether a SQLite write-ahead log lost committed transactions, found by reading it alone.

SQLite reads a log up to the first frame with a wrong checksum and forgets the rest: right after a
power cut, which tears what was being written, but a flipped bit further up takes with it what had
been on disk for good. Format: https://www.sqlite.org/walformat.html and fileformat2.html, section
4 ("The Write-Ahead Log").
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_MAGIC = 0x377F0682
_HEADER = struct.Struct(">8I")
#: Page number, pages after the commit (0: not the last of its transaction), salts, checksums.
_FRAME = struct.Struct(">6I")
_MASK = 0xFFFFFFFF
#: Of the shared index: where its count of frames is, and the salts of the log it is of.
_INDEX_FRAMES_AT, _INDEX_SALTS = 16, slice(32, 40)


@dataclass(frozen=True, slots=True)
class _Frame:
    pages_after_commit: int
    salts: tuple[int, int]
    sums: tuple[int, int]
    content: bytes


class _Log:
    """A log's header, and its frames by number from 0."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        magic, _, page_bytes, _, *rest = _HEADER.unpack_from(content)
        self.salts = (rest[0], rest[1])
        self.sums = (rest[2], rest[3])
        self._order = ">" if magic & 1 else "<"
        self.is_sound = (
            magic & ~1 == _MAGIC and self._sum((0, 0), content[: _HEADER.size - 8]) == self.sums
        )
        self._frame_bytes = _FRAME.size + page_bytes
        self.frames = (len(content) - _HEADER.size) // self._frame_bytes

    def frame(self, number: int) -> _Frame:
        start = _HEADER.size + number * self._frame_bytes
        _, commit, salt1, salt2, sum1, sum2 = _FRAME.unpack_from(self._content, start)
        body = self._content[start + _FRAME.size : start + self._frame_bytes]
        return _Frame(commit, (salt1, salt2), (sum1, sum2), self._content[start : start + 8] + body)

    def follows(self, frame: _Frame, sums: tuple[int, int]) -> bool:
        """Whether the frame is sound, and was written after one with these checksums."""
        return frame.salts == self.salts and self._sum(sums, frame.content) == frame.sums

    def _sum(self, sums: tuple[int, int], content: bytes) -> tuple[int, int]:
        first, second = sums
        words = struct.unpack(f"{self._order}{len(content) // 4}I", content)
        for even, odd in zip(words[::2], words[1::2], strict=True):
            first = (first + even + second) & _MASK
            second = (second + odd + first) & _MASK
        return first, second


def damage(content: bytes, index: bytes = b"") -> str | None:
    """Return what is wrong with the log, in words; None where nothing that was committed is lost.

    With full sync a transaction is begun only when the one before is on disk. So a bad frame is
    damage, not a torn end, where a later transaction lies behind the one that it is in. In the
    last transaction only the index (`-shm`) tells: it counts what was synced, and lives until the
    machine restarts.
    """
    # One that was only given its length, or its header, holds nothing.
    if len(content) <= _HEADER.size or not any(content):
        return None
    log = _Log(content)
    if not log.is_sound:
        return "its log has a damaged header"
    sound, committed = _sound_frames(log)
    synced = _synced_frames(content, index)
    if committed < synced:
        return f"frame {sound + 1} of its log, of {synced} that were committed, is damaged"
    if _is_followed(log, sound):
        return f"frame {sound + 1} of its log is damaged, and a later transaction is behind it"
    return None


def _sound_frames(log: _Log) -> tuple[int, int]:
    """Return how many frames are sound, and up to which of them they were committed."""
    sums, committed = log.sums, 0
    for number in range(log.frames):
        frame = log.frame(number)
        if not log.follows(frame, sums):
            return number, committed
        sums = frame.sums
        if frame.pages_after_commit:
            committed = number + 1
    return log.frames, committed


def _is_followed(log: _Log, bad: int) -> bool:
    """Whether a transaction begins behind the end of the one with the bad frame.

    It must carry on that end's checksums: frames of a write that failed and was done again
    shorter may lie there, and do not.
    """
    for number in range(bad, log.frames - 1):
        end = log.frame(number)
        is_end = end.pages_after_commit and end.salts == log.salts
        if is_end and log.follows(log.frame(number + 1), end.sums):
            return True
    return False


def _synced_frames(content: bytes, index: bytes) -> int:
    """Return how many frames the index knows to be on disk; 0 if it is of another log."""
    if len(index) < _INDEX_SALTS.stop or index[_INDEX_SALTS] != content[16:24]:
        return 0
    return int(struct.unpack_from("=I", index, _INDEX_FRAMES_AT)[0])
