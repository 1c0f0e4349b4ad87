from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from malletrain.errors import UserError, WorkloadError
from malletrain.workloads.file import read
from malletrain.workloads.generate import from_text, generate
from malletrain.workloads.workload import MalleableJob, TrueCurve

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("MALLETRAIN_TEST_DATA", ROOT.parent / "shared" / "data"))

CURVES: dict[str, Any] = {"resnet": [[0, 0], [1, 10.0], [2, 19], [8, 60.0]]}


def a_job(**changes: object) -> dict[str, object]:
    job: dict[str, object] = {
        "job": "J1",
        "min_nodes": 1,
        "max_nodes": 8,
        "work_samples": 1000.0,
        "scale_up_cost_s": 18.0,
        "scale_down_cost_s": 12,
        "scalability": "resnet",
        "submitted_at_s": 5.0,
    }
    return job | changes


def a_set(**changes: object) -> dict[str, object]:
    return a_job(job="trial", count=3, every_s=10.0) | changes


def write(folder: Path, table: object, name: str = "w.json") -> Path:
    path = folder / name
    path.write_text(table if isinstance(table, str) else json.dumps(table))
    return path


def refusal(folder: Path, table: object, name: str = "w.json") -> str:
    """Return what is said of the file, without its name."""
    path = write(folder, table, name)
    with pytest.raises(WorkloadError) as refused:
        read(path)
    assert isinstance(refused.value, UserError)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < len(str(path)) + 200
    return message.removeprefix(f"{path}: ")


def test_a_papers_file_is_read(tmp_path: Path) -> None:
    table = {
        "source": "somewhere",
        "trace_start_epoch_s": 1612915732.0,
        "curves": CURVES,
        "jobs": [a_job()],
    }
    workload = read(write(tmp_path, table, "papers.json"))
    assert workload.name == "papers"
    assert "somewhere" in workload.description
    assert workload.curves == {"resnet": TrueCurve((1, 2, 8), (10.0, 19.0, 60.0))}
    assert workload.jobs == (
        MalleableJob(
            id="J1",
            curve="resnet",
            submitted_at_s=5.0,
            max_nodes=8,
            work_samples=1000.0,
            scale_up_s=18.0,
            scale_down_s=12.0,
        ),
    )


def test_toml_says_the_same_as_json(tmp_path: Path) -> None:
    text = """
        [curves]
        resnet = [[1, 10.0], [2, 19], [8, 60.0]]
        [[jobs]]
        job = "J1"
        min_nodes = 2
        max_nodes = 8
        scale_up_cost_s = 18
        scale_down_cost_s = 12.0
        scalability = "resnet"
        class = "vision"
        owner = "ana"
        weight = 2
        submitted_at_s = 100
        deadline_s = 50
    """
    (job,) = (toml := read(write(tmp_path, text, "w.toml"))).jobs
    changes = {"class": "vision", "owner": "ana", "weight": 2, "deadline_s": 50, "min_nodes": 2}
    table = a_job(submitted_at_s=100, work_samples=None, **changes)
    same = read(write(tmp_path, {"curves": CURVES, "jobs": [table]}))
    assert (toml.jobs, toml.curves) == (same.jobs, same.curves)
    assert job.work_samples is None
    assert (job.job_class, job.owner, job.weight) == ("vision", "ana", 2.0)
    assert job.deadline_at_s == 150.0  # its 50 s count from its submission


def test_a_set_stands_for_many_jobs_that_are_alike(tmp_path: Path) -> None:
    table = {"curves": CURVES, "sets": [a_set(count=12, deadline_s=1.0), a_set(job="x", count=1)]}
    jobs = {job.id: job for job in read(write(tmp_path, table)).jobs}
    assert sorted(jobs) == [f"trial-{number:02d}" for number in range(1, 13)] + ["x-1"]
    assert [jobs[name].submitted_at_s for name in ("trial-01", "trial-12")] == [5.0, 115.0]
    assert jobs["trial-12"].deadline_at_s == 116.0
    assert jobs["trial-12"].work_samples == 1000.0


