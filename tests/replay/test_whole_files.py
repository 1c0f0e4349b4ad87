from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.replay.whole_files import whole_file


def test_a_file_is_there_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_text("before")
    with whole_file(path) as draft:
        draft.write_text("half")
        assert path.read_text() == "before"
    assert path.read_text() == "half"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("end", [OSError, KeyboardInterrupt])
def test_what_fails_leaves_nothing_behind(tmp_path: Path, end: type[BaseException]) -> None:
    path = tmp_path / "result"
    path.write_text("before")

    def write() -> None:
        with whole_file(path) as draft:
            draft.write_text("half")
            raise end

    with pytest.raises(end):
        write()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_plain_file_is_written_itself() -> None:
    with whole_file(Path("/dev/null")) as draft:
        assert draft == Path("/dev/null")


def test_a_link_still_points_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    link = tmp_path / "link"
    link.symlink_to("file")
    with whole_file(link) as draft:
        draft.write_text("after")
    assert link.is_symlink()
    assert (tmp_path / "file").read_text() == "after"
