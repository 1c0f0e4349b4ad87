"""What must have been true of the run; each check says in one line what it found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from malletrain.core.apply import apply
from malletrain.core.events import AnyEvent, NodesLeaving, NodesLost
from malletrain.core.model import Cluster, Phase
from malletrain.report import RunReport
from malletrain.report.data import MarkKind

if TYPE_CHECKING:
    from malletrain.train.audit import Finding

LEAST_NODE_EVENTS = 30


@dataclass(frozen=True, slots=True)
class Check:
    holds: bool
    found: str


def check_run(
    run: RunReport,
    events: Sequence[AnyEvent],
    findings: Mapping[str, Finding],
    leftovers: Sequence[int],
) -> list[Check]:
    """Check the run; `findings` are those of the audit, by job name."""
    return [
        *ended_well(run),
        *_same_as_undisturbed(run),
        *consumed_once(run, findings),
        Check(
            run.node_events >= LEAST_NODE_EVENTS,
            f"{run.node_events} node events, at least {LEAST_NODE_EVENTS} were to be seen",
        ),
        _lost_all_nodes(events),
        _killed(run),
        _without_nodes(run),
        none_left(leftovers),
    ]


def none_left(leftovers: Sequence[int], where: str = "") -> Check:
    if leftovers:
        return Check(False, f"processes left over{where}: {', '.join(map(str, leftovers))}")
    return Check(True, f"no process was left over{where}")


def ended_well(run: RunReport) -> Iterable[Check]:
    unfinished = [r for r in run.jobs if r.job.phase is not Phase.FINISHED]
    yield Check(
        bool(run.jobs) and not unfinished,
        "; ".join(f"{r.job.spec.name} is {r.job.phase.value}: {r.job.note}" for r in unfinished)
        or f"all {len(run.jobs)} jobs finished",
    )


def _same_as_undisturbed(run: RunReport) -> Iterable[Check]:
    compared = [(r.job.spec.name, r.comparison) for r in run.jobs if r.comparison]
    for name, twin in compared:
        yield Check(
            twin.difference <= twin.tolerance,
            f"{name}: final loss {twin.final_loss:.6f}, undisturbed {twin.twin_final_loss:.6f}, "
            f"difference {twin.difference:.1e}, tolerance {twin.tolerance:.1e}",
        )
    if not compared:
        yield Check(False, "no job was compared with an undisturbed twin")


def consumed_once(run: RunReport, findings: Mapping[str, Finding]) -> Iterable[Check]:
    for report in run.jobs:
        name, finding = report.job.spec.name, findings[report.job.spec.name]
        counted = round(report.job.done_samples)
        if finding.problems:
            found = f"not every sample was consumed once: {'; '.join(finding.problems)}"
        elif finding.samples != counted:
            found = f"{finding.samples:,} samples were consumed, the journal says {counted:,}"
        else:
            found = (
                f"each sample of {finding.epochs} epochs was consumed exactly once, {counted:,} "
                f"in all; steps done again: {finding.void_steps}"
            )
        holds = finding.is_exactly_once and finding.samples == counted
        yield Check(holds, f"{name}: {found}")


def _killed(run: RunReport) -> Check:
    killed = sum(mark.nodes for mark in run.marks if mark.kind is MarkKind.KILLED)
    return Check(killed > 0, f"nodes killed without notice: {killed}")


def _without_nodes(run: RunReport) -> Check:
    longest_s = max((end_s - start_s for start_s, end_s in run.idle_spans), default=0.0)
    return Check(longest_s > 0, f"time with no node at all: {longest_s:.1f} s")


def _lost_all_nodes(events: Sequence[AnyEvent]) -> Check:
    names = sorted(set(emptied_jobs(events)))
    return Check(
        bool(names), f"jobs from which all nodes were taken at once: {', '.join(names) or 'none'}"
    )


def emptied_jobs(events: Iterable[AnyEvent]) -> list[str]:
    """Name the jobs whose nodes were all taken by one event, once for each time."""
    names: list[str] = []
    cluster = Cluster()
    for event in events:
        if isinstance(event, NodesLeaving | NodesLost):
            taken = set(event.node_ids)
            for job in cluster.jobs.values():
                staying = {n for n in job.node_ids if cluster.nodes[n].leaving_at_s is None}
                if staying and staying <= taken:
                    names.append(job.spec.name)
        cluster = apply(cluster, event)
    return names