def test_jobs_come_in_order_of_submission_and_else_as_written(tmp_path: Path) -> None:
    times = {"c": 9.0, "a": 1.0, "d": 9.0, "b": 1.0}
    jobs = [a_job(job=name, submitted_at_s=at_s) for name, at_s in times.items()]
    workload = read(write(tmp_path, {"curves": CURVES, "jobs": jobs}))
    assert [job.id for job in workload.jobs] == ["a", "b", "c", "d"]


def test_a_generate_table_draws_by_its_seed_or_else_the_one_given(tmp_path: Path) -> None:
    path = write(tmp_path, '[generate]\nkind = "nas"\ncount = 3\nmax_nodes = 4\n', "g.toml")
    settings = from_text("nas:count=3,max_nodes=4")
    assert settings is not None
    for seed in (1, 2):
        workload, drawn = read(path, seed=seed), generate(settings, seed)
        assert (workload.jobs, workload.curves) == (drawn.jobs, drawn.curves)
        assert drawn.description in workload.description
        assert workload.name == "g"
    own = write(tmp_path, {"generate": {"kind": "nas", "count": 3, "max_nodes": 4, "seed": 2}})
    assert read(own, seed=1).jobs == read(path, seed=2).jobs


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"min_nodes": 9}, "min_nodes = 9 is more than max_nodes = 8"),
        ({"min_nodes": 0}, "min_nodes = 0: it must be from 1 to 1000000"),
        ({"max_nodes": 16}, "curve 'resnet' ends at 8 nodes: lower max_nodes, or give the curve"),
        ({"max_nodes": 2.5}, "max_nodes = 2.5: it must be a whole number"),
        (
            {"max_nodes": 10**100},
            "max_nodes = 1000000000000000000000000000000000000...: it must be",
        ),
        ({"work_samples": 0}, "work_samples = 0.0: it must be from 1 to 1e+18"),
        ({"work_samples": 1e300}, "work_samples = 1e+300: it must be from 1 to 1e+18"),
        ({"work_samples": float("nan")}, "work_samples = nan: it must be from"),
        ({"work_samples": float("inf")}, "work_samples = inf: it must be from"),
        ({"work_samples": "many"}, "work_samples = 'many': it must be a number"),
        ({"scale_up_cost_s": -1}, "scale_up_cost_s = -1.0: it must be from 0 to 1000000000"),
        ({"scale_down_cost_s": -1}, "scale_down_cost_s = -1.0: it must be from 0 to 1000000000"),
        ({"submitted_at_s": -5}, "submitted_at_s = -5.0: it must be from 0 to 1000000000"),
        ({"submitted_at_s": True}, "submitted_at_s = True: it must be a number"),
        ({"weight": 0}, "weight = 0.0: it must be from 1e-06 to 1000000"),
        ({"deadline_s": -1}, "deadline_s = -1.0: it must be from 0 to 1000000000"),
        ({"owner": 3}, "owner = 3: it must be text"),
        ({"scalability": "resnt"}, "scalability = 'resnt' is no curve: did you mean resnet?"),
        ({"scalability": "vgg"}, "scalability = 'vgg' is no curve: the curves are resnet"),
        ({"max_node": 8}, "unknown key 'max_node': did you mean max_nodes?"),
        ({"zzz": 8}, "unknown key 'zzz': the keys are job, scalability, "),
    ],
)
def test_a_wrong_job_is_refused_by_place_key_and_limit(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    jobs = [a_job(job="J0"), a_job(**change)]
    message = refusal(tmp_path, {"curves": CURVES, "jobs": jobs})
    assert message.startswith("job 2 ('J1'): ")
    assert said in message


@pytest.mark.parametrize("key", ["scalability", "max_nodes", "scale_up_cost_s", "job"])
def test_a_key_that_is_missing_is_named(tmp_path: Path, key: str) -> None:
    job = a_job()
    del job[key]
    message = refusal(tmp_path, {"curves": CURVES, "jobs": [job]})
    assert message.startswith("job 1")
    assert f"{key} is missing: it must be " in message


@pytest.mark.parametrize("key", ["class", "owner"])
@pytest.mark.parametrize("name", ["\x1b[31m", "\ud800"])
def test_names_in_reports_are_printable(tmp_path: Path, key: str, name: str) -> None:
    message = refusal(tmp_path, {"curves": CURVES, "jobs": [a_job(**{key: name})]})
    assert f"{key} = {name!r}: it must be a name, on one line" in message


def test_a_key_that_is_null_is_none(tmp_path: Path) -> None:
    table = {"curves": CURVES, "jobs": [a_job(weight=None, owner=None)], "sets": None}
    assert read(write(tmp_path, table)).jobs[0].weight == 1.0


@pytest.mark.parametrize("name", ["", " ", "two\nlines"])
def test_an_id_must_be_a_name(tmp_path: Path, name: str) -> None:
    message = refusal(tmp_path, {"curves": CURVES, "jobs": [a_job(job=name)]})
    assert "it must be a name, on one line" in message


def test_two_jobs_of_one_id_are_refused_with_both_places(tmp_path: Path) -> None:
    jobs = [a_job(), a_job(job="trial-2"), a_job()]
    said = "the id 'J1' is also of job 1 ('J1'): each job needs its own"
    assert refusal(tmp_path, {"curves": CURVES, "jobs": jobs}) == f"job 3 ('J1'): {said}"
    message = refusal(tmp_path, {"curves": CURVES, "jobs": jobs[:2], "sets": [a_set()]})
    assert message.startswith("set 1 ('trial'): the id 'trial-2' is also of job 2 ('trial-2')")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"count": 0}, "count = 0: it must be from 1 to 100000"),
        ({"count": 100_001}, "count = 100001: it must be from 1 to 100000"),
        ({"every_s": -1}, "every_s = -1.0: it must be from 0"),
        ({"max_nodes": 9}, "curve 'resnet' ends at 8 nodes"),
    ],
)
def test_a_wrong_set_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    message = refusal(tmp_path, {"curves": CURVES, "sets": [a_set(**change)]})
    assert message.startswith("set 1 ('trial'): ")
    assert said in message


