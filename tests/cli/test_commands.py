from __future__ import annotations

import getpass
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from malletrain import __version__
from malletrain.cli.main import app
from malletrain.live.requests import LogPage
from malletrain.live.state_dir import Endpoint, StateDir
from malletrain.live.views import JobView, NodeView
from tests.cli.fake_controller import FakeController, Request, fake_controller
from tests.cli.views import empty_cluster, job, small_cluster

Run = Callable[..., Result]


@pytest.fixture
def state_dir(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "state")


@pytest.fixture
def run(state_dir: StateDir, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("MALLETRAIN_STATE_DIR", str(state_dir.path))
    monkeypatch.delenv("MALLETRAIN_DEBUG", raising=False)

    def invoke(*args: str) -> Result:
        return CliRunner().invoke(app, args)

    return invoke


@pytest.fixture
def controller(state_dir: StateDir) -> Iterator[FakeController]:
    with fake_controller(state_dir) as fake:
        view = small_cluster()
        fake.answers = {
            "GET /v1/state": (200, view),
            "GET /v1/jobs": (200, view.jobs),
            "GET /v1/nodes": (200, view.nodes),
            "POST /v1/jobs": (200, {"job_id": "job-7", "warnings": []}),
        }
        yield fake


def one_line(result: Result, status: int) -> str:
    """The error a user sees: one line, no traceback, nothing on stdout."""
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("malletrain: ")
    return lines[0]


def test_version(run: Run) -> None:
    result = run("--version")
    assert result.stdout == f"malletrain {__version__}\n"
    assert result.exit_code == 0


def test_version_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'highspy', 'httpx', 'uvicorn', 'starlette', 'rich', 'torch', 'matplotlib'}"
    code = (
        "import sys; from malletrain.cli.main import app\n"
        "try: app(['--version'])\n"
        f"except SystemExit: print(sorted(set(sys.modules) & {heavy}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.usefixtures("controller")
def test_jobs(run: Run) -> None:
    result = run("jobs")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == 1 + len(small_cluster().jobs)
    assert lines[0].split()[:4] == ["JOB", "ID", "STATUS", "NODES"]
    assert lines[1].split()[:5] == ["digits-cnn", "job-1", "rescaling", "2→3", "1-8"]
    assert lines[6].endswith("exited with 1 after 3 restarts: no module named foo")


@pytest.mark.usefixtures("controller")
def test_jobs_as_json_are_the_views(run: Run) -> None:
    result = run("jobs", "--json")
    assert msgspec.json.decode(result.stdout, type=tuple[JobView, ...]) == small_cluster().jobs


@pytest.mark.usefixtures("controller")
def test_nodes(run: Run) -> None:
    lines = run("nodes").stdout.splitlines()
    assert lines[1].split() == ["node-0", "g0", "local", "0", "training", "digits-cnn", "52s", "-"]
    assert "leaving in 12s" in lines[7]


@pytest.mark.usefixtures("controller")
def test_nodes_as_json_are_the_views(run: Run) -> None:
    result = run("nodes", "--json")
    assert msgspec.json.decode(result.stdout, type=tuple[NodeView, ...]) == small_cluster().nodes


def test_nothing_to_list(run: Run, controller: FakeController) -> None:
    controller.answers |= {"GET /v1/jobs": (200, []), "GET /v1/state": (200, empty_cluster())}
    assert "malletrain submit" in run("jobs").stderr
    assert "no node" in run("nodes").stderr
    assert run("jobs", "--json").stdout == "[]\n"
    assert run("nodes", "--json").stdout == "[]\n"


@pytest.mark.usefixtures("controller")
def test_top_where_there_is_no_terminal_is_one_screen(run: Run) -> None:
    result = run("top")
    assert result.exit_code == 0, result.output
    assert "7/8 nodes used" in result.stdout
    assert "digits-cnn" in result.stdout


def test_submit_sends_all_that_was_said(
    run: Run, controller: FakeController, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    options = "--min-nodes 2 --max-nodes 6 --name cnn --weight 2.5 --samples 5e4 --model resnet"
    result = run(
        "submit",
        *options.split(),
        *("--env", "A=1", "--env", "B=x=y", "--cwd", str(tmp_path)),
        *("--", sys.executable, "train.py", "--lr", "0.1", "--json"),
    )
    assert (result.stdout, result.stderr) == ("job-7\n", "")
    request = controller.requests[0]
    assert request.body == {
        "name": "cnn",
        "min_nodes": 2,
        "max_nodes": 6,
        "weight": 2.5,
        "samples": 50_000.0,
        "command": [sys.executable, "train.py", "--lr", "0.1", "--json"],
        "cwd": str(tmp_path),
        "env": [["A", "1"], ["B", "x=y"]],
        "model_key": "resnet",
        "deadline_at_s": None,
        "owner": getpass.getuser(),
    }


def test_submit_finds_a_name_and_a_model_by_itself(
    run: Run, controller: FakeController, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    result = run("submit", "--cwd", str(tmp_path), sys.executable, "train.py")
    assert result.stderr == (
        "warning: this job can use 1 node only: give --max-nodes N to let it grow\n"
    )
    body = controller.requests[0].body
    assert (body["name"], body["max_nodes"]) == ("train", 1)
    assert body["model_key"] == str(tmp_path / "train.py")


@pytest.mark.parametrize(("name", "is_warned"), [("patient", True), ("broken", False)])
@pytest.mark.usefixtures("controller")
def test_a_second_living_job_of_a_name_is_taken_with_a_warning(
    run: Run, name: str, is_warned: bool
) -> None:
    command = (sys.executable, "-c", "pass")
    result = run("submit", "--name", name, "--max-nodes", "2", "--", *command)
    assert result.stdout == "job-7\n"
    assert ("means the newest" in result.stderr) is is_warned


def test_submit_passes_warnings_on(run: Run, controller: FakeController) -> None:
    controller.answers["POST /v1/jobs"] = (
        200,
        {"job_id": "job-7", "warnings": ["--max-nodes 99 is above the 8 nodes there can be"]},
    )
    result = run("submit", "--max-nodes", "99", "--", sys.executable, "-c", "pass")
    assert result.stdout == "job-7\n"
    assert result.stderr == "warning: --max-nodes 99 is above the 8 nodes there can be\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--min-nodes", "3", "--max-nodes", "2"], "below --min-nodes 3"),
        (["--min-nodes", "0"], "--min-nodes is 0"),
        (["--weight", "-1"], "--weight is -1"),
        (["--env", "oops"], "is not NAME=VALUE"),
        (["--cwd", "/no/such/directory"], "is no directory here"),
    ],
)
def test_submit_refuses_before_it_asks(
    run: Run, controller: FakeController, args: list[str], message: str
) -> None:
    line = one_line(run("submit", *args, "--", sys.executable, "-c", "pass"), 2)
    assert message in line
    assert controller.requests == []


