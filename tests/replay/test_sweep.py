from __future__ import annotations

import csv
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from malletrain import config
from malletrain.core.settings import CoreSettings
from malletrain.errors import SweepError
from malletrain.replay import sweep, sweep_table, workers
from malletrain.replay.cluster import run_on_cluster
from malletrain.replay.sweep import Row, Store
from malletrain.replay.sweep_file import read
from malletrain.replay.sweep_table import TableFormat
from tests.replay.replay_files import write_jobs, write_trace

SWEEP = """
trace = "idle.csv"
jobs = ["jobs.toml"]
policies = ["malletrain", "fifo"]
seeds = [0, 1]

[grid]
max_parallel = [2, 3]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_trace(tmp_path / "idle.csv")
    write_jobs(tmp_path / "jobs.toml")
    return tmp_path


def core_of(table: Any) -> CoreSettings:
    return config.core_settings(CoreSettings(), table)


def store_of(place: Path, text: str = SWEEP) -> Store:
    path = place / "sweep.toml"
    path.write_text(text)
    return Store(place / "out", read(path, core_of))


def run_all(store: Store, num_workers: int = 2) -> list[workers.Failure]:
    missing = [run for run in store.sweep.runs if not store.is_done(run)]
    return workers.run_all(store, missing, num_workers, lambda _: None)


def kept(store: Store) -> dict[str, int]:
    """The files of runs, and when they were written."""
    directory = store._directory
    return {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}


def test_the_product_is_run_once_each_and_makes_a_row_each(place: Path) -> None:
    store = store_of(place)
    assert len(store.sweep.runs) == 8
    assert run_all(store) == []
    rows = list(store.rows())
    asked = [(row["policy"], row["seed"], row["max_parallel"]) for row in rows]
    assert len(set(asked)) == len(asked) == 8
    for row in rows:
        uses = ("training", "rescaling", "profiling", "preempted", "idle")
        assert sum(float(row[f"{use}_node_s"] or 0) for use in uses) == pytest.approx(
            row["offered_node_s"]
        )
        assert row["horizon"] == "adaptive"
        assert row["world.grace_s"] == 30.0


def test_workers_give_the_same_rows_as_this_process(place: Path) -> None:
    store = store_of(place)
    run_all(store)
    rows = list(store.rows())
    alone = Store(place / "alone", store.sweep)
    trace = alone.trace()
    for run in alone.sweep.runs:
        alone.execute(run, trace)
    assert list(alone.rows()) == rows


def test_what_is_done_is_not_done_again(place: Path) -> None:
    store = store_of(place)
    trace = store.trace()
    for run in store.sweep.runs[:3]:
        store.execute(run, trace)
    before = kept(store)
    run_all(store)
    after = kept(store)
    assert len(before) == 3
    assert len(after) == 8
    assert before.items() <= after.items()


@pytest.mark.parametrize("content", [b"", b'{"events": 1', b"[]", b"\xff"])
def test_a_run_that_cannot_be_read_any_more_is_done_again(content: bytes, place: Path) -> None:
    store = store_of(place, SWEEP.replace("[0, 1]", "[0]").replace("[2, 3]", "[2]"))
    trace = store.trace()
    for run in store.sweep.runs:
        store.execute(run, trace)
    rows = list(store.rows())
    first = store.sweep.runs[0]
    store._path(first).write_bytes(content)
    assert list(store.rows()) == rows[1:]
    assert not store.is_done(first)
    store.execute(first, trace)
    assert list(store.rows()) == rows


def test_options_of_the_trace_that_cannot_apply_are_named(place: Path) -> None:
    store = store_of(place, SWEEP + "\n[trace_options]\nnodes = 1\n")
    with pytest.raises(SweepError, match="trace_options: --nodes is 1, and the log has 8 nodes"):
        store.check()


CHANGES: dict[str, Callable[[Path], Path]] = {
    "trace": lambda place: write_trace(place / "idle.csv", nodes=9),
    "jobs": lambda place: write_jobs(place / "jobs.toml", more="weight = 2.0\n"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changed_inputs_run_anew(what: str, place: Path) -> None:
    store = store_of(place)
    store.execute(store.sweep.runs[0], store.trace())
    CHANGES[what](place)
    assert not any(map(store_of(place).is_done, store.sweep.runs))


def test_another_version_runs_anew(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(place)
    store.execute(store.sweep.runs[0], store.trace())
    monkeypatch.setattr(sweep, "__version__", "another")
    assert not store.is_done(store.sweep.runs[0])


def test_a_longer_sweep_keeps_the_rows_of_a_shorter_one(place: Path) -> None:
    run_all(store_of(place))
    longer = store_of(place, SWEEP.replace("[2, 3]", "[2, 3, 4]"))
    assert sum(map(longer.is_done, longer.sweep.runs)) == 8
    assert len(longer.sweep.runs) == 12


def test_a_worker_that_dies_is_named_and_the_other_runs_go_on(place: Path) -> None:
    store = store_of(place)
    killed: list[int] = []

    def kill_one(_: int) -> None:
        if not killed:
            child = next(iter(workers_of_this_process()))
            killed.append(child.pid)
            child.kill()

    failures = workers.run_all(store, store.sweep.runs, 1, kill_one)
    (failure,) = failures
    assert f"process {killed[0]}, ended by SIGKILL" in failure.why
    assert sum(map(store.is_done, store.sweep.runs)) == 7
    assert not store.is_done(failure.run)


def workers_of_this_process() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        # What other tests have left unreaped has no command line.
        if child.status() != psutil.STATUS_ZOMBIE
        and any("malletrain.replay.workers" in word for word in child.cmdline())
    ]


def test_no_worker_is_left_where_the_work_is_broken_off(place: Path) -> None:
    store = store_of(place)

    def press(done: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workers.run_all(store, store.sweep.runs, 2, press)
    assert workers_of_this_process() == []
    assert any(map(store.is_done, store.sweep.runs))


ORPHANS = """
import sys
from pathlib import Path
from malletrain import config
from malletrain.core.settings import CoreSettings
from malletrain.replay import workers
from malletrain.replay.sweep import Store
from malletrain.replay.sweep_file import read

