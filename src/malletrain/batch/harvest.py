"""Which pilots to submit, to cancel and to end: a pure function of what is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from malletrain.batch.queue import Survey
from malletrain.config import ScavengeSettings


@dataclass(frozen=True, slots=True)
class Waiting:
    """An own pilot that, as far as is known, waits in the queue."""

    walltime_s: float
    submitted_at_s: float


@dataclass(frozen=True, slots=True)
class Held:
    """A node that a pilot holds for us, and whose agent has called."""

    host: str
    pilot_id: str
    #: When its agent called first.
    called_at_s: float
    #: Jobs train on it, or are about to.
    is_used: bool
    #: It is to be left.
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """What a plan is made of."""

    now_s: float
    #: Nodes that all jobs together could use.
    demand: int
    #: By node id.
    held: Mapping[str, Held] = field(default_factory=dict)
    #: By pilot id.
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    #: The newest, however old; None before the first.
    survey: Survey | None = None
    #: The one before.
    previous_survey: Survey | None = None
    #: When pilots were submitted last; minus infinity where none were.
    submitted_at_s: float = -inf
    #: Submissions in a row of which no pilot called, or that were refused.
    failures: int = 0
    #: Since when `Plan.has_surplus`; None where the last plan had none.
    surplus_since_s: float | None = None
    #: When a node was last seen to be taken from us; minus infinity where none was.
    taken_at_s: float = -inf


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. An empty one leaves all as it is."""

    #: (how many, walltime in s) of each array.
    submit: tuple[tuple[int, float], ...] = ()
    #: Ids of waiting pilots.
    cancel: tuple[str, ...] = ()
    #: Node id -> why we give it back.
    give_back: Mapping[str, str] = field(default_factory=dict)
    #: When to look again though nothing happens; None: no need to.
    again_at_s: float | None = None
    #: More nodes stay, given back ones left out, than jobs could use.
    has_surplus: bool = False


#: A pilot that was submitted, or called, so long before a survey has its place in it: the
#: scheduler had its chance to start the one, and to list the other.
_SETTLED_S = 15.0
#: Surveys are believed for so many times the interval between them.
_BELIEVED_INTERVALS = 2.5
#: What batch systems say of a node whose daemon does not answer.
_PASSING = ("down", "not_responding", "no_respond", "stale", "unknown")
#: Doublings of the time between submissions at most.
_MAX_DOUBLINGS = 8
#: Batch systems count walltimes in minutes.
_MINUTE_S = 60.0


def plan(situation: Situation, settings: ScavengeSettings) -> Plan:
    """Return what to do now.

    - As many pilots wait as the jobs could use nodes more, within the limits; those too many are
      cancelled, the shortest first: what can stay longer is worth more.
    - New ones are fitted to the holes where hosts are idle. Where as many wait as may, but none
      fits an idle host, some are exchanged for shorter ones.
    - Nodes are given back whose hosts are taken out of service, whose pilots the batch system has
      forgotten, or that no job has used for long.
    """
    held, survey = situation.held, _believed(situation, settings)
    demand = min(situation.demand, settings.max_nodes)
    give_back = {**_forgotten(situation, survey), **_out_of_service(situation, survey)}
    staying = {n: node for n, node in held.items() if not node.is_leaving and n not in give_back}

    extra, extra_at_s = _extra(situation, staying, survey, demand, settings)
    if extra_at_s <= situation.now_s:
        give_back |= dict.fromkeys(extra, f"no job could use it for {settings.surplus_limit_s:g} s")
        staying = {n: node for n, node in staying.items() if n not in give_back}

    lacking = demand - len(staying)
    calm_ends_at_s = situation.taken_at_s + settings.calm_s
    may_wait = max(min(lacking, settings.max_waiting, settings.max_nodes - len(held)), 0)
    if situation.now_s < calm_ends_at_s:
        # Whoever takes nodes back may wait for several, and a pilot that waits would be started on
        # those that are free already: schedulers do not plan for what preemption is to bring.
        may_wait = 0
    submit, cancel = _queue_changes(situation, survey, may_wait, settings)
    submit_at_s = _submit_at_s(situation, settings) if submit else inf
    if situation.now_s < submit_at_s < inf:
        submit, cancel = [], []
    later = [t for t in (extra_at_s, submit_at_s, calm_ends_at_s) if situation.now_s < t < inf]
    return Plan(
        submit=tuple((count, walltime_s) for walltime_s, count in sorted(Counter(submit).items())),
        cancel=tuple(cancel),
        give_back=give_back,
        again_at_s=min(later, default=None),
        has_surplus=lacking < 0,
    )