def test_submit_of_a_missing_script(run: Run) -> None:
    assert "trian.py is no file in" in one_line(run("submit", "--", "python3", "trian.py"), 2)


def test_what_the_controller_refuses(run: Run, controller: FakeController) -> None:
    controller.answers |= {
        "POST /v1/jobs": (400, {"error": "cwd /x is no directory on this machine"}),
        "POST /v1/jobs/cnn/resume": (409, {"error": "cnn is finished: submit it anew"}),
        "POST /v1/jobs/cnn/cancel": (500, b"Internal Server Error"),
        "POST /v1/jobs/cnn/suspend": (503, {"error": "the disk is full"}),
        "GET /v1/jobs": (200, [{"id": 5}]),
    }
    assert "cwd /x" in one_line(run("submit", "--", sys.executable, "-c", "pass"), 2)
    assert "submit it anew" in one_line(run("resume", "cnn"), 1)
    assert "not now: the disk is full" in one_line(run("suspend", "cnn"), 1)
    assert "status 500" in one_line(run("cancel", "cnn"), 1)
    assert "use the same version" in one_line(run("jobs"), 1)


def test_explain(run: Run, controller: FakeController) -> None:
    text = "cnn is training on 2 nodes.\nMore would cost others more."
    controller.answers["GET /v1/jobs/cnn/explain"] = (200, {"text": text})
    assert run("explain", "cnn").stdout == f"{text}\n"
    assert msgspec.json.decode(run("explain", "cnn", "--json").stdout) == {"text": text}


@pytest.mark.parametrize("verb", ["cancel", "suspend", "resume"])
def test_orders(run: Run, controller: FakeController, verb: str) -> None:
    controller.answers[f"POST /v1/jobs/cnn/{verb}"] = (200, {})
    result = run(verb, "cnn")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("cnn ")
    assert len(result.stderr.splitlines()) == 1
    assert "no job is called nnc" in one_line(run(verb, "nnc"), 1)


def test_a_job_name_cannot_leave_its_place_in_the_path(
    run: Run, controller: FakeController
) -> None:
    one_line(run("cancel", "../nodes?x=1"), 1)
    assert controller.requests[0].path == "/v1/jobs/..%2Fnodes%3Fx%3D1/cancel"


def test_node_add_and_remove(run: Run, controller: FakeController) -> None:
    controller.answers |= {
        "POST /v1/nodes": (200, {}),
        "DELETE /v1/nodes/node-3": (200, {}),
    }
    assert run("node", "add", "--count", "3").stderr.startswith("3 nodes asked for")
    assert run("node", "remove", "node-3").stderr == "node-3 is told to leave\n"
    assert run("node", "remove", "node-3", "--abrupt").stderr == "node-3 is killed\n"
    added, removed, killed = controller.requests
    assert added.body == {"count": 3}
    assert removed.query == {"abrupt": "false"}
    assert killed.query == {"abrupt": "true"}


