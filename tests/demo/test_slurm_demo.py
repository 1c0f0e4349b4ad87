from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from malletrain.config import parse
from malletrain.core.ledger import NodeSeconds
from malletrain.devcluster import DevCluster, programs
from malletrain.devcluster.rendering import Site
from malletrain.impact.stays import Held
from slurm_demo import __main__, checks
from slurm_demo.__main__ import CONFIG, SETTINGS
from slurm_demo.others import ARRIVALS, RESERVATION, Arrival, MainJob, Others, most_at_once

SITE = Site(
    directory=Path("/nowhere"),
    user="nobody",
    host="nowhere",
    is_loopback_only=True,
    controller_port=1,
    node_port=2,
    accounting_port=3,
)


def ended(tmp_path: Path, waited_s: float, arrival: Arrival) -> MainJob:
    record = tmp_path / f"{arrival.at_s}"
    job = MainJob(arrival, record, submitted_at_s=100.0)
    began_at_s = 100.0 + waited_s
    record.write_text(f"{began_at_s} nd[01-{arrival.nodes:02}]\n{began_at_s + arrival.seconds}\n")
    job.look()
    return job


def others(tmp_path: Path, waits_s: list[float]) -> Others:
    arrivals = [Arrival(float(k), nodes=2, seconds=10.0) for k in range(len(waits_s))]
    there = Others(DevCluster(SETTINGS, SITE), tmp_path, arrivals, began_at_s=100.0)
    there.jobs = [ended(tmp_path, w, a) for w, a in zip(waits_s, arrivals, strict=True)]
    there.reserved_s = (110.0, 120.0)
    return there


def test_main_jobs_would_never_wait_for_each_other() -> None:
    assert most_at_once(ARRIVALS, RESERVATION, slack_s=1.5) == SETTINGS.nodes
    reserved = next(arrival for arrival in ARRIVALS if arrival.is_in_reservation)
    assert RESERVATION.from_s < reserved.at_s
    assert reserved.at_s + reserved.seconds < RESERVATION.to_s
    assert reserved.nodes == len(RESERVATION.nodes)


def test_a_main_jobs_own_record_is_read_as_it_grows(tmp_path: Path) -> None:
    job = MainJob(Arrival(0.0, nodes=3, seconds=5.0), tmp_path / "record", submitted_at_s=100.0)
    job.look()
    assert not job.is_running
    job.record.write_text("100.5 nd[01-02,07]\n105.")
    job.look()
    assert job.is_running
    assert (job.waited_s, job.hosts) == (0.5, ("nd01", "nd02", "nd07"))
    job.record.write_text("100.5 nd[01-02,07]\n105.5\n")
    job.look()
    assert job.ended_at_s == 105.5


def test_waits_are_held_against_those_on_the_empty_machine(tmp_path: Path) -> None:
    check = checks.not_delayed(others(tmp_path, [0.5, 0.7, 3.4]), {2: 0.5})
    assert check.holds
    assert "0.20 s in the middle and 2.90 s at most" in check.found
    assert not checks.not_delayed(others(tmp_path, [0.5, 0.7, 3.6]), {2: 0.5}).holds
    unfinished = others(tmp_path, [0.5])
    unfinished.jobs[0].ended_at_s = None
    assert checks.not_delayed(unfinished, {2: 0.5}).found == "0 of 1 main jobs ran to their end"


@pytest.mark.parametrize(("training_s", "holds"), [(41.0, True), (39.0, False)])
def test_training_is_held_against_what_others_left(
    tmp_path: Path, training_s: float, holds: bool
) -> None:
    # 8 nodes for 20 s, less two nodes for 10 s twice: two jobs of 10 s or a reservation of 10 s.
    there = others(tmp_path, [0.5])
    held = Held(100.0, 120.0, (), NodeSeconds(training=training_s))
    check = checks.harvested(held, there)
    assert "of 120 node-seconds that others left idle" in check.found
    assert check.holds is holds


def test_any_word_of_a_drained_node_fails() -> None:
    assert checks.none_drained("", {"nd01": "idle"}).holds
    assert not checks.none_drained("Kill task failed root nd01", {"nd01": "idle"}).holds
    assert checks.none_drained("", {"nd01": "drained"}).found == "nd01 is drained"


def test_a_machine_without_slurm_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["slurm_demo"])
    monkeypatch.setattr(programs, "_PATH", "/nowhere")
    assert __main__.main() == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "apt-get install slurmctld slurmd slurm-client munge" in told


def test_its_configuration_is_one() -> None:
    config = parse(CONFIG.read_text())
    assert config.slurm.partition == "scavenge"
    assert config.scavenge.max_nodes == SETTINGS.nodes