def _believed(situation: Situation, settings: ScavengeSettings) -> Survey | None:
    survey, limit_s = situation.survey, _BELIEVED_INTERVALS * settings.query_every_s
    is_believed = survey is not None and situation.now_s - survey.at_s <= limit_s
    return survey if is_believed else None


# -- nodes to give back ----------------------------------------------------------------------------


def _out_of_service(situation: Situation, survey: Survey | None) -> dict[str, str]:
    """Return nodes that an administrator waits for, used or not.

    All nodes seem lost for a moment where a site restarts its daemons: what may pass by itself, or
    is said of most nodes, must have been said by the survey before as well.
    """
    if survey is None:
        return {}
    held, before = situation.held, situation.previous_survey
    unfit = [
        node_id
        for node_id, node in held.items()
        if node.host in survey.unfit and node.called_at_s <= survey.at_s
    ]
    was_unfit = before.unfit if before else {}
    is_doubtful = not _is_credible(len(unfit), len(held))
    unfit = [
        node_id
        for node_id in unfit
        if held[node_id].host in was_unfit
        or not (is_doubtful or _may_pass(survey.unfit[held[node_id].host]))
    ]
    hosts = {node_id: held[node_id].host for node_id in unfit if not held[node_id].is_leaving}
    return {
        node_id: f"the batch system says that {host} is {survey.unfit[host]}"
        for node_id, host in hosts.items()
    }


def _may_pass(state: str) -> bool:
    """Whether a node's daemon may only be away for a moment; the agent there is connected."""
    return any(word in state for word in _PASSING) and "drain" not in state


