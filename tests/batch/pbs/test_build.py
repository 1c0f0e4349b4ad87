from __future__ import annotations

from pathlib import Path

from malletrain.batch.pbs import build
from malletrain.config import PbsSettings

LOGS = Path("/home/ada/state/pilots")


def options_of(command: tuple[str, ...]) -> list[tuple[str, str]]:
    program, in_front, *words = command
    # No process of qsub's stays behind.
    assert (program, in_front) == ("qsub", "-f")
    return list(zip(words[::2], words[1::2], strict=True))


def test_pilots_are_whole_nodes_behind_everybody_else() -> None:
    command = build.submit(8, 600, "malle-1", LOGS, PbsSettings(), keep_env=())
    assert options_of(command) == [
        ("-N", "malle-1"),
        ("-S", "/bin/sh"),
        ("-p", "-1024"),
        ("-l", "select=1"),
        ("-l", "place=excl"),
        ("-l", "walltime=600"),
        # PBS refuses arrays that must not be run again, and does not requeue such jobs for others.
        ("-r", "y"),
        ("-J", "0-7"),
        ("-c", "n"),
        ("-m", "n"),
        ("-j", "oe"),
        ("-o", "/home/ada/state/pilots/"),
    ]


def test_one_pilot_is_no_array() -> None:
    # PBS refuses an array of one member.
    options = options_of(build.submit(1, 600, "malle-1", LOGS, PbsSettings(), keep_env=()))
    assert "-J" not in dict(options)
    assert ("-r", "y") in options


def test_settings_are_passed_on_and_the_site_has_the_last_word() -> None:
    settings = PbsSettings(
        queue="scavenge",
        project="climate",
        select="1:ngpus=4",
        place="exclhost",
        qsub_options=("-W", "umask=022"),
    )
    command = build.submit(2, 60, "malle-1", LOGS, settings, keep_env=("LANG", "CUDA_HOME"))
    options = options_of(command)
    for option in (
        ("-q", "scavenge"),
        ("-P", "climate"),
        ("-v", "LANG,CUDA_HOME"),
        ("-l", "select=1:ngpus=4"),
        ("-l", "place=exclhost"),
    ):
        assert option in options
    assert options[-1] == ("-W", "umask=022")


def test_members_of_arrays_are_cancelled_one_by_one() -> None:
    assert build.cancel(["12[0].pbs01", "13.pbs01"]) == ("qdel", "12[0].pbs01", "13.pbs01")
