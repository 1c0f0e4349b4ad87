"""Everything at once: real jobs, while workers, agents and the controller die at drawn moments."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.site import Site
from tests.leftovers import wait_until
from tests.train.outcome import assert_as_undisturbed
from tests.train.script import Config

#: A longer campaign: MALLETRAIN_CHAOS_SEEDS="0 1 2 3 ..." ./run test tests/e2e
SEEDS = [int(seed) for seed in os.environ.get("MALLETRAIN_CHAOS_SEEDS", "1").split()]
DISTURBANCES = int(os.environ.get("MALLETRAIN_CHAOS_LENGTH", "8"))

pytestmark = [pytest.mark.train, pytest.mark.timeout(400)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, nodes=3)
    yield site
    site.down()


def make_config(directory: Path, **more: object) -> Config:
    directory.mkdir()
    return Config(directory=str(directory), step_s=0.02, epochs=40, **more)  # type: ignore[arg-type]


class Chaos:
    """Draws what to do to the site next."""

    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._draw = random.Random(seed)
        self.done: list[str] = []

    def strike(self) -> None:
        what = self._draw.choice(
            ["worker", "agent", "controller", "leave", "abrupt", "join", "empty"]
        )
        self.done.append(what)
        nodes = self._site.nodes()
        if what == "controller":
            self._site.kill_controller()
            self._site.up()
        elif what == "join" or not nodes:
            self._site.add(self._draw.randint(1, 2))
        elif what == "empty":
            for node_id in nodes:
                self._site.remove(node_id)
            self._site.add(2)
        else:
            self._strike_node(what, self._draw.choice(nodes))
            if len(nodes) < 3:
                self._site.add(1)

    def _strike_node(self, what: str, node_id: str) -> None:
        if what == "worker":
            for worker in self._site.workers(node_id):
                worker.kill()
        elif what == "agent":
            self._site.agent(node_id).kill()
        else:
            self._site.remove(node_id, is_abrupt=what == "abrupt")


@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_end_as_if_undisturbed_whatever_dies(site: Site, seed: int, tmp_path: Path) -> None:
    configs = {
        "plain": make_config(tmp_path / "plain"),
        "adam": make_config(tmp_path / "adam", optimizer="adam", schedule=True),
    }
    for name, config in configs.items():
        site.submit(name, config, most=3)
    chaos = Chaos(site, seed)
    for _ in range(DISTURBANCES):
        for name in configs:
            site.await_progress(name)
        chaos.strike()
    for config in configs.values():
        config.hurry()
    for name, config in configs.items():
        job = site.await_end(name)
        assert job.phase == "finished", (chaos.done, site.describe(name))
        site.assert_exactly_once(name, config)
        assert_as_undisturbed(config)


def test_workers_train_on_while_the_controller_is_away(site: Site, tmp_path: Path) -> None:
    config = make_config(tmp_path / "plain")
    site.submit("plain", config, most=3)
    site.await_progress("plain")
    before = site.job("plain")
    site.kill_controller()
    # Nothing but training goes on: the audit files grow.
    size = sum(path.stat().st_size for path in site.audit_dir.iterdir())
    wait_until(
        lambda: sum(path.stat().st_size for path in site.audit_dir.iterdir()) > 2 * size,
        lambda: "training stopped with the controller",
        60.0,
    )
    site.up()
    after = site.job("plain")
    # The same generation on the same nodes: nobody noticed.
    assert (after.generation, after.nodes) == (before.generation, before.nodes)
    config.hurry()
    assert site.await_end("plain").phase == "finished"
    finding = site.assert_exactly_once("plain", config)
    assert finding.void_steps == 0
    assert_as_undisturbed(config)


def test_suspend_and_resume_go_through_a_checkpoint(site: Site, tmp_path: Path) -> None:
    config = make_config(tmp_path / "plain")
    site.submit("plain", config, most=2)
    site.await_progress("plain")
    with site.client() as client:
        client.order("plain", "suspend")
    wait_until(lambda: not site.job("plain").nodes, lambda: site.describe("plain"), 60.0)
    assert site.job("plain").phase == "suspended"
    with site.client() as client:
        client.order("plain", "resume")
    config.hurry()
    assert site.await_end("plain").phase == "finished"
    site.assert_exactly_once("plain", config)
    assert_as_undisturbed(config)


def test_a_restarted_installation_goes_on_from_saved_state(site: Site, tmp_path: Path) -> None:
    config = make_config(tmp_path / "plain")
    site.submit("plain", config, most=2)
    site.await_progress("plain")
    done = site.job("plain").done_samples
    site.down()
    site.up()
    config.hurry()
    assert site.job("plain").done_samples >= done
    assert site.await_end("plain").phase == "finished"
    site.assert_exactly_once("plain", config)
    assert_as_undisturbed(config)


def test_ending_right_after_a_restart_loses_nothing(site: Site, tmp_path: Path) -> None:
    config = make_config(tmp_path / "plain")
    site.submit("plain", config, most=2)
    site.await_progress("plain")
    before = site.job("plain")
    site.kill_controller()
    site.up()
    # Its agents have not come back yet.
    site.down()
    site.up()
    after = site.job("plain")
    assert after.done_samples >= before.done_samples
    config.hurry()
    assert site.await_end("plain").phase == "finished"
    finding = site.assert_exactly_once("plain", config)
    # Nothing was trained that did not count: the state was saved where training stopped.
    assert finding.void_steps == 0
    assert_as_undisturbed(config)
