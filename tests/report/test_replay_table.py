from __future__ import annotations

import io
import subprocess
import sys

import pytest
from msgspec.structs import replace
from rich.console import Console

from malletrain.report import quantities as say
from malletrain.report.gains import Gain, gain
from malletrain.report.replay_data import classes, outcomes
from malletrain.report.replay_table import headline, table
from malletrain.sim.results import ReplayResult
from tests.report.replay_story import DAY_S, replay


def lines(result: ReplayResult, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table(result))
    return str(console.file.getvalue()).splitlines()  # type: ignore[attr-defined]


def test_each_policy_is_compared_with_the_first_seed_by_seed() -> None:
    result = replay()
    done = {
        policy: [run.done_samples for run in result.policies if run.policy == policy]
        for policy in ("malletrain", "fifo")
    }
    first, _, fifo = outcomes(result)
    assert (first.policy, first.samples_gain, first.work_gain) == ("malletrain", None, None)
    assert fifo.samples_gain == gain(done["malletrain"], done["fifo"])
    assert fifo.samples == pytest.approx(sum(done["fifo"]) / 3)


def test_only_seeds_that_both_had_are_compared() -> None:
    result = replay()
    interrupted = replace(result, policies=result.policies[:-2])
    fifo = outcomes(interrupted)[-1]
    assert len(fifo.runs) == 1
    assert fifo.samples_gain is not None
    assert (fifo.samples_gain.n, fifo.samples_gain.low) == (1, None)


def test_dedicated_nodes_are_those_that_do_the_work_in_the_traces_time() -> None:
    result = replay(policies=["malletrain"], seeds=2)
    work = sum(run.done_one_node_s for run in result.policies) / 2
    assert outcomes(result)[0].dedicated_nodes == pytest.approx(work / DAY_S)


def test_a_makespan_is_known_where_all_jobs_ended() -> None:
    assert outcomes(replay())[0].makespan_s is None
    result = replay(policies=["malletrain", "fifo"], seeds=2)
    ended = tuple(
        replace(run, makespan_s=span_s)
        for run, span_s in zip(result.policies, (100.0, 200.0, 150.0, 250.0), strict=True)
    )
    main, other = outcomes(replace(result, policies=ended))
    assert (main.makespan_s, other.makespan_s) == (150.0, 200.0)
    assert other.makespan_excess == gain([150.0, 250.0], [100.0, 200.0])


def test_jobs_are_gathered_by_class() -> None:
    run = replay(seeds=1).policies[0]
    gathered = classes(run)
    used = [outcome.used_node_s for outcome in gathered]
    assert used == sorted(used, reverse=True)
    assert sum(used) == pytest.approx(run.node_s.offered - run.node_s.idle)
    assert sum(outcome.jobs for outcome in gathered) == 200
    assert sum(outcome.finished for outcome in gathered) == run.jobs_finished


def test_the_table_fits_a_narrow_terminal() -> None:
    shown = lines(replay())
    assert all(len(line) <= 80 for line in shown)
    assert shown[1].split()[:4] == ["policy", "nodes", "gains", "billion"]
    assert shown[2].split()[0] == "malletrain"
    fifo = shown[4].split()
    assert fifo[0] == "fifo"
    assert fifo[2].startswith("+")
    assert fifo[3] == "±"


def test_policies_are_compared_by_work_as_samples_of_different_models_cannot_be() -> None:
    result = replay(policies=["malletrain", "fifo"], seeds=1)
    ours, theirs = result.policies
    more_samples = replace(
        theirs, done_samples=2 * ours.done_samples, done_one_node_s=ours.done_one_node_s / 1.25
    )
    cells = lines(replace(result, policies=(ours, more_samples)))[3].split()
    assert cells[:3] == ["fifo", say.three_digits(ours.done_one_node_s / 1.25 / DAY_S), "+25.0"]


