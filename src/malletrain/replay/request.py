"""What a user asks of a replay, and whether it can be had: what cannot apply is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from malletrain.core.settings import AdvisorKind, CoreSettings, ObjectiveKind, PlacementKind
from malletrain.errors import UsageError, WorkloadError
from malletrain.sim.policies import Policy
from malletrain.sim.settings import LedgerKind, ModelIdentity, ReplayOptions, WorldSettings
from malletrain.traces.files import named_path
from malletrain.traces.stats import most_idle_nodes
from malletrain.traces.trace import Trace
from malletrain.workloads import file as workload_file
from malletrain.workloads import tables
from malletrain.workloads.generate import from_text, generate
from malletrain.workloads.workload import Workload

WEIGHTED = "weighted"
#: By name. The core's samples heed weights: those that do not are samples of a workload without.
OBJECTIVES: Mapping[str, ObjectiveKind] = {
    **{kind.value: kind for kind in ObjectiveKind},
    WEIGHTED: ObjectiveKind.SAMPLES,
}
ADAPTIVE = "adaptive"

#: Of the world, what the papers' replayer knows nothing of.
_EXACT_ONLY = (
    "grace_s",
    "worker_start_s",
    "loss_notice_s",
    "decision_delay_s",
    "checkpoint_every_s",
    "lost_message_share",
    "message_retry_s",
)
#: What means nothing as long as another thing never happens.
_NEEDS = {"message_retry_s": "lost_message_share", "slow_node_speed": "slow_node_share"}
#: They give out nodes without a look at curves, objective or horizon.
_HEEDLESS_ALLOCATORS = {"fifo", "equal-share"}
_LEARNING = {AdvisorKind.INFORMED, AdvisorKind.INVERSE_ORDER}
_WORLD_BOUNDS: dict[str, tuple[float, float]] = {
    "cost_factor": (0, 1e4),
    "checkpoint_every_s": (1, tables.MOST),
    "step_s": (1e-3, tables.MOST),
    "step_noise": (0, 1),
    "measure_after_s": (0.1, tables.MOST),
    "report_every_s": (0.1, tables.MOST),
    "crashes_per_node_day": (0, 1e4),
    "lost_message_share": (0, 1),
    "message_retry_s": (0, 1e4),
    "slow_node_share": (0, 1),
    "slow_node_speed": (1e-3, 1),
}
_BOUNDS: dict[str, tuple[float, float]] = {"max_parallel": (1, 1_000_000)}


class Asked(Struct, frozen=True, kw_only=True):
    """All but trace, jobs, policies and seeds; None is what was not said.

    Keys are the command line's options; times are seconds from the trace's start.
    """

    max_parallel: int | None = None
    repeat: bool = False
    endless: bool = False
    #: Of `OBJECTIVES`; None: the core's.
    objective: str | None = None
    #: `ADAPTIVE` or seconds; None: the core's.
    horizon: float | str | None = None
    ledger: LedgerKind = LedgerKind.EXACT
    models: ModelIdentity = ModelIdentity.UNKNOWN
    #: None: the trace's start; with the papers' ledger, the first submission.
    from_s: float | None = msgspec.field(name="from", default=None)
    until_s: float | None = msgspec.field(name="until", default=None)
    world: WorldSettings = WorldSettings()
    core: CoreSettings = CoreSettings()


def asked(table: Mapping[str, Any], core: CoreSettings, *, is_text: bool = False) -> Asked:
    """Return what a table of keys asks for; `is_text` takes numbers from strings.

    Raises:
        UsageError: which key, what it has and what it may have.
    """
    keys = dict(table)
    world = keys.pop("world", {})
    try:
        if not isinstance(world, Mapping):
            raise WorkloadError(f"world = {tables.show(world)}: it must be a table")  # noqa: TRY301
        read = tables.read(Asked, keys, _BOUNDS)
        worldly = _world(world, is_text=is_text)
    except WorkloadError as error:
        raise UsageError(str(error)) from error
    _check_objective(read.objective)
    _check_horizon(read.horizon)
    return replace(read, world=worldly, core=core)


def _world(table: Mapping[str, Any], *, is_text: bool) -> WorldSettings:
    try:
        return tables.read(WorldSettings, table, _WORLD_BOUNDS, is_text=is_text)
    except WorkloadError as error:
        raise WorkloadError(f"world: {error}") from error


def _check_objective(name: str | None) -> None:
    if name is not None and name not in OBJECTIVES:
        known = tables.suggest(name, OBJECTIVES, "objectives")
        raise UsageError(f"objective = {tables.show(name)} is none: {known}")


def _check_horizon(horizon: float | str | None) -> None:
    if horizon is None or horizon == ADAPTIVE:
        return
    if isinstance(horizon, str) or not 1e-3 <= horizon <= tables.MOST:
        raise UsageError(
            f"horizon = {tables.show(horizon)}: it must be {ADAPTIVE}, or seconds from 0.001 to "
            f"{tables.MOST:.12g}"
        )


def workload(text: str, seed: int) -> Workload:
    """Return the jobs of a file or a generator; the seed is for one that names none.

    Raises:
        WorkloadError: see `workload_file.read` and `generate.from_text`.
    """
    settings = from_text(text)
    if settings is not None:
        return generate(settings, seed)
    return workload_file.read(named_path(text), seed)


def prepared(request: Asked, jobs: Workload, seed: int) -> tuple[Workload, ReplayOptions]:
    """Return the jobs as the objective sees them, and the options of one run."""
    if request.objective == ObjectiveKind.SAMPLES.value:
        jobs = replace(jobs, jobs=tuple(replace(job, weight=1.0) for job in jobs.jobs))
    core = request.core
    if request.objective is not None:
        core = replace(core, objective=OBJECTIVES[request.objective])
    if request.horizon is not None:
        fixed_s = None if isinstance(request.horizon, str) else float(request.horizon)
        core = replace(core, horizon=replace(core.horizon, fixed_s=fixed_s))
    options = ReplayOptions(
        core=core,
        world=request.world,
        ledger=request.ledger,
        identity=request.models,
        max_parallel=request.max_parallel,
        repeat=request.repeat,
        endless=request.endless,
        from_s=starts_at_s(request, jobs),
        until_s=request.until_s,
        seed=seed,
    )
    return jobs, options


def starts_at_s(request: Asked, jobs: Workload) -> float:
    if request.from_s is not None:
        return request.from_s
    return jobs.jobs[0].submitted_at_s if request.ledger is LedgerKind.PAPERS else 0.0


def check(request: Asked, trace: Trace, jobs: Workload, policies: Sequence[Policy]) -> None:
    """Refuse what cannot apply to this trace, these jobs and these policies.

    Raises:
        UsageError: which option, why, and what to do.
    """
    _check_jobs(request, jobs)
    _check_span(request, trace, jobs)
    _check_sizes(request, trace, jobs)
    _check_policies(request, policies)
    _check_world(request)


def _check_jobs(request: Asked, jobs: Workload) -> None:
    if request.repeat and request.max_parallel is None:
        raise UsageError("--repeat needs a limit on the jobs in the system: --max-parallel N")
    if request.repeat and request.endless:
        raise UsageError(
            "--endless cannot apply with --repeat: jobs that never end leave no room for more"
        )
    if request.endless and all(job.work_samples is None for job in jobs.jobs):
        raise UsageError(f"--endless cannot apply: no job of {jobs.name} ends anyway")
    objective = request.objective
    if objective == WEIGHTED and len({job.weight for job in jobs.jobs}) == 1:
        raise UsageError(
            f"--objective {WEIGHTED} cannot apply: all jobs of {jobs.name} have the same weight; "
            f"--objective samples is without"
        )
    if objective == ObjectiveKind.DEADLINE.value:
        dated = [job for job in jobs.jobs if job.deadline_at_s is not None]
        if not dated:
            raise UsageError(
                f"--objective {objective} cannot apply: no job of {jobs.name} has a deadline"
            )
        if request.endless or all(job.work_samples is None for job in dated):
            raise UsageError(
                f"--objective {objective} cannot apply: no job of {jobs.name} that has a deadline "
                f"ever ends"
            )


def _check_span(request: Asked, trace: Trace, jobs: Workload) -> None:
    from_s, until_s = starts_at_s(request, jobs), request.until_s
    ends = f"{trace.source} ends at {trace.length_s:.12g} s"
    if until_s is not None and until_s > trace.length_s:
        raise UsageError(f"--until {until_s:.12g} cannot apply: {ends}")
    if from_s >= trace.length_s:
        if request.from_s is None:
            raise UsageError(f"the first job is submitted at {from_s:.12g} s, and {ends}")
        raise UsageError(f"--from {from_s:.12g} cannot apply: {ends}")
    end_s = trace.length_s if until_s is None else until_s
    if end_s <= from_s:
        start = "--from" if request.from_s is not None else "the replay's start at"
        raise UsageError(f"--until {end_s:.12g} must be after {start} {from_s:.12g}")
    if jobs.jobs[0].submitted_at_s >= end_s:
        raise UsageError(
            f"no job of {jobs.name} is submitted before the replay's end at {end_s:.12g} s: the "
            f"first is at {jobs.jobs[0].submitted_at_s:.12g} s"
        )
    if not any(piece.from_s < end_s and piece.to_s > from_s for piece in trace.intervals):
        raise UsageError(
            f"no node of {trace.source} is idle from {from_s:.12g} to {end_s:.12g} s: there is "
            f"nothing to replay; see `malletrain trace stats`"
        )


def _check_sizes(request: Asked, trace: Trace, jobs: Workload) -> None:
    until_s = trace.length_s if request.until_s is None else request.until_s
    most = most_idle_nodes(trace, starts_at_s(request, jobs), until_s)
    least = min(job.min_nodes for job in jobs.jobs if job.submitted_at_s < until_s)
    if least > most:
        raise UsageError(
            f"no job of {jobs.name} can run: the least that one needs is {least:,} nodes, and "
            f"{trace.source} has at most {most:,} idle at once; lower min_nodes"
        )


def _check_policies(request: Asked, policies: Sequence[Policy]) -> None:
    names = ", ".join(policy.name for policy in policies)
    if not any(heeds_curves(policy) for policy in policies):
        for option in ("objective", "horizon"):
            if getattr(request, option) is not None:
                raise UsageError(
                    f"--{option} cannot apply: {names} gives out nodes without regard to it"
                )
    if request.models is ModelIdentity.KNOWN and not any(map(learns, policies)):
        raise UsageError(
            f"--models {request.models.value} cannot apply: {names} learns of no model; "
            f"malletrain does"
        )


def heeds_curves(policy: Policy) -> bool:
    """Whether it weighs what nodes are worth to a job, and so objective and horizon."""
    return policy.allocator not in _HEEDLESS_ALLOCATORS


def learns(policy: Policy) -> bool:
    return policy.advisor in _LEARNING


def _check_world(request: Asked) -> None:
    given = set(changed(request.world, WorldSettings()))
    if request.ledger is LedgerKind.PAPERS:
        for name in _EXACT_ONLY:
            if name in given:
                raise UsageError(
                    f"world {name} cannot apply with --ledger {request.ledger.value}: it knows "
                    f"nothing of it"
                )
    if request.core.placement is PlacementKind.LIFETIME and not request.world.knows_node_ends:
        raise UsageError(
            f"core placement = {request.core.placement.value} needs to know how long nodes stay: "
            f"give world knows_node_ends=true"
        )
    for name, other in _NEEDS.items():
        if name in given and other not in given:
            raise UsageError(f"world {name} means nothing where {other} is 0")


def flat(struct: Struct) -> dict[str, Any]:
    """Return its settings by dotted name, as plain values."""
    return dict(_flat(msgspec.to_builtins(struct)))


def _flat(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            items += [(f"{key}.{name}", inner) for name, inner in _flat(value)]
        else:
            items.append((key, value))
    return items


def changed(struct: Struct, default: Struct) -> dict[str, Any]:
    """Return those of its settings that are not the default."""
    usual = flat(default)
    absent = object()
    return {name: v for name, v in flat(struct).items() if v != usual.get(name, absent)}