def test_there_are_only_so_many_jobs(tmp_path: Path) -> None:
    table = {"curves": CURVES, "jobs": [a_job()], "sets": [a_set(count=100_000)]}
    assert "there may be 100000 jobs in a file" in refusal(tmp_path, table)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([], "it has no points: it must have one at 1 node"),
        ([[0, 0]], "it has no points"),
        ([[2, 10.0], [4, 20.0]], "its first point is at 2 nodes: it must be at 1 node"),
        ([[0, 3.0], [1, 10.0]], "its first point is at 0 nodes"),
        ([[1, 10.0], [4, 20.0], [2, 15.0]], "2 nodes follow 4: sort its points"),
        ([[1, 10.0], [1, 11.0]], "1 nodes follow 1: sort its points, one a number"),
        ([[1, 10.0], [1.5, 11.0]], "1.5 nodes: it must be a whole number"),
        ([[1, 10.0], [float("inf"), 11.0]], "inf nodes: it must be a whole number"),
        ([[1, 10.0], [2e6, 11.0]], "2e+06 nodes: they must be at most 1000000"),
        ([[1, 0]], "0 samples/s at 1 nodes: they must be from 1e-09 to 1e+12"),
        ([[1, -3.0]], "-3 samples/s at 1 nodes"),
        ([[1, float("nan")]], "nan samples/s at 1 nodes"),
        ([[1, 1e13]], "1e+13 samples/s at 1 nodes"),
        ([[1, 10.0, 3]], "it must be a list of [nodes, samples/s]"),
        ([[1, "x"]], "it must be a list of [nodes, samples/s]"),
        ({"1": 10.0}, "it must be a list of [nodes, samples/s]"),
        (7, "= 7: it must be a list of [nodes, samples/s]"),
    ],
)
def test_a_wrong_curve_is_refused(tmp_path: Path, points: object, said: str) -> None:
    message = refusal(tmp_path, {"curves": {**CURVES, "bad": points}, "jobs": [a_job()]})
    assert message.startswith("curve 'bad'")
    assert said in message


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"curves": CURVES, "jobs": []}, "it has no job: jobs and sets are empty"),
        ({}, "it has no job"),
        ({"job": []}, "unknown key 'job': did you mean jobs?"),
        ({"jobs": {}}, "jobs = {}: it must be a list of tables"),
        ({"jobs": [3]}, "jobs = [3]: it must be a list of tables"),
        ({"curves": []}, "curves = []: it must be a table"),
        ({"jobs": [a_job()]}, "scalability = 'resnet' is no curve: there are no curves"),
        ([], "not a workload: it must be an object with curves and jobs"),
        ({"generate": {"kind": "hpo"}, "jobs": [a_job()]}, "remove jobs, sets and curves"),
        ({"generate": {"kind": "hop"}}, "generate: kind = 'hop' is no kind of workload: did you"),
        ({"generate": {"kind": ["hpo"]}}, "generate: kind = ['hpo'] is no kind of workload"),
        ({"generate": {}}, "the kinds are hpo, nas, mixed, powers"),
        ({"generate": {"kind": "hpo", "count": "3"}}, "count = '3': it must be a whole number"),
        ('{"jobs": [],\n"curves": }', "line 2, column 11: not JSON: Expecting value"),
        ('{"a": 1, "a": 2}', "key 'a' stands twice in one object"),
        ('{"jobs": [{"job": ' + "1" * 5000 + "}]}", "numbers too long or tables too deep"),
        ("[" * 100_000, "numbers too long or tables too deep"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, table: object, said: str) -> None:
    assert said in refusal(tmp_path, table)


