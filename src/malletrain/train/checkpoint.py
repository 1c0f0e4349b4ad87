"""Durable checkpoints: written aside, checked, renamed; the last few kept; the newest good loaded.

The tensors are in PyTorch's distributed-checkpoint format, so that its tools read them. A
checkpoint is a directory `g<generation>-s<step>`: the generation comes first, because a worker
that was left behind by its job may have come further in an older one, and must not win.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from malletrain.errors import MalleTrainError
from malletrain.train.state import Snapshot, names_of

_NAME = re.compile(r"g(\d{8})-s(\d{12})$")
_MANIFEST = "malletrain.json"
_HEADER_KEY = "header"
_CHUNK_BYTES = 1 << 20


class CheckpointError(MalleTrainError):
    """A checkpoint could not be written or is damaged."""


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """Where in the job's life a checkpoint was taken; the greatest is the newest."""

    generation: int
    step: int

    @property
    def name(self) -> str:
        return f"g{self.generation:08d}-s{self.step:012d}"


class _Manifest(msgspec.Struct, frozen=True):
    """Written last: a directory without one, or whose files differ from it, does not count."""

    #: File name -> size and CRC-32.
    files: dict[str, tuple[int, int]]


class Checkpoints:
    """A job's checkpoint directory.

    Args:
        directory: may not exist yet.
        kept: this many of the newest are left in place.
        writer: writes named tensors into a directory and syncs them.
    """

    def __init__(
        self,
        directory: Path,
        kept: int,
        writer: Callable[[dict[str, Any], Path], None] | None = None,
    ) -> None:
        self._directory = directory
        self._kept = max(1, kept)
        self._writer = writer or _write_tensors

    def save(self, snapshot: Snapshot, mark: Mark) -> Path:
        """Write a checkpoint; it exists completely or not at all.

        Raises:
            CheckpointError: with the reason, and which one is the newest now.
        """
        target = self._directory / mark.name
        aside = self._directory / f".{mark.name}.{os.getpid()}"
        try:
            self._write(snapshot, aside)
            self._put_in_place(aside, target)
        except Exception as error:
            raise CheckpointError(self._explain(error, mark)) from error
        finally:
            # After a failure, too: on a full disk they are what the next one has no room for.
            self._clear(aside)
            self._clear_leftovers(mark)
        self._prune()
        return target

    def _write(self, snapshot: Snapshot, aside: Path) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._clear(aside)
        self._writer(_tensors_by_name(snapshot), aside)
        _write_manifest(aside)

    def _put_in_place(self, aside: Path, target: Path) -> None:
        try:
            aside.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # The same step of the same generation: another member was told to save it, too.
            self._clear(aside)
        _sync_directory(self._directory)

    def _prune(self) -> None:
        for mark in self.marks()[self._kept :]:
            self._clear(self._directory / mark.name)

    def _clear_leftovers(self, newest: Mark) -> None:
        for entry in self._directory.glob(".g*-s*"):
            # Left by a worker that ended while it wrote.
            if entry.name[1:] < newest.name:
                self._clear(entry)

    def _explain(self, error: Exception, mark: Mark) -> str:
        marks = self.marks()
        good = f"the last good one is {marks[0].name}" if marks else "there is none before it"
        return (
            f"cannot write a checkpoint of step {mark.step} in {self._directory}: "
            f"{_reason(error)}; {good}"
        )

    @staticmethod
    def _clear(path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def marks(self) -> list[Mark]:
        """Return what is there, the newest first."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = [_NAME.match(entry.name) for entry in self._directory.iterdir()]
            return sorted((Mark(int(m[1]), int(m[2])) for m in found if m), reverse=True)
        return []

    def load(self, note: Callable[[str], None]) -> Snapshot | None:
        """Return the newest good checkpoint; damaged ones are noted and passed over."""
        for mark in self.marks():
            path = self._directory / mark.name
            try:
                return _read(path)
            except CheckpointError as error:
                note(f"checkpoint {path} is damaged, an older one is used if there is one: {error}")
        return None


class BackgroundSaver:
    """Write checkpoints one at a time in a thread, so that training goes on."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        on_saved: Callable[[Mark, int, Path], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._checkpoints = checkpoints
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._running: Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self._running is not None and not self._running.done()

    def begin(self, snapshot: Snapshot, mark: Mark, samples: int) -> None:
        """Start writing; the caller made sure that nothing is being written."""
        done: Future[None] = Future()
        self._running = done

        def work() -> None:
            try:
                self.save(snapshot, mark, samples)
            finally:
                done.set_result(None)

        thread = threading.Thread(target=work, name="malletrain-checkpoint", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The machine has no room for a thread now; it may have by the next checkpoint.
            done.set_result(None)
            self._on_failed(f"cannot begin a checkpoint of step {mark.step}: {error}")

    def save(self, snapshot: Snapshot, mark: Mark, samples: int) -> None:
        """Write now, and tell how it went."""
        try:
            path = self._checkpoints.save(snapshot, mark)
        except CheckpointError as error:
            self._on_failed(str(error))
        else:
            self._on_saved(mark, samples, path)

    def finish(self) -> None:
        """Wait until nothing is being written."""
        if self._running is not None:
            self._running.result()


def _reason(error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
            return "no space left on the device: free some or move the state directory"
        cause = cause.__cause__ or cause.__context__
    return next(iter(str(error).splitlines()), type(error).__name__)


def _tensors_by_name(snapshot: Snapshot) -> dict[str, Any]:
    names = names_of(snapshot.header)
    header = torch.frombuffer(bytearray(snapshot.header), dtype=torch.uint8)
    return {_HEADER_KEY: header, **dict(zip(names, snapshot.tensors, strict=True))}


def _write_tensors(tensors: dict[str, Any], path: Path) -> None:
    writer = FileSystemWriter(path, sync_files=True)
    with _torch_format():
        save(tensors, storage_writer=writer, no_dist=True)


@contextlib.contextmanager
def _torch_format() -> Iterator[None]:
    """Use torch's format in one process, without its warning: all hold the same state.

    Raises:
        CheckpointError: in place of torch's own error, which is no `Exception` and would pass
            every handler of failures.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            yield
        except CheckpointException as error:
            cause, _ = next(iter(error.failures.values()))
            raise CheckpointError(str(cause) or type(cause).__name__) from cause


def _write_manifest(path: Path) -> None:
    files = {file.name: _fingerprint(file) for file in path.iterdir()}
    with (path / _MANIFEST).open("wb") as file:
        file.write(msgspec.json.encode(_Manifest(files)))
        file.flush()
        os.fsync(file.fileno())
    _sync_directory(path)


def _fingerprint(path: Path) -> tuple[int, int]:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return path.stat().st_size, checksum


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> Snapshot:
    _check_files(path)
    try:
        tensors = _read_tensors(path)
    except OSError as error:
        # Gone since it was checked: a member that trains on has pruned it.
        raise CheckpointError(str(error)) from error
    header = tensors[_HEADER_KEY].numpy().tobytes()
    return Snapshot(header, tuple(tensors[name] for name in names_of(header)))


def _read_tensors(path: Path) -> dict[str, Tensor]:
    reader = FileSystemReader(path)
    described = reader.read_metadata().state_dict_metadata
    tensors: dict[str, Tensor] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in described.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with _torch_format():
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def _check_files(path: Path) -> None:
    try:
        manifest = msgspec.json.decode((path / _MANIFEST).read_bytes(), type=_Manifest)
        for name, expected in manifest.files.items():
            if _fingerprint(path / name) != expected:
                raise CheckpointError(f"{name} is not as it was written")
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(str(error)) from error
