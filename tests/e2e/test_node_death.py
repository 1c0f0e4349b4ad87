"""A node that dies without a word, in a real installation that would wait for it for ever."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.batch.local_host import read_host_file
from malletrain.core.events import NodesLost
from malletrain.live.store import read_events
from tests.e2e.site import Site
from tests.leftovers import wait_until

pytestmark = pytest.mark.train

#: Far above the test's patience: only the batch system's word can make the node a lost one.
SETTINGS = """
[live]
agent_away_limit_s = 3600.0
agent_closed_limit_s = 3600.0
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, nodes=2, settings=SETTINGS)
    yield site
    site.down()


def test_the_batch_system_tells_of_a_killed_node(site: Site) -> None:
    wait_until(lambda: len(site.nodes()) == 2, lambda: str(site.nodes()), 60.0)
    killed, other = site.nodes()
    os.killpg(site.agent(killed).pid, signal.SIGKILL)
    wait_until(lambda: _lost(site) == [killed], lambda: f"lost: {_lost(site)}", 60.0)
    wait_until(lambda: site.nodes() == [other], lambda: str(site.nodes()))


def test_the_death_of_the_host_is_told_at_once_with_what_to_do(site: Site) -> None:
    wait_until(lambda: len(site.nodes()) == 2, lambda: str(site.nodes()), 60.0)
    host = read_host_file(site.state_dir.path / "local")
    assert host is not None
    os.kill(host.pid, signal.SIGKILL)
    wait_until(lambda: not site.nodes(), lambda: str(site.nodes()), 60.0)
    with site.client() as client:
        assert "malletrain down, then malletrain up" in client.state().trouble
    site.down()
    site.up()
    wait_until(lambda: len(site.nodes()) == 2, lambda: str(site.nodes()), 60.0)
    with site.client() as client:
        assert client.state().trouble == ""


def _lost(site: Site) -> list[str]:
    events = read_events(site.state_dir.journal_path)
    return [n for event in events if isinstance(event, NodesLost) for n in event.node_ids]