def test_wrong_toml_names_the_line(tmp_path: Path) -> None:
    message = refusal(tmp_path, "[curves]\nx = [[1, 2\n[jobs]\n", "w.toml")
    assert message.startswith("not TOML: ")
    assert "line 3" in message


def test_a_number_of_thousands_of_digits_is_refused_in_one_line(tmp_path: Path) -> None:
    text = "[[jobs]]\njob = 'a'\nscalability = 'x'\nscale_up_cost_s = 1\nscale_down_cost_s = 1\n"
    message = refusal(tmp_path, f"{text}max_nodes = 0x{'f' * 9000}\n", "w.toml")
    assert "max_nodes = a number of thousands of digits: it must be from 1 to 1000000" in message


def test_what_is_no_file_of_ours_is_refused(tmp_path: Path) -> None:
    assert "must end in .json or .toml" in refusal(tmp_path, "x", "w.csv")
    (tmp_path / "latin.json").write_bytes(b'{"source": "\xe9"}')
    with pytest.raises(WorkloadError, match=r"not UTF-8 text: .* at byte 12"):
        read(tmp_path / "latin.json")
    with pytest.raises(WorkloadError, match=r"cannot read workload .*gone.json: No such file"):
        read(tmp_path / "gone.json")
    with pytest.raises(WorkloadError, match=r"No such file.*a generator is one of hpo, nas, "):
        read(Path("hpoo"))


def test_the_papers_files_are_read_whole() -> None:
    path = DATA / "workloads" / "imagenet-mix-1001.json"
    if not path.exists():
        pytest.skip(f"no workloads at {path}: MALLETRAIN_TEST_DATA names the folder")
    workload = read(path)
    assert len(workload.jobs) == 1001
    assert len(workload.curves) == 7
    assert (workload.jobs[0].submitted_at_s, workload.jobs[-1].submitted_at_s) == (72743, 108743)
    assert {job.work_samples for job in workload.jobs} == {1.3e8}


def test_the_example_shows_every_key_that_jobs_may_have() -> None:
    workload = read(ROOT / "examples" / "replay" / "workload.toml")
    assert len({job.curve for job in workload.jobs}) == len(workload.curves) == 3
    assert all(job.work_samples is not None for job in workload.jobs)
    assert [job.id for job in workload.jobs if job.deadline_at_s is not None] == ["final"]
    assert any(job.job_class for job in workload.jobs)
    for curve in workload.curves.values():
        speedup = [rate / curve.samples_per_s[0] for rate in curve.samples_per_s]
        assert all(s <= nodes for s, nodes in zip(speedup, curve.nodes, strict=True))
