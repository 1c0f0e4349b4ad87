from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from malletrain.cli.doctor import GIB, MIB, Facts, Finding, Verdict, diagnose
from malletrain.cli.probes import gather
from malletrain.live.state_dir import StateDir

HEALTHY = Facts(
    python=(3, 12, 1),
    torch_version="2.8.0+cu126",
    state_dir="/var/lib/malletrain",
    state_dir_problem="",
    file_system="ext4",
    token_mode=0o600,
    token_path="/var/lib/malletrain/token",
    free_disk_bytes=50 * GIB,
    port=8080,
    port_problem="",
    loopback_problem="",
    host_name="login1",
    host_name_problem="",
    open_files_limit=65_536,
    shm_free_bytes=8 * GIB,
    clock_skew_s=0.0,
    now_s=1_760_000_000.0,
    controller_url="http://127.0.0.1:4711",
    controller_problem="",
    controller_trouble="",
)


def finding(facts: Facts, check: str) -> Finding:
    return next(finding for finding in diagnose(facts) if finding.check == check)


def test_a_healthy_machine_needs_no_advice() -> None:
    findings = diagnose(HEALTHY)
    assert {finding.verdict for finding in findings} == {Verdict.OK}
    assert not any(finding.advice for finding in findings)
    assert len({finding.check for finding in findings}) == len(findings)


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "advice"),
    [
        ({"python": (3, 10, 4)}, "python", Verdict.FAIL, "3.11"),
        ({"python": (3, 14, 0)}, "python", Verdict.WARN, "tested"),
        ({"torch_version": None}, "pytorch", Verdict.WARN, "malletrain[train]"),
        ({"torch_version": "2.5.1"}, "pytorch", Verdict.FAIL, "2.6"),
        (
            {"state_dir_problem": "Permission denied"},
            "state directory",
            Verdict.FAIL,
            "--state-dir",
        ),
        ({"file_system": "nfs4"}, "file system", Verdict.FAIL, "--force"),
        ({"file_system": "tmpfs"}, "file system", Verdict.WARN, "disk"),
        ({"token_mode": 0o644}, "token", Verdict.FAIL, "chmod 600"),
        ({"free_disk_bytes": 50 * MIB}, "disk", Verdict.FAIL, "free some"),
        ({"free_disk_bytes": 1 * GIB}, "disk", Verdict.WARN, "free some"),
        ({"loopback_problem": "timed out"}, "loopback", Verdict.FAIL, "lo up"),
        ({"host_name_problem": "unknown"}, "host name", Verdict.WARN, "/etc/hosts"),
        ({"port_problem": "Address already in use"}, "port", Verdict.FAIL, "--port"),
        ({"open_files_limit": 128}, "open files", Verdict.FAIL, "ulimit -Hn"),
        ({"open_files_limit": 512}, "open files", Verdict.WARN, "ulimit -Hn"),
        ({"shm_free_bytes": None}, "shared memory", Verdict.WARN, "tmpfs"),
        ({"shm_free_bytes": 64 * MIB}, "shared memory", Verdict.WARN, "--shm-size"),
        ({"now_s": 3600.0}, "clock", Verdict.FAIL, "set the clock"),
        ({"clock_skew_s": -40.0}, "clock", Verdict.WARN, "chrony"),
        ({"controller_problem": "no answer"}, "controller", Verdict.WARN, "malletrain up"),
    ],
)
def test_each_trouble_has_its_advice(
    changes: dict[str, Any], check: str, verdict: Verdict, advice: str
) -> None:
    facts = replace(HEALTHY, **changes)
    found = finding(facts, check)
    assert found.verdict is verdict
    assert advice in found.advice
    others = [other for other in diagnose(facts) if other.check != check]
    assert {other.verdict for other in others} == {Verdict.OK}


def test_what_the_controller_complains_of_is_told_with_what_to_do() -> None:
    trouble = "the process that keeps the local nodes has ended: restart the controller"
    found = finding(replace(HEALTHY, controller_trouble=trouble), "controller")
    assert found.verdict is Verdict.FAIL
    assert found.found == trouble


def test_the_port_of_the_own_controller_is_no_trouble() -> None:
    facts = replace(HEALTHY, port=4711, port_problem="Address already in use")
    assert finding(facts, "port").verdict is Verdict.OK


def test_no_limit_on_open_files_is_fine() -> None:
    assert finding(replace(HEALTHY, open_files_limit=None), "open files").verdict is Verdict.OK


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[StateDir]:
    yield StateDir(tmp_path / "state")
    assert list(tmp_path.iterdir()) == [], "the doctor left something behind"


def test_this_machine_can_be_examined(state_dir: StateDir) -> None:
    facts = gather(state_dir, None)
    assert facts.state_dir_problem == ""
    assert facts.loopback_problem == ""
    assert facts.controller_url is None
    assert facts.token_mode is None
    assert abs(facts.clock_skew_s) < 5
    assert facts.free_disk_bytes > 0
