"""Why a job has the nodes it has, and what it would do with more."""

from __future__ import annotations

from dataclasses import replace

from malletrain.core import advisor
from malletrain.core.decide import problem_of
from malletrain.core.model import Activity, Cluster, Job, Phase
from malletrain.core.problem import Allocator, Claim, Problem
from malletrain.core.reasons import nodes_word
from malletrain.core.scalability import Curve, StatedCurve, curve_for


def explain(cluster: Cluster, job_id: str, allocator: Allocator) -> str:
    """Answer in a few lines of plain words, from the state and the allocator alone."""
    job = cluster.jobs[job_id]
    lines = [_situation(cluster, job)]
    if job.note:
        lines.append(f"Note: {job.note}")
    if job.is_over:
        return "\n".join(lines)
    # No more than there are: a bound of a million nodes is no reason to predict a million rates.
    most = min(job.spec.max_nodes, max(len(cluster.nodes), job.spec.min_nodes))
    learning = advisor.explain(job, cluster)
    lines.append(learning[0].upper() + learning[1:])
    known = cluster.curves.get(job.spec.model_key)
    if known and known.observations:
        lines += _what_more_would_do(job, curve_for(cluster, job), most)
    lines += _why_not_more(cluster, job, allocator)
    return "\n".join(line for line in lines if line)


def _situation(cluster: Cluster, job: Job) -> str:
    name = job.spec.name
    if job.activity is Activity.OVER:
        return f"{name} is {job.phase.value}: {job.done_samples:,.0f} samples trained."
    if job.phase is Phase.SUSPENDED:
        return f"{name} is suspended, by its user: malletrain resume {name} lets it go on."
    words = f"{name} is {job.activity.value} on {nodes_word(len(job.node_ids))}"
    words += f" (it may have {job.spec.min_nodes} to {job.spec.max_nodes})"
    if job.rescaling and job.rescaling.node_ids:
        words += f", on its way to {nodes_word(len(job.rescaling.node_ids))}"
    if job.activity is Activity.WAITING and job.retry_at_s > cluster.now_s:
        wait_s = job.retry_at_s - cluster.now_s
        words += f", it backs off for {wait_s:.0f} s after {job.failures} failures"
    return words + "."


def _what_more_would_do(job: Job, curve: Curve | StatedCurve, most: int) -> list[str]:
    now = len(job.node_ids)
    if now >= most:
        return ["It has as many nodes as it may have, or as there are."]
    rates = curve.rates(most)
    low, high = curve.interval(most)
    lines = []
    for n in sorted({now + 1, min(2 * max(now, 1), most), most}):
        verb = "more" if rates[n] > rates[now] else "fewer: more nodes would slow it down"
        lines.append(
            f"On {nodes_word(n)} it should train {rates[n]:,.0f} samples/s "
            f"({low[n]:,.0f} to {high[n]:,.0f} with 95% confidence), "
            f"{abs(rates[n] - rates[now]):,.0f} {verb}."
        )
    return lines


def _why_not_more(cluster: Cluster, job: Job, allocator: Allocator) -> list[str]:
    problem = problem_of(cluster)
    claim = _claim(problem, job.spec.id)
    if problem is None or claim is None:
        return []
    given = allocator.allocate(problem).counts[claim.job_id]
    lines = [f"The allocator gives it {given} of {nodes_word(problem.nodes)} now."]
    more = max(given + 1, claim.min_nodes)
    if more > min(claim.max_nodes, problem.nodes):
        return lines
    own = float(claim.values[more] - claim.values[given])
    others = _others_lose(problem, claim, given, more, allocator)
    verdict = "gain" if own >= 0 else "lose"
    lines.append(
        f"With {more} it would {verdict} {abs(own):,.3g} and the others would lose {others:,.3g} "
        f"over the next {problem.horizon_s:.0f} s, in units of the objective "
        f"({cluster.settings.objective.value})."
    )
    return lines


def _others_lose(
    problem: Problem, claim: Claim, given: int, more: int, allocator: Allocator
) -> float:
    """What the other jobs' best is worth less if this one had more nodes."""
    others = tuple(other for other in problem.claims if other is not claim)
    values = [
        allocator.allocate(replace(problem, claims=others, nodes=problem.nodes - nodes)).value
        for nodes in (given, more)
    ]
    return values[0] - values[1]


def _claim(problem: Problem | None, job_id: str) -> Claim | None:
    claims = problem.claims if problem else ()
    return next((claim for claim in claims if claim.job_id == job_id), None)
