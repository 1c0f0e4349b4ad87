from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest
import zstandard

from malletrain.errors import TraceError, UsageError
from malletrain.traces.files import named_path, open_lines

TEXT = "".join(f"line {number}\n" for number in range(20_000)).encode()


def read(path: Path) -> list[str]:
    with open_lines(path) as lines:
        return list(lines)


def zst_frames(data: bytes) -> bytes:
    half = len(data) // 2
    compress = zstandard.ZstdCompressor().compress
    return compress(data[:half]) + compress(data[half:])


@pytest.mark.parametrize("packed", [TEXT, gzip.compress(TEXT), zst_frames(TEXT)])
def test_a_file_is_known_by_its_first_bytes_not_its_name(tmp_path: Path, packed: bytes) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(packed)
    assert "".join(read(path)).encode() == TEXT


def test_looking_at_the_first_line_does_not_take_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xef\xbb\xbf\n  first \nsecond")
    with open_lines(path) as lines:
        assert lines.first() == "first"
        assert list(lines) == ["\n", "  first \n", "second"]
        assert lines.is_unended


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (gzip.compress(TEXT)[:-20], "it ends in the middle: the file was not copied"),
        (gzip.compress(TEXT)[:200] + b"\0" * 50, "it cannot be read further"),
        (zst_frames(TEXT)[:-20], "it ends in the middle: the file was not copied"),
        (zst_frames(TEXT) + b"garbage" * 9, "it cannot be read further"),
        (b"one\ntwo\nn\xe4me\n", "line 3: it is not UTF-8 text; iconv"),
        (b"one\nt\0wo\n", "line 2: it is no text"),
        (b"x" * (1 << 21), "line 1: it is longer than 1,048,576 bytes"),
        (b"\xfd7zXZ\0" + b"x" * 99, "it is packed by xz: unpack it, or pack it by gzip or zstd"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, content: bytes, error: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read(path)
    assert str(caught.value).startswith("log, line ")
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.csv: No such file"):
        read(tmp_path / "nowhere.csv")


def test_without_the_library_a_zst_file_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.zst"
    path.write_bytes(zst_frames(TEXT))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(TraceError, match=r"pip install 'malletrain\[replay\]'"):
        read(path)


@pytest.mark.parametrize("name", ["~nobody-of-this-name/log", "a\0b"])
def test_a_name_that_no_file_can_have_is_one_line(name: str) -> None:
    with pytest.raises(UsageError):
        named_path(name)