def test_makespans_are_shown_where_all_jobs_of_a_policy_ended() -> None:
    result = replay(policies=["malletrain", "fifo"], seeds=1)
    assert "span" not in lines(result)[0]
    ours, theirs = result.policies
    ended = replace(result, policies=(replace(ours, makespan_s=7200.0), theirs))
    shown = lines(ended)
    assert "span" in shown[0]
    assert "last completion" in " ".join(shown)
    assert "2" in shown[2].split()
    assert all(len(line) <= 80 for line in shown)


def test_a_long_policys_name_is_shown_whole() -> None:
    shown = lines(replay(policies=["malletrain-inverse-order", "freetrain-one-curve"]), 80)
    assert all(len(line) <= 80 for line in shown)
    names = "".join(line.split()[0] for line in shown[2:8] if line.split())
    assert names.startswith("malletrain-inverse-orderfreetrain-one-curve")


def test_the_headline_is_for_an_administrator() -> None:
    text = headline(replay())
    assert text.startswith("Your machine had 1,080 node-hours idle in 24 hours (8.8% of its time).")
    assert "MalleTrain would have trained in" in text
    assert "(mean of 3 seeds)" in text
    assert "dedicated nodes" in text
    assert "held for 0.84 s on average" in text


def test_what_is_not_known_is_not_said() -> None:
    result = replay(seeds=1)
    unknown = replace(result, trace=replace(result.trace, idle_share=None, leave_sizes=()))
    text = headline(unknown)
    assert "of its time" not in text
    assert "mean of" not in text
    assert "The main scheduler took no node back." in text


def test_a_replay_without_anything_can_be_told() -> None:
    result = replay()
    empty = replace(result, policies=(), is_complete=False)
    assert headline(empty).endswith("No policy was replayed.")
    assert lines(empty)
    none_idle = replace(empty, trace=replace(result.trace, idle_node_s=0.0))
    assert headline(none_idle) == "Your machine had no idle node in 24 hours."


def test_the_terminal_needs_nothing_that_draws() -> None:
    code = (
        "import sys; import malletrain.report.replay_table\n"
        "print(sorted({'jinja2', 'matplotlib', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_numbers_are_written_for_people() -> None:
    counts = [say.count(number) for number in (0, 950, 45_123, 1.234e6, 999.96e6, 1.2e11)]
    assert counts == ["0", "950", "45,123", "1.23 million", "1.00 billion", "120 billion"]
    times = [say.duration(seconds) for seconds in (0.4, 75, 192, 86400, 7 * 86400)]
    assert times == ["0.40 s", "75 s", "3.20 minutes", "24 hours", "7 days"]
    node_times = [say.node_time(node_s) for node_s in (0, 90, 7200, 44_442_000)]
    assert node_times == ["0 node-hours", "1.50 node-minutes", "2 node-hours", "12,345 node-hours"]
    shares = [say.percent(share) for share in (0, 1e-6, 0.0031, 0.00999, 0.934)]
    assert shares == ["0%", "<0.01%", "0.31%", "1.0%", "93.4%"]
    gains = [say.more(Gain(0.081, 0.077, 0.085, 3)), say.more(Gain(-0.05, None, None, 1))]
    assert gains == ["+8.1% ± 0.4", "\N{MINUS SIGN}5.0%"]
    assert say.more(None) == "\N{EN DASH}"


def test_a_run_that_was_interrupted_is_not_compared_with_whole_ones() -> None:
    result = replay(seeds=1)
    first, *others = result.policies
    cut = replace(first, length_s=first.length_s / 2, done_one_node_s=first.done_one_node_s / 2)
    outcome, *rest = outcomes(replace(result, policies=(cut, *others), is_complete=False))
    # As many dedicated nodes as before, in half the time; and no gain over whole runs.
    assert outcome.dedicated_nodes == pytest.approx(first.done_one_node_s / first.length_s)
    assert all(other.work_gain is None and other.samples_gain is None for other in rest)
