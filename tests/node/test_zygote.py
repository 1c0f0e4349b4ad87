"""The zygote as a process of its own, spoken to over its socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from malletrain.frames import Unframer, frame
from malletrain.node import worker_start
from malletrain.node.zygote import Exited, FromZygote, Signal, Spawn, Spawned, ToZygote
from tests.leftovers import is_alive, wait_until


class Client:
    """Speaks with a zygote, and collects what its workers log."""

    def __init__(self, connection: socket.socket, folder: Path) -> None:
        self.connection = connection
        self.folder = folder
        self.log = folder / "worker.log"
        self._unframer = Unframer(65536)
        self._replies: list[Spawned | Exited] = []
        connection.settimeout(20)

    def send(self, request: ToZygote) -> None:
        self.connection.sendall(frame(msgspec.msgpack.encode(request)))

    def spawn(self, worker_id: str, *command: str, **changes: object) -> int:
        """Start a worker and return its pid."""
        spawn = Spawn(
            worker_id=worker_id,
            command=command,
            cwd=str(self.folder),
            env=dict(os.environ),
            log_path=str(self.log),
        )
        self.send(msgspec.structs.replace(spawn, **changes))
        return self._reply(Spawned, worker_id).pid

    def status(self, worker_id: str) -> int:
        """Wait for a worker's end."""
        return self._reply(Exited, worker_id).status

    def run(self, *command: str, **changes: object) -> tuple[int, str]:
        """Return a command's exit status and what it has logged."""
        self.log.unlink(missing_ok=True)
        self.spawn("w", *command, **changes)
        return self.status("w"), self.log.read_text()

    def run_script(self, text: str, *arguments: str, **changes: object) -> tuple[int, str]:
        (self.folder / "script.py").write_text(text)
        return self.run(sys.executable, "script.py", *arguments, **changes)

    def _reply(self, kind: type[Spawned] | type[Exited], worker_id: str) -> Spawned | Exited:
        while True:
            for index, reply in enumerate(self._replies):
                if isinstance(reply, kind) and reply.worker_id == worker_id:
                    return self._replies.pop(index)
            data = self.connection.recv(65536)
            assert data, "the zygote has closed the connection"
            for message in self._unframer.feed(data):
                self._replies.append(msgspec.msgpack.decode(message, type=FromZygote))


@contextmanager
def start_zygote(*options: str, fds: Sequence[int], cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "malletrain.node.zygote", *options]
    with subprocess.Popen(command, pass_fds=fds, cwd=cwd) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[tuple[Client, subprocess.Popen[bytes]]]:
    ours, its = socket.socketpair()
    fd = its.fileno()
    (tmp_path / "like_torch.py").write_text("import os; os.environ['TORCH_CACHE'] = 'here'")
    preload = "fractions,multiprocessing,like_torch,no_such_module"
    options = ("--fd", str(fd), "--preload", preload)
    with ours, its, start_zygote(*options, fds=[fd], cwd=tmp_path) as process:
        its.close()
        yield Client(ours, tmp_path), process


@pytest.fixture
def client(zygote: tuple[Client, subprocess.Popen[bytes]]) -> Client:
    return zygote[0]


def test_a_script_runs_as_if_started_cold(client: Client) -> None:
    script = (
        "import os, sys\n"
        "fds = sorted(os.listdir('/proc/self/fd'))[:-1]\n"
        "print(fds, __name__, __file__, sys.argv, os.getcwd())\n"
        "print(sys.path[:2], sorted(os.environ), sys.stdin.read() == '')\n"
    )
    read_at_start = worker_start._READ_AT_START
    env = {name: value for name, value in os.environ.items() if name.startswith(read_at_start)}
    env |= {"HOME": "/nowhere", "PYTHONPATH": "/first", "PATH": os.environ["PATH"]}
    status, log = client.run_script(script, "--rate", "1", env=env)
    first, second = log.splitlines()
    folder = client.folder
    argv = ["script.py", "--rate", "1"]
    assert first == f"['0', '1', '2'] __main__ {folder}/script.py {argv} {folder}"
    assert second == f"['{folder}', '/first'] {sorted([*env, 'TORCH_CACHE'])} True"
    assert status == 0


def test_what_was_preloaded_is_there_at_once(client: Client) -> None:
    script = "import os, sys; print('fractions' in sys.modules, os.environ['TORCH_CACHE'])"
    assert client.run_script(script) == (0, "True here\n")


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "TORCH_LOGS", "LD_PRELOAD", "OMP_SCHEDULE"])
def test_what_only_a_fresh_process_reads_starts_one(client: Client, name: str) -> None:
    env = {**os.environ, name: ""}
    script = f"import os, sys; print('fractions' in sys.modules, {name!r} in os.environ)"
    assert client.run_script(script, env=env) == (0, "False True\n")


def test_processes_that_a_script_starts_find_it(client: Client) -> None:
    script = (
        "import multiprocessing\n"
        "def work(): print('worked')\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    child.start()\n"
        "    child.join()\n"
        "    raise SystemExit(child.exitcode)\n"
    )
    assert client.run_script(script) == (0, "worked\n")


def test_an_error_looks_like_the_scripts_own(client: Client) -> None:
    status, log = client.run_script("def f():\n    return 1 / 0\n\nf()\n")
    assert status == 1
    assert "malletrain" not in log
    assert log.startswith(
        f'Traceback (most recent call last):\n  File "{client.folder}/script.py", line 4'
    )
    assert log.endswith("ZeroDivisionError: division by zero\n")