def test_logs(run: Run, controller: FakeController) -> None:
    controller.answers["GET /v1/jobs/cnn/logs"] = (200, LogPage(text="a\nb\n", offset=4))
    assert run("logs", "cnn", "-n", "2").stdout == "a\nb\n"
    assert controller.requests[0].query == {"lines": "2"}


def test_following_logs_ends_with_the_job(run: Run, controller: FakeController) -> None:
    log = "epoch 1\nepoch 2\ndone\n"
    shown_bytes = iter([8, 8, len(log)])

    def page(request: Request) -> Any:
        start = int(request.query.get("offset", 0))
        end = next(shown_bytes, len(log))
        return LogPage(text=log[start:end], offset=end)

    states = iter(["training", "training"])
    controller.answers |= {
        "GET /v1/jobs/cnn/logs": page,
        "GET /v1/jobs/cnn": lambda _: job(1, "cnn", activity=next(states, "over")),
    }
    result = run("logs", "cnn", "-f")
    assert result.stdout == log
    assert result.exit_code == 0


@contextmanager
def other_process(state_dir: StateDir) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that is said to be the controller's; it ends some time after its input."""
    code = "import sys, time; sys.stdin.read(); time.sleep(0.2)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        endpoint = state_dir.endpoint()
        assert endpoint is not None
        state_dir.publish(Endpoint(url=endpoint.url, pid=process.pid))
        yield process


def test_down_waits_for_the_end_of_the_process(run: Run, controller: FakeController) -> None:
    with other_process(controller.state_dir) as process:

        def shut_down(_: Request) -> Any:
            assert process.stdin is not None
            process.stdin.close()
            controller.state_dir.endpoint_path.unlink()
            return {}

        controller.answers["POST /v1/shutdown"] = shut_down
        assert run("down").stderr.startswith("the controller has ended")
        assert process.poll() == 0
    assert [request.path for request in controller.requests] == ["/v1/shutdown"]


def test_down_does_not_wait_for_ever(
    run: Run, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("malletrain.cli.controller_commands._END_WITHIN_S", 0.05)
    controller.answers["POST /v1/shutdown"] = (200, {})
    with other_process(controller.state_dir):
        line = one_line(run("down"), 1)
    assert "has not ended within 0.05 s" in line
    assert "malletrain doctor" in line


@pytest.mark.parametrize(
    "args", [["jobs"], ["top"], ["logs", "cnn"], ["cancel", "cnn"], ["down"], ["node", "add"]]
)
def test_no_controller(run: Run, state_dir: StateDir, args: list[str]) -> None:
    line = one_line(run(*args), 1)
    assert f"no controller runs for {state_dir.path}" in line
    assert f"malletrain up --state-dir {state_dir.path}" in line


@pytest.mark.usefixtures("controller")
def test_a_controller_that_died(run: Run, state_dir: StateDir) -> None:
    state_dir.publish(Endpoint(url="http://127.0.0.1:9", pid=77))
    line = one_line(run("jobs"), 1)
    assert "no controller answers at http://127.0.0.1:9 (process 77" in line
    assert "malletrain up" in line


@pytest.mark.usefixtures("controller")
def test_a_wrong_or_open_token(run: Run, state_dir: StateDir) -> None:
    state_dir.token_path.write_text("something else")
    assert "refused the token" in one_line(run("jobs"), 1)
    state_dir.token_path.chmod(0o644)
    assert "can be read by others" in one_line(run("jobs"), 1)


def test_debugging_shows_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLETRAIN_DEBUG", "1")
    assert type(run("jobs").exception).__name__ == "NoControllerError"


def complete(words: str) -> list[str]:
    """What bash would offer for the last of the words."""
    environment = os.environ | {
        "_MALLETRAIN_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    command = [sys.executable, str(Path(sys.executable).with_name("malletrain"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.split()


@pytest.mark.usefixtures("controller")
def test_completion_of_names(state_dir: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLETRAIN_STATE_DIR", str(state_dir.path))
    assert complete("malletrain cancel c") == ["char-transformer", "compute-heavy"]
    assert complete("malletrain node remove node-7") == ["node-7"]
    assert complete("malletrain ex") == ["explain"]


def test_completion_without_a_controller(
    state_dir: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLETRAIN_STATE_DIR", str(state_dir.path))
    assert complete("malletrain cancel c") == []


@pytest.mark.usefixtures("controller")
def test_doctor(run: Run, state_dir: StateDir) -> None:
    result = run("doctor")
    assert "controller: answers at http://127.0.0.1:" in result.stdout
    state_dir.token_path.chmod(0o644)
    result = run("doctor", "--json")
    assert result.exit_code == 1
    verdicts = {
        finding["check"]: finding["verdict"] for finding in msgspec.json.decode(result.stdout)
    }
    assert verdicts["token"] == "fail"
    assert verdicts["python"] == "ok"