def _is_credible(lost: int, held: int) -> bool:
    return lost <= max(held // 2, 1)


def _forgotten(situation: Situation, survey: Survey | None) -> dict[str, str]:
    """Return nodes whose pilots are over, as far as the batch system knows.

    Processes outlive their pilot where the batch system loses a node. Two surveys in a row must
    say so, each made after the node called; and if they say so of most nodes they are not believed.
    """
    before = situation.previous_survey
    if survey is None or before is None:
        return {}
    running = {*survey.running.values(), *before.running.values()}
    first_at_s = min(survey.at_s, before.at_s) - _SETTLED_S
    held = situation.held
    forgotten = {
        node_id: f"the batch system no longer knows its pilot {node.pilot_id}"
        for node_id, node in held.items()
        if node.pilot_id not in running and node.called_at_s <= first_at_s
    }
    if not _is_credible(len(forgotten), len(held)):
        return {}
    return {n: reason for n, reason in forgotten.items() if not held[n].is_leaving}


def _extra(
    situation: Situation,
    staying: Mapping[str, Held],
    survey: Survey | None,
    demand: int,
    settings: ScavengeSettings,
) -> tuple[list[str], float]:
    """Return unused nodes beyond what jobs could use, and when they are to be given back.

    Those that others want first, or that have been held longest, go first: they end soonest.
    """
    wanted_at_s = survey.wanted_at_s if survey else {}

    def ends(node_id: str) -> tuple[float, float, str]:
        node = staying[node_id]
        return wanted_at_s.get(node.host, inf), node.called_at_s, node_id

    unused = sorted((n for n, node in staying.items() if not node.is_used), key=ends)
    extra = unused[: max(len(staying) - demand, 0)]
    if not extra:
        return [], inf
    since_s = situation.surplus_since_s
    return extra, (situation.now_s if since_s is None else since_s) + settings.surplus_limit_s


# -- pilots in the queue ---------------------------------------------------------------------------


def order_pause_s(failures: int, settings: ScavengeSettings) -> float:
    """Return how long after a submission the next may come, the longer the more have failed."""
    return settings.submit_every_s * 2.0 ** min(failures, _MAX_DOUBLINGS)


def _submit_at_s(situation: Situation, settings: ScavengeSettings) -> float:
    return situation.submitted_at_s + order_pause_s(situation.failures, settings)


def _queue_changes(
    situation: Situation, survey: Survey | None, may_wait: int, settings: ScavengeSettings
) -> tuple[list[float], list[str]]:
    """Return walltimes to submit and pilots to cancel, so that `may_wait` wait in the end."""
    waiting = situation.waiting
    started = set(survey.running.values()) if survey else set()

    def worth(pilot_id: str) -> tuple[bool, float, float, str]:
        pilot = waiting[pilot_id]
        return pilot_id in started, pilot.walltime_s, -pilot.submitted_at_s, pilot_id

    least_worth = sorted(waiting, key=worth)
    if len(waiting) > may_wait:
        return [], least_worth[: len(waiting) - may_wait]
    holes, stuck = _matched(situation, survey, [p for p in least_worth if p not in started])
    fitting = _fitting_walltimes(holes, situation.now_s, settings)
    lacking = may_wait - len(waiting)
    if lacking:
        longest = [_longest_s(settings)] * (lacking - len(fitting))
        return [*fitting[:lacking], *longest], []
    # Whether a pilot starts where it fits is seen only in a survey that is some time younger.
    tried_at_s = survey.at_s - _SETTLED_S if survey else -inf
    given_up = [p for p in stuck if waiting[p].submitted_at_s <= tried_at_s]
    exchanged = min(len(fitting), len(given_up))
    return fitting[:exchanged], given_up[:exchanged]


def _matched(
    situation: Situation, survey: Survey | None, pilot_ids: Iterable[str]
) -> tuple[list[float], list[str]]:
    """Give each waiting pilot, the shortest first, the shortest hole it fits.

    Returns:
        When the idle hosts that are left over are wanted by others, and the pilots left over, none
        of which fits any of those. Both keep their order, holes the shortest first.
    """
    if survey is None:
        return [], list(pilot_ids)
    ours = {node.host for node in situation.held.values()}
    wanted_at_s = sorted(at_s for host, at_s in survey.idle.items() if host not in ours)
    left: list[float] = []
    stuck: list[str] = []
    ahead = iter(wanted_at_s)
    for pilot_id in pilot_ids:
        ends_at_s = survey.at_s + situation.waiting[pilot_id].walltime_s
        for at_s in ahead:
            if at_s >= ends_at_s:
                break
            left.append(at_s)
        else:
            stuck.append(pilot_id)
    return [*left, *ahead], stuck


def _fitting_walltimes(
    wanted_at_s: Iterable[float], now_s: float, settings: ScavengeSettings
) -> list[float]:
    """Return walltimes that fit the holes that are long enough, the longest first."""
    longest_s = _longest_s(settings)
    least_s = max(min(settings.min_hole_s, longest_s), _MINUTE_S)
    holes_s = (min(at_s - now_s - settings.hole_margin_s, longest_s) for at_s in wanted_at_s)
    return sorted((m for h in holes_s if (m := _whole_minutes_s(h)) >= least_s), reverse=True)


def _longest_s(settings: ScavengeSettings) -> float:
    return max(_whole_minutes_s(settings.walltime_s), _MINUTE_S)


def _whole_minutes_s(seconds: float) -> float:
    return seconds // _MINUTE_S * _MINUTE_S
