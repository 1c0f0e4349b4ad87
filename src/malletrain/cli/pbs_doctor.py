"""What is wrong with a site's PBS for pilots, and what to ask its administrator for."""

from __future__ import annotations

from collections.abc import Iterator

from malletrain.batch.pbs.facts import PbsFacts, QueueFacts, SchedulerFacts, ServerFacts
from malletrain.cli.doctor import Finding, Verdict


def diagnose_pbs(facts: PbsFacts) -> tuple[Finding, ...]:
    """Judge every fact; the order is that of the output."""
    return tuple(_findings(facts))


def _findings(facts: PbsFacts) -> Iterator[Finding]:
    yield _programs(facts.missing_programs)
    if facts.missing_programs:
        return
    yield _server(facts)
    if facts.server is None:
        return
    yield _clock(facts)
    yield _queue(facts)
    if queue := facts.queue:
        yield _preemption(facts, queue)
        yield _grace(facts, queue)
        yield _walltime(facts, queue)
        yield _arrays(facts, facts.server, queue)
    yield _visibility(facts.server)


def _finding(check: str, verdict: Verdict, found: str, advice: str = "") -> Finding:
    return Finding(check=f"pbs {check}", verdict=verdict, found=found, advice=advice)


def _programs(missing: tuple[str, ...]) -> Finding:
    if missing:
        return _finding(
            "programs",
            Verdict.FAIL,
            f"not on the PATH: {', '.join(missing)}",
            "run this on a login or service node, or ask the administrator for PBS's client "
            "programs here",
        )
    return _finding("programs", Verdict.OK, "all on the PATH")


def _server(facts: PbsFacts) -> Finding:
    if facts.server is None:
        return _finding(
            "server",
            Verdict.FAIL,
            facts.server_problem,
            "try again later; if it stays, ask the administrator whether pbs_server runs and may "
            "be reached from here",
        )
    return _finding(
        "server",
        Verdict.WARN,
        f"{facts.server.name} answers, PBS {facts.server.version}",
        "MalleTrain has not been tried on a real PBS server yet: begin with max_nodes = 1",
    )


def _clock(facts: PbsFacts) -> Finding:
    margin_s = facts.scavenge.hole_margin_s
    if facts.clock_ahead_s > margin_s:
        return _finding(
            "clock",
            Verdict.FAIL,
            f"the server's clock is at least {facts.clock_ahead_s:.0f} s ahead of this machine's",
            "ask the administrator to synchronise the clocks (chrony): pilots must end when "
            f"planned jobs start, give or take hole_margin_s = {margin_s:g}",
        )
    return _finding("clock", Verdict.OK, "the server has noted no time that is still to come")


def _queue(facts: PbsFacts) -> Finding:
    queue = facts.queue
    if queue is None:
        name = facts.pbs.queue
        return _finding(
            "queue",
            Verdict.FAIL,
            f"there is no queue {name}" if name else "the site has no default queue",
            f"set queue in [pbs]; there are {', '.join(q.name for q in facts.queues)}: ask the "
            "administrator which has jobs that others may preempt",
        )
    if not queue.is_enabled:
        return _finding(
            "queue",
            Verdict.FAIL,
            f"{queue.name} takes no jobs (enabled = False)",
            "ask the administrator to enable it, or set another queue in [pbs]",
        )
    if not queue.is_started:
        return _finding(
            "queue",
            Verdict.FAIL,
            f"jobs of {queue.name} do not start (started = False)",
            "ask the administrator to start it, or set another queue in [pbs]",
        )
    if queue.is_routing:
        return _finding(
            "queue",
            Verdict.WARN,
            f"{queue.name} passes jobs on to other queues",
            "set queue in [pbs] to the one where pilots are to run: only of that can be judged "
            "whether others preempt its jobs",
        )
    return _finding("queue", Verdict.OK, f"{queue.name} is enabled and started")


