"""What the port answers to what it should and should not be asked."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from malletrain.core.model import Node, Phase
from malletrain.errors import UserError
from malletrain.live.api import MAX_BODY_BYTES, bind
from malletrain.live.logs import PAGE_BYTES, page
from malletrain.live.requests import LogPage
from malletrain.wire import MAX_MESSAGE_BYTES, PROTOCOL, AgentHello, WorkerWarm, encode
from tests.live.rig import TOKEN, Rig, running
from tests.live.stories import run

JOB = {"name": "job", "command": ["true"], "cwd": "/", "min_nodes": 1, "max_nodes": 4}


def test_jobs_are_found_by_id_and_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            first, second = await rig.submit(name="net"), await rig.submit(name="net")
            assert first != second
            assert (await rig.http.get("/v1/jobs")).json()[0]["id"] == first
            assert (await rig.http.get(f"/v1/jobs/{first}")).json()["name"] == "net"
            assert (await rig.http.get("/v1/jobs/net")).json()["id"] == second
            await rig.http.post(f"/v1/jobs/{second}/cancel")
            assert (await rig.http.get("/v1/jobs/net")).json()["id"] == first
            explained = (await rig.http.get(f"/v1/jobs/{first}/explain")).json()
            assert "net" in explained["text"]

    run(story())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_nodes": 0}, "needs at least 1 node"),
        ({"min_nodes": 5}, "max_nodes is 4, below min_nodes 5"),
        ({"min_nodes": 9, "max_nodes": 9}, "never gives more than 8 nodes"),
        ({"max_nodes": 10**9}, "the limit is 100000"),
        ({"weight": 0}, "weight is 0"),
        ({"samples": -1}, "samples is -1"),
        ({"command": []}, "command is empty"),
        ({"command": ["a\0b"]}, "NUL"),
        ({"cwd": "here"}, "absolute path"),
        ({"env": [["A=B", "1"]]}, "env has the name"),
        ({"name": "a/b"}, "name 'a/b' cannot be"),
        ({"name": "j12"}, "looks like a job's id"),
        ({"name": ""}, "cannot be"),
        ({"colour": "blue"}, "colour"),
        ({"min_nodes": "two"}, "min_nodes"),
    ],
)
def test_a_job_that_cannot_be_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            answer = await rig.http.post("/v1/jobs", json=JOB | fields)
            assert answer.status_code == 400
            assert message in answer.json()["error"]
            assert "\n" not in answer.json()["error"]
            assert not rig.cluster.jobs
            state = (await rig.http.get("/v1/state")).json()
            # It was understood, unless the body is none at all.
            is_malformed = "colour" in fields or fields.get("min_nodes") == "two"
            assert state["counters"] == ({"malformed_requests": 1} if is_malformed else {})

    run(story())


def test_a_max_that_the_batch_system_never_gives_is_warned_of(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            answer = await rig.http.post("/v1/jobs", json=JOB | {"max_nodes": 64})
            assert answer.status_code == 201
            (warning,) = answer.json()["warnings"]
            assert "max_nodes is 64" in warning
            assert "at most 8" in warning

    run(story())


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/v1/jobs/ghost", b"", 404),
        ("POST", "/v1/jobs/ghost/cancel", b"", 404),
        ("GET", "/v1/jobs/ghost/logs", b"", 404),
        ("GET", "/v1/nothing", b"", 404),
        ("PUT", "/v1/jobs", b"{}", 405),
        ("POST", "/v1/jobs", b"{", 400),
        ("POST", "/v1/jobs", b"\xff\xfe", 400),
        ("POST", "/v1/jobs", b"[]", 400),
        ("POST", "/v1/jobs", b" " * (MAX_BODY_BYTES + 1), 413),
        ("POST", "/v1/nodes", b'{"count": 0}', 400),
        ("POST", "/v1/nodes", b'{"count": 9}', 409),
        ("DELETE", "/v1/nodes/ghost", b"", 409),
        ("DELETE", "/v1/nodes/ghost?abrupt=maybe", b"", 400),
    ],
)
def test_errors_are_one_clear_line(
    tmp_path: Path, method: str, path: str, content: bytes, status: int
) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            answer = await rig.http.request(method, path, content=content)
            assert answer.status_code == status
            assert len(answer.json()["error"].splitlines()) == 1
            assert (await rig.http.get("/v1/state")).status_code == 200

    run(story())


def test_what_does_not_fit_the_jobs_state_is_a_conflict(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            job_id = await rig.submit()
            statuses = []
            for verb in ("resume", "suspend", "suspend", "resume", "cancel", "cancel", "suspend"):
                answer = await rig.http.post(f"/v1/jobs/{job_id}/{verb}")
                statuses.append(answer.status_code)
            assert statuses == [409, 200, 409, 200, 200, 409, 409]
            assert rig.job(job_id).phase is Phase.CANCELLED

    run(story())


def test_nodes_are_asked_of_the_batch_system(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("n1"):
            await rig.until(lambda cluster: "n1" in cluster.nodes)
            assert (await rig.http.post("/v1/nodes", json={"count": 3})).status_code == 200
            assert (await rig.http.delete("/v1/nodes/n1?abrupt=true")).status_code == 200
            assert rig.batch.asked == [3, ("n1", True)]
            (node,) = (await rig.http.get("/v1/nodes")).json()
            assert (node["id"], node["state"]) == ("n1", "idle")

    run(story())


def test_without_the_token_nothing_is_answered(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
                async with httpx.AsyncClient(base_url=rig.url, headers=headers) as stranger:
                    answer = await stranger.post("/v1/shutdown")
                assert answer.status_code == 401
                assert "token" in answer.json()["error"]
            with pytest.raises(InvalidStatus, match="401"):
                await connect(rig.url.replace("http", "ws") + "/v1/agent", proxy=None)
            assert not rig.shut_down_asked.is_set()
            assert rig.controller.counters["refused_tokens"] == 4
            await rig.http.post("/v1/shutdown")
            assert rig.shut_down_asked.is_set()

    run(story())


HELLO = AgentHello(protocol=PROTOCOL, node=Node(id="n1", opened_at_s=0.0), incarnation="i", pid=1)
STRANGE = AgentHello(
    protocol=PROTOCOL + 1, node=Node(id="n1", opened_at_s=0.0), incarnation="i", pid=1
)


async def talk(connection: ClientConnection, frames: list[bytes | str]) -> None:
    """Say all that, and listen until the other side has had enough."""
    for frame in frames:
        await connection.send(frame)
    while True:
        await connection.recv()


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"\x00garbage"], "not a message"),
        (["a text"], "text frame"),
        ([encode(WorkerWarm(worker_id="w", job_id="j"))], "not AgentHello"),
        ([encode(STRANGE)], "install the same version"),
        ([encode(HELLO), encode(HELLO)], "second AgentHello"),
        ([encode(HELLO), b"\xc1"], "not a message"),
        ([b"\x00" * (MAX_MESSAGE_BYTES + 1)], ""),
    ],
)
def test_an_agent_that_talks_nonsense_is_hung_up_on(
    tmp_path: Path, frames: list[bytes | str], reason: str
) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig, rig.agent("good") as good:
            socket_ = await connect(
                rig.url.replace("http", "ws") + "/v1/agent",
                additional_headers={"Authorization": f"Bearer {TOKEN}"},
                proxy=None,
            )
            with pytest.raises(ConnectionClosed) as closed:
                await talk(socket_, frames)
            assert closed.value.rcvd is not None
            assert reason in closed.value.rcvd.reason
            assert rig.controller.counters["malformed_messages"] == 1
            assert good.connection is not None
            await rig.submit()
            await good.until(lambda agent: bool(agent.workers))

    run(story())


def test_bytes_that_are_no_http_harm_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as rig:
            port = int(rig.url.rsplit(":", 1)[1])
            malformed = (b"\x16\x03\x01\x02\x00garbage\r\n\r\n", b"GARBAGE\r\n\r\n")
            for garbage in (*malformed, b""):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(garbage)
                writer.write_eof()
                await reader.read()
                writer.close()
            state = (await rig.http.get("/v1/state")).json()
            assert state["counters"] == {"malformed_requests": len(malformed)}

    run(story())


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port}: Address already in use; end what"):
            bind("127.0.0.1", port)


# -- logs ------------------------------------------------------------------------------------------


def write(log_dir: Path, worker: str, text: str) -> None:
    log_dir.mkdir(exist_ok=True)
    with (log_dir / f"{worker}.log").open("a") as log:
        log.write(text)


def follow(log_dir: Path, read: LogPage, firsts: Sequence[str]) -> LogPage:
    return page(log_dir, firsts=firsts, worker=read.worker, offset=read.offset)


def test_every_line_of_each_first_worker_is_read_once(tmp_path: Path) -> None:
    """Start, train, suspend, resume on another node, pass rank 0 to an older worker, end."""
    logs = tmp_path / "logs"
    got = [page(logs, firsts=())]
    assert got[0].text == ""

    def reads(*firsts: str) -> str:
        got.append(follow(logs, got[-1], firsts))
        return got[-1].text

    write(logs, "j.1.n1.0", "starts\n")
    assert reads() == "starts\n"
    write(logs, "j.1.n2.0", "silence\n")
    write(logs, "j.1.n1.0", "epoch 1\n")
    assert reads("j.1.n1.0") == "epoch 1\n"
    # Suspended: the others' files are no successors.
    write(logs, "j.1.n1.0", "saved\n")
    assert reads("j.1.n1.0") == "saved\n"
    assert reads("j.1.n1.0") == ""
    # Two followed each other between two looks; the second has an older file.
    write(logs, "j.10.n3.0", "epoch 2\n")
    write(logs, "j.10.n0.0", "epoch 3\n")
    later = ("j.1.n1.0", "j.10.n3.0", "j.10.n0.0")
    assert [reads(*later) for _ in range(3)] == ["epoch 2\n", "epoch 3\n", ""]
    write(logs, "j.10.n0.0", "done\n")
    assert [reads(*later), reads(*later)] == ["done\n", ""]


def test_a_new_reader_sees_the_last_first_worker(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write(logs, "j.1.n1.0", "one\ntwo\nthree\n")
    write(logs, "j.1.n2.0", "silence\n")
    assert page(logs, firsts=("j.1.n1.0",), lines=2).text == "two\nthree\n"
    # What is not known any more is guessed: the log that was written last.
    os.utime(logs / "j.1.n2.0.log", (1.0, 1.0))
    assert page(logs, firsts=(), lines=1).text == "three\n"


def test_long_logs_come_in_pages_of_whole_lines(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    text = "".join(f"line {i} ü\n" for i in range(60_000))
    write(logs, "j1.1.n1.0", text)
    assert page(logs, firsts=(), lines=3).text == "".join(text.splitlines(True)[-3:])
    got, offset = "", 0
    while (read := page(logs, firsts=(), offset=offset)).text:
        assert read.text.endswith("\n")
        assert len(read.text.encode()) <= PAGE_BYTES
        got, offset = got + read.text, read.offset
    assert got == text


def test_logs_over_the_port(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        job_id = await rig.submit()
        log_dir = rig.state_dir.log_dir(job_id)
        await asyncio.to_thread(log_dir.mkdir, parents=True)
        write(log_dir, f"{job_id}.1.n1.0", "epoch 1\nepoch 2\n")
        answer = (await rig.http.get(f"/v1/jobs/{job_id}/logs?lines=1")).json()
        assert answer["text"] == "epoch 2\n"
        where = {"worker": answer["worker"], "offset": answer["offset"]}
        again = await rig.http.get(f"/v1/jobs/{job_id}/logs", params=where)
        assert again.json()["text"] == ""
        assert (await rig.http.get(f"/v1/jobs/{job_id}/logs?offset=-1")).status_code == 400

    async def whole() -> None:
        async with running(tmp_path) as rig:
            await story(rig)

    run(whole())