def test_modules_code_and_errors_are_run_as_python_does(client: Client) -> None:
    assert client.run(sys.executable, "-c", "import sys; sys.exit(len(sys.argv))", "a") == (2, "")
    (client.folder / "tool.py").write_text("import sys; print(__name__, sys.argv[1:])")
    assert client.run(sys.executable, "-m", "tool", "x") == (0, "__main__ ['x']\n")
    assert client.run_script("import sys; sys.exit('no data')") == (1, "no data\n")
    status, log = client.run_script("def f(:\n")
    assert status == 1
    assert log.startswith(f'  File "{client.folder}/script.py", line 1\n')
    assert log.endswith("SyntaxError: invalid syntax\n")


def test_a_script_is_the_main_module_to_the_very_end(client: Client) -> None:
    script = (
        "import atexit, pickle, threading, time\n"
        "class Thing: pass\n"
        "atexit.register(lambda: print('pickled', bool(pickle.dumps(Thing()))))\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
    )
    assert client.run_script(script) == (0, "thread\npickled True\n")


def test_other_programs_are_run_too(client: Client) -> None:
    assert client.run("sh", "-c", "echo $0 $HERE; exit 3", env={"HERE": "there"}) == (
        3,
        "sh there\n",
    )


@pytest.mark.parametrize(
    ("command", "status", "why"),
    [
        ((sys.executable, "gone.py"), 127, "script gone.py is not there"),
        (("no-such-program",), 127, "no-such-program is not there, nor on PATH"),
        (("./plain.sh",), 126, "./plain.sh: Permission denied"),
    ],
)
def test_what_cannot_be_started_says_why(
    client: Client, command: tuple[str, ...], status: int, why: str
) -> None:
    (client.folder / "plain.sh").write_text("#!/bin/sh\n")
    got, log = client.run(*command)
    assert got == status
    assert log.startswith(f"malletrain: cannot start the worker: {why}")
    assert log.count("\n") == 1


def test_a_missing_working_directory_says_so(client: Client) -> None:
    status, log = client.run("true", cwd="/no/such/folder")
    assert status == 126
    assert "/no/such/folder: No such file or directory" in log


def test_workers_draw_different_random_numbers(client: Client) -> None:
    script = "import random; print(random.random())"
    assert client.run_script(script)[1] != client.run_script(script)[1]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1])
def test_signals_do_to_a_worker_what_they_usually_do(
    client: Client, signum: signal.Signals
) -> None:
    client.spawn("w", "sleep", "1000")
    client.send(Signal(worker_id="w", signum=signum))
    assert client.status("w") == -signum
    client.send(Signal(worker_id="w", signum=signum))
    assert client.run("true")[0] == 0


def test_a_signal_to_all_of_the_node_leaves_the_zygote_alone(
    zygote: tuple[Client, subprocess.Popen[bytes]],
) -> None:
    client, process = zygote
    assert client.run("true")[0] == 0
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process.send_signal(signum)
    assert client.run("true")[0] == 0


def test_what_an_ended_worker_leaves_is_killed(client: Client) -> None:
    script = (
        "import subprocess, os, time\n"
        "print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid, flush=True)\n"
        "os._exit(0)\n"
    )
    status, log = client.run_script(script)
    assert status == 0
    wait_until(lambda: not is_alive(int(log)), lambda: "the orphan lives")


@pytest.mark.parametrize("how", ["closed", "garbage"])
def test_all_ends_with_the_connection(
    zygote: tuple[Client, subprocess.Popen[bytes]], how: str
) -> None:
    client, process = zygote
    pids = [client.spawn(f"w{i}", "sleep", "1000") for i in range(3)]
    if how == "closed":
        client.connection.close()
    else:
        client.connection.sendall(frame(b"\xc1"))
    assert process.wait(20) == 0
    assert not any(is_alive(pid) for pid in pids)


def test_workers_do_not_outlive_a_killed_zygote(
    zygote: tuple[Client, subprocess.Popen[bytes]],
) -> None:
    client, process = zygote
    pids = [client.spawn("w0", "sleep", "1000"), client.spawn("w1", sys.executable, "-c", _SLEEP)]
    process.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), lambda: "a worker lives")


_SLEEP = "import time; time.sleep(1000)"


def test_agents_of_a_machine_share_its_zygote_but_not_their_fates(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        path = str(tmp_path / "z")
        listener.bind(path)
        listener.listen()
        fd = listener.fileno()
        with start_zygote("--listen-fd", str(fd), fds=[fd], cwd=tmp_path) as machine:
            clients = []
            for _ in range(2):
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(path)
                clients.append(Client(connection, tmp_path))
            first, second = (client.spawn("w", "sleep", "1000") for client in clients)
            forks = [psutil.Process(pid).parent() for pid in (first, second)]
            assert {fork.ppid() for fork in forks if fork} == {machine.pid}
            assert {os.getpgid(pid) for pid in (first, second)} == {os.getpgrp()}
            clients[0].connection.close()
            wait_until(lambda: not is_alive(first), lambda: "the first agent's worker lives")
            assert clients[1].run("true")[0] == 0
            machine.kill()
            machine.wait()
            assert clients[1].run("true")[0] == 0
            clients[1].connection.close()
            wait_until(lambda: not is_alive(second), lambda: "the second agent's worker lives")
