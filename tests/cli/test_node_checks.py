"""What a probe on a node finds, and how it is judged."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec.structs import replace

from malletrain import __version__
from malletrain.cli.doctor import Finding, Verdict
from malletrain.cli.node_checks import judge
from malletrain.config import ScavengeSettings
from malletrain.node.probe import NodeProbe

SOUND = NodeProbe(
    host="nd01",
    now_s=1000.0,
    malletrain=__version__,
    torch="2.13.0",
    route_problem="",
    files_problem="",
    scratch_problem="",
    subnet_problem="",
)


def bad(probe: NodeProbe, settings: ScavengeSettings | None = None) -> list[Finding]:
    findings = judge(probe, settings or ScavengeSettings(), now_s=1002.0)
    return [finding for finding in findings if finding.verdict is not Verdict.OK]


def test_a_sound_node_is_called_so() -> None:
    assert bad(SOUND) == []


def test_each_fault_says_what_to_do() -> None:
    faults = {
        "node malletrain": replace(SOUND, malletrain="0.0.1"),
        "node pytorch": replace(SOUND, torch=None),
        "node route": replace(SOUND, route_problem="timed out"),
        "node shared files": replace(SOUND, files_problem="/x is not there"),
        "node scratch": replace(SOUND, scratch_problem="no space left"),
        "node clock": replace(SOUND, now_s=1100.0),
    }
    for check, probe in faults.items():
        (finding,) = bad(probe)
        assert (finding.check, finding.verdict) == (check, Verdict.FAIL)
        assert finding.advice
    lost = replace(SOUND, subnet_problem="no address in it")
    (finding,) = bad(lost, ScavengeSettings(subnet="10.0.0.0/8"))
    assert finding.check == "node subnet"


def run_probe(port: int, shared: Path) -> NodeProbe:
    command = [sys.executable, "-m", "malletrain.node.probe", "--address", "127.0.0.1"]
    command += ["--port", str(port), "--shared", str(shared), "--scratch", str(shared)]
    done = subprocess.run(
        [*command, "--subnet", "127.0.0.0/8"], capture_output=True, text=True, check=True
    )
    return msgspec.json.decode(done.stdout, type=NodeProbe)


def test_the_probe_tries_what_a_pilot_needs(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        found = run_probe(port, tmp_path)
    assert (found.route_problem, found.files_problem, found.subnet_problem) == ("", "", "")
    assert found.malletrain == __version__
    found = run_probe(port, tmp_path / "nowhere")
    assert "refused" in found.route_problem
    assert "nowhere is not there" in found.files_problem