def _preemption(facts: PbsFacts, queue: QueueFacts) -> Finding:
    scheduler = facts.scheduler
    if scheduler is None:
        return _finding(
            "preemption",
            Verdict.WARN,
            "PBS does not tell users here whose jobs preempt others'",
            f"ask the administrator whether all others' jobs preempt those of {queue.name}, and "
            "not by suspension (preempt_order)",
        )
    if "S" in scheduler.preempt_order:
        return _finding(
            "preemption",
            Verdict.FAIL,
            f"jobs are suspended in place (preempt_order = {scheduler.preempt_order}): they would "
            "keep memory and GPUs",
            "ask the administrator for preempt_order = D, by which pilots hear SIGTERM first",
        )
    if "softlimits" in scheduler.preempt_prio or "fairshare" in scheduler.preempt_prio:
        return _finding(
            "preemption",
            Verdict.WARN,
            f"who preempts whom goes by more than queues (preempt_prio = {scheduler.preempt_prio})",
            f"ask the administrator whether all others' jobs preempt those of {queue.name}",
        )
    return _express(facts, scheduler, queue)


def _express(facts: PbsFacts, scheduler: SchedulerFacts, queue: QueueFacts) -> Finding:
    """Judge a site where jobs of express queues preempt all others."""
    express = scheduler.express_priority
    others = [q for q in facts.queues if q.name != queue.name and q.is_enabled and not q.is_routing]
    is_below = queue.priority < express
    above = [
        other.name
        for other in others
        if is_below and other.priority >= express and queue.name in (other.targets or {queue.name})
    ]
    waiting = [other.name for other in others if other.name not in above]
    if not above:
        return _finding(
            "preemption",
            Verdict.FAIL,
            f"nobody preempts jobs of {queue.name}: no queue from Priority {express} on "
            "(preempt_queue_prio) may do so",
            f"ask the administrator for queues of Priority {express} or more for all others, and "
            "one of less for pilots",
        )
    if waiting:
        return _finding(
            "preemption",
            Verdict.WARN,
            f"jobs of {', '.join(waiting)} do not preempt those of {queue.name}: they wait for "
            "pilots to end",
            f"ask the administrator to give these queues Priority {express} or more, or keep "
            "walltime_s short",
        )
    return _finding(
        "preemption",
        Verdict.OK,
        f"jobs of {', '.join(above)} preempt those of {queue.name} "
        f"(preempt_order = {scheduler.preempt_order})",
    )


def _grace(facts: PbsFacts, queue: QueueFacts) -> Finding:
    own_s, delay_s = facts.scavenge.grace_s, queue.kill_delay_s
    found = f"from SIGTERM to SIGKILL a pilot has {delay_s:g} s (kill_delay)"
    if own_s > delay_s:
        return _finding(
            "grace",
            Verdict.WARN,
            f"{found}, less than grace_s = {own_s:g} in [scavenge]",
            f"set grace_s = {delay_s:g}, or ask the administrator for kill_delay = {own_s:g} on "
            f"{queue.name}",
        )
    return _finding("grace", Verdict.OK, found)


def _walltime(facts: PbsFacts, queue: QueueFacts) -> Finding:
    walltime_s, max_s = facts.scavenge.walltime_s, queue.max_walltime_s
    if walltime_s > max_s:
        return _finding(
            "walltime",
            Verdict.FAIL,
            f"walltime_s = {walltime_s:g}, but {queue.name} allows {max_s:g} s "
            "(resources_max.walltime)",
            f"set walltime_s = {max_s:g} in [scavenge]",
        )
    return _finding("walltime", Verdict.OK, f"{walltime_s:g} s is within the queue's limit")


def _arrays(facts: PbsFacts, server: ServerFacts, queue: QueueFacts) -> Finding:
    most = min((m for m in (server.max_array_size, queue.max_array_size) if m), default=None)
    waiting = facts.scavenge.max_waiting
    if most is not None and waiting > most:
        return _finding(
            "arrays",
            Verdict.FAIL,
            f"max_waiting = {waiting} is more than an array may have (max_array_size = {most})",
            f"set max_waiting = {most} in [scavenge]",
        )
    return _finding("arrays", Verdict.OK, f"{waiting} pilots may wait as one array")


def _visibility(server: ServerFacts) -> Finding:
    if not server.is_open:
        return _finding(
            "visibility",
            Verdict.WARN,
            "other users' jobs are not shown (query_other_jobs = False): when nodes are wanted "
            "back is not foreseen, and pilots are preempted instead",
            "ask the administrator to let you see them, or keep walltime_s short",
        )
    return _finding("visibility", Verdict.OK, "everybody's planned jobs are shown")