if __name__ == "__main__":
    place = Path(sys.argv[1])
    found = read(place / "sweep.toml", lambda t: config.core_settings(CoreSettings(), t))
    store = Store(place / "out", found)
    workers.run_all(store, store.sweep.runs, 2, lambda n: print(n, flush=True))
"""


def test_no_worker_outlives_a_parent_that_is_killed(place: Path) -> None:
    many = ", ".join(map(str, range(2000)))
    store_of(place, SWEEP.replace("[0, 1]", f"[{many}]"))
    script = place / "orphans.py"
    script.write_text(ORPHANS)
    with subprocess.Popen(
        [sys.executable, script, str(place)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        children = psutil.Process(parent.pid).children(recursive=True)
        parent.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert len(children) >= 2
    assert alive == []


def test_a_failed_run_is_told_with_its_reason(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(place)

    def fail(*_: Any) -> None:
        raise SweepError("no luck")

    monkeypatch.setattr(Store, "execute", fail)
    assert workers.attempt(store, store.sweep.runs[0], store.trace()) == "SweepError: no luck"


def test_csv_and_parquet_say_the_same(place: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    store = store_of(place)
    run_all(store)
    rows = list(store.rows())
    sweep_table.write(rows, place / "t.csv", TableFormat.CSV)
    sweep_table.write(rows, place / "t.parquet", TableFormat.PARQUET)
    assert [nulls_out(row) for row in parquet.read_table(place / "t.parquet").to_pylist()] == [
        nulls_out(row) for row in rows
    ]
    with (place / "t.csv").open(newline="") as file:
        read_back = list(csv.DictReader(file))
    assert read_back == [{name: cell(value) for name, value in row.items()} for row in rows]


def nulls_out(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


def cell(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_parquet_without_pyarrow_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SweepError, match=r"needs pyarrow.*malletrain\[replay\]"):
        sweep_table.check_format(TableFormat.PARQUET)


@pytest.mark.filterwarnings("default")
def test_tasks_of_a_cluster_share_the_runs(place: Path) -> None:
    pytest.importorskip("submitit")
    store = store_of(place)
    store.execute(store.sweep.runs[0], store.trace())
    missing = store.sweep.runs[1:]
    done: list[int] = []
    failures = run_on_cluster(
        store,
        missing,
        2,
        {"partition": "batch"},
        folder=place / "slurm",
        on_done=done.append,
        cluster="local",
        poll_every_s=0.05,
    )
    assert failures == []
    assert sorted(done) == [3, 4]
    here = Store(place / "here", store.sweep)
    run_all(here)
    assert list(store.rows()) == list(here.rows())


@pytest.mark.filterwarnings("default")
def test_a_task_that_dies_is_named_with_its_runs(place: Path) -> None:
    pytest.importorskip("submitit")
    store = store_of(place)
    (place / "idle.csv").unlink()
    failures = run_on_cluster(
        store,
        store.sweep.runs,
        1,
        {},
        folder=place / "slurm",
        on_done=lambda _: None,
        cluster="local",
        poll_every_s=0.05,
    )
    assert [failure.run for failure in failures] == list(store.sweep.runs)
    assert "did not end well, see" in failures[0].why


TOO_MANY = "".join(
    f"world.{key} = {list(range(1, 51))}\n"
    for key in ("grace_s", "step_s", "scale_up_s", "scale_down_s", "worker_start_s")
)

WRONG = {
    "seeds = [0, 1]": ("seeds = [0, 0]", "seeds has 0 twice"),
    'policies = ["malletrain", "fifo"]': ('policies = ["maletrain"]', "did you mean malletrain"),
    'trace = "idle.csv"': ('trace = "idle.csv"\ntracee = 1', "tracee"),
    "max_parallel = [2, 3]": ("max_parallel = 2", "it must be a list"),
    "[2, 3]": ("[]", "grid's max_parallel is empty"),
    "max_parallel": ("max_paralel", "did you mean max_parallel"),
    "max_parallel = [2": ("core.advisor.budget = [1]\nmax_parallel = [2", "unknown key core.adv"),
    "jobs = [": ("jobs = [[", "not TOML"),
    "seeds = [0": ("seeds = [-1", "they must be 0 or more"),
    "[grid]": ("[settings]\nmax_parallel = 2\n[grid]", "both in settings and in grid"),
    'jobs = ["jobs.toml"]': ("jobs = []", "jobs is empty"),
    'jobs = ["jobs.toml"': ('jobs = ["~nobody-of-this-name/j.toml"', "no such home directory"),
    'trace = "idle': ('trace = "\\u0000', "is no file's name"),
    "[0, 1]": (f"[{'9' * 5000}]", "numbers too long or tables too deep"),
    "[0": ("[" * 5000, "numbers too long or tables too deep"),
    "[grid]\n": ("[trace_options]\nnode = 9\n[grid]\n", "`node`.*its keys are format, nodes"),
    "\n[grid]": (
        "\n[settings]\nworld = 3\n'world.grace_s' = 5\n[grid]",
        "world is given as a value too",
    ),
    "\n[grid]\n": (
        "\n[settings]\nworld.grace_s = 3\n'world.grace_s' = 5\n[grid]\n",
        "world.grace_s is given twice",
    ),
    "= [2, 3]\n": (f"= [2, 3]\n{TOO_MANY}", "2,500,000,000 runs: there may be 1,000,000"),
}


@pytest.mark.parametrize("part", WRONG)
def test_wrong_files_are_refused_with_the_file_named(part: str, place: Path) -> None:
    wrong, said = WRONG[part]
    with pytest.raises(SweepError, match=r"sweep\.toml: .*" + said):
        store_of(place, SWEEP.replace(part, wrong))


def test_settings_may_be_of_world_and_core_and_grids_several(place: Path) -> None:
    text = SWEEP.replace("[grid]\nmax_parallel = [2, 3]", GRIDS)
    requests = {run.label: run.request for run in store_of(place, text).sweep.runs}
    found = sorted(
        (r.world.cost_factor, r.core.advisor.budget_s, str(r.horizon)) for r in requests.values()
    )
    assert set(found) == {
        (1.0, 30.0, "None"),
        (5.0, 30.0, "None"),
        (1.0, 30.0, "adaptive"),
        (1.0, 30.0, "10.0"),
    }


GRIDS = """
[settings]
core.advisor.budget_s = 30
[[grid]]
"world.cost_factor" = [1, 5]
[[grid]]
horizon = ["adaptive", 10]
"""


def test_what_cannot_apply_is_refused_before_any_run(place: Path) -> None:
    store = store_of(place, SWEEP.replace("max_parallel = [2, 3]", "repeat = [false, true]"))
    with pytest.raises(SweepError, match=r"malletrain.*repeat = True: --repeat needs"):
        store.check()
    store_of(place).check()


def test_a_missing_trace_is_named(place: Path) -> None:
    with pytest.raises(SweepError, match=r"cannot use .*nothing\.csv"):
        store_of(place, SWEEP.replace("idle.csv", "nothing.csv"))
