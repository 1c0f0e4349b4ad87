from __future__ import annotations

import pytest

from malletrain.batch.commands import CommandKind
from malletrain.impact.words import text, verdict
from tests.impact.site import NAME, Site


def site(jobs: int = 1) -> Site:
    """One node from 0 to an hour; each job takes a node back and waits 2 s for it."""
    made = Site()
    made.join(0, nd99="9_0")
    made.run(0, CommandKind.ORDER, "sbatch", f"--job-name={NAME}")
    for number in range(jobs):
        at_s, host, pilot = 100.0 + 10 * number, f"nd{number:02}", f"7_{number}"
        made.join(at_s - 50, **{host: pilot})
        made.account(pilot, at_s - 51, at_s + 1, host, name=NAME, state="PREEMPTED")
        made.leave(at_s, pilot)
        made.lose(at_s + 0.5, pilot)
        made.account(f"50{number}", at_s + 2, at_s + 9, host, ready=at_s)
    for minute in range(60):
        made.run(60 * minute + 1, CommandKind.QUERY, "squeue")
    return made


def test_the_verdict() -> None:
    assert verdict(site().impact(0, 3600)) == (
        "In 60 minutes MalleTrain used 1.01 node-hours of idle time; 1 job took nodes back and "
        "waited 2 s (median), 2 s at most (up to 1 s more as accounting has whole seconds); "
        "no node was drained or down while it had them; 1.0 queries a minute."
    )


def test_the_verdict_without_accounting_is_about_what_the_journal_knows() -> None:
    assert "; 1 node was asked back and free within 0.50 s (median), 0.50 s at most; " in verdict(
        site().impact(0, 3600, has_accounting=False)
    )
    unknown = verdict(site().impact(0, 3600, has_accounting=False, has_log=False))
    assert unknown.endswith("; queries are not known.")


def test_the_verdict_names_nodes_that_were_drained() -> None:
    drained = site()
    drained.leave(3000, "9_0", reason="the batch system says that nd99 is drained")
    found = drained.impact(0, 3600)
    assert "; 1 node was drained or down while it had them; " in verdict(found)
    assert "nd99 at 2026-" in text(found)


def test_the_verdict_does_not_pass_over_nodes_whose_end_nobody_explained() -> None:
    lost = site()
    lost.lose(3000, "9_0", reason="its agent fell silent")
    said = "; no node was drained or down while it had them, 1 lost without notice; "
    assert said in verdict(lost.impact(0, 3600))


def test_a_mail_has_plain_short_lines_and_begins_with_the_verdict() -> None:
    found = site(jobs=30).impact(0, 3600)
    lines = text(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert "\n".join(lines).isascii()
    assert " ".join(lines).startswith(verdict(found))
    # The table has the twenty that waited longest, and says so.
    assert sum(line.startswith("  50") for line in lines) == 20
    assert "  and 10 that waited less (--json has all)" in lines


@pytest.mark.parametrize("has_accounting", [True, False])
def test_a_period_in_which_nothing_was_ours(has_accounting: bool) -> None:
    found = Site().impact(0, 3600, has_accounting=has_accounting)
    assert "MalleTrain used 0 node-hours of idle time" in verdict(found)
    assert "No node was asked back by the batch system." in text(found)


def test_accounting_that_cannot_be_of_these_pilots_is_doubted() -> None:
    other = site()
    other.rows = [row for row in other.rows if NAME not in row]
    assert "Note: the accounting has none of these pilots" in text(other.impact(0, 3600))
    hidden = site()
    hidden.rows = [row for row in hidden.rows if "cfd" not in row]
    assert "Note: the accounting has no job of anybody else" in text(hidden.impact(0, 3600))
