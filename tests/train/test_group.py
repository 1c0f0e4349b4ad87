from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from malletrain.train import group as group_module
from malletrain.train.group import Group, GroupLostError, Rendezvous

pytestmark = pytest.mark.train
ROOT = Path(__file__).parents[2]
#: More than the kernel keeps for a receiver that does not read.
ELEMENTS = 32 << 20
#: What connecting takes; all else that a peer sends is an operation of a collective.
GREETING_BYTES = 16
#: Of `tcpi_bytes_received` in Linux's `struct tcp_info`.
RECEIVED_OFFSET = 128

PEER = f"""
import sys
import torch
from tests.train.test_group import build

group = build(sys.argv[1], 1)
group.wait([group.broadcast(torch.zeros({ELEMENTS}), 0)])
"""


def build(store: str, rank: int) -> Group:
    # Much longer than the test takes: what waits for the timeout fails it.
    device = torch.device("cpu")
    return Group.build(Rendezvous(dist.FileStore(store, 2), rank, 2, device, timeout_s=60.0))


def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        threading.Event().wait(0.01)


def received_bytes(descriptor: int) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (received,) = struct.unpack_from("Q", info, RECEIVED_OFFSET)
    return int(received)


def unsent_bytes(descriptor: int) -> int:
    (unsent,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    return int(unsent)


@pytest.fixture
def group_with_stopped_peer(tmp_path: Path) -> Iterator[Group]:
    """A group whose other member asked for a broadcast, and reads none of it."""
    store = str(tmp_path / "store")
    with subprocess.Popen([sys.executable, "-c", PEER, store], cwd=ROOT) as peer:
        try:
            group = build(store, 0)
            ((connection, _),) = group._sockets
            until(lambda: received_bytes(connection) > GREETING_BYTES)
            peer.send_signal(signal.SIGSTOP)
            os.waitpid(peer.pid, os.WUNTRACED)
            yield group
        finally:
            peer.kill()


def test_a_cut_frees_whoever_waits_even_where_gloo_does_not(
    group_with_stopped_peer: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "_LET_GO_S", 0.1)
    group = group_with_stopped_peer
    ((connection, _),) = group._sockets
    pending = group.broadcast(torch.ones(ELEMENTS), 0)
    # Begun, and never to be ended: of such an operation gloo tells nobody that it failed.
    until(lambda: unsent_bytes(connection) > 0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(group.wait, [pending])
        group.cut()
        with pytest.raises(GroupLostError, match="the process group was cut"):
            waiting.result()
    group.release()
    assert group.is_stuck


def test_a_group_that_fails_as_it_should_is_not_stuck(
    group_with_stopped_peer: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "_LET_GO_S", 60.0)
    group = group_with_stopped_peer
    # Nobody sends it, and nothing of it was read.
    pending = group.broadcast(torch.ones(1), 1)
    group.cut()
    with pytest.raises(GroupLostError):
        group.wait([pending])
    del pending
    group.release()
    assert not group.is_stuck
