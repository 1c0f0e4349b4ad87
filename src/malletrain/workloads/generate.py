"""Workloads drawn from a seed: hyper-parameter trials, drawn architectures, mixed jobs.

Kinds, as `[generate]` in a workload file or as text, `hpo:count=200,seed=3`:

- `hpo`: trials of one model, which all scale alike.
- `nas`: every job trains an architecture of its own, which scales in its own way.
- `powers`: every job's throughput is samples_per_s * nodes**a, a uniform between two exponents.
- `mixed`: trials of one model, architectures, and plain jobs of a few models.

How models scale (all but `powers`). Training is synchronous and data-parallel at a fixed batch a
node, so that the global batch grows with the nodes, as in BFTrainer's measurements. On n nodes

    step_s(n) = compute_s + exposed_s(n) + latency_s * log2(n)
    exposed_s(n) = max(0, 2 (n-1)/n * 4 * parameters / bandwidth - overlap * compute_s)
    samples_per_s(n) = n * batch_per_node / step_s(n)

The second line is a ring all-reduce of 32-bit gradients beside the backward pass; the last term
of the first is what launching collectives and waiting for the slowest of n workers costs.
An architecture has compute_s, parameters and latency_s, each log-normal around a median; the
logarithms of the first two are correlated but do not determine each other: wide layers bring both,
depth and resolution bring only compute. Efficiency never exceeds 1 and falls with n.

Where the defaults come from:

- batch_per_node 192: 32 for each of Summit's 6 V100 a node (BFTrainer's and the common setting).
- samples_per_s 2400: ResNet-50 in 32 bits on 6 V100 of about 400 images/s each (the vendor's
  published figures); the seven ImageNet models of BFTrainer have 990 ... 7100, geometric mean 2750.
- samples_per_s_sd 0.7: the standard deviation of those seven's logarithms.
- parameters 10 million, parameters_sd 1.2 (95% within 1 ... 105 million): NAS-Bench-101 spans
  0.2 ... 50 million, the usual ImageNet models 2 ... 138 million with geometric mean 12.
- correlation 0.5: assumed.
- bandwidth 10 GB/s: Summit's node has two EDR rails of 12.5 GB/s each; all-reduces are reported
  to reach about 40% of their sum.
- overlap 2/3: the backward pass is about two thirds of a step's arithmetic.
- latency_s 2 ms a doubling, latency_sd 0.4: BFTrainer's curves of models with few parameters lose
  1.6 ... 3 ms. With these defaults and their published sizes, all seven are met within 0.06 in
  efficiency at 64 nodes, and within 0.1 at 8 but for AlexNet (0.47 against 0.71 measured).
- epochs 100 of 1,281,167 samples: ImageNet, and what the papers' jobs do; work_sd 0.5, the spread
  of budgets and early stopping: assumed.
- scale_up_s 18, scale_down_s 12: the papers' jobs; cost_sd 0.05 is about their spread.
- exponents 0.3 ... 1: from hardly scaling to perfectly.
- gap_s 60, burst_jobs 10, shares 0.4 and 0.4, plain_models 7: assumed.

A spread (`_sd`) is the standard deviation of the natural logarithm, 0 for none. Rates,
parameters, latency and work spread around their median, rescale costs around their mean.
"""

from __future__ import annotations

import enum
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from malletrain.draws import exponential, normal, uniform
from malletrain.errors import WorkloadError
from malletrain.workloads import tables
from malletrain.workloads.workload import MalleableJob, TrueCurve, Workload


class Arrival(enum.Enum):
    """When jobs are submitted, from `first_at_s` on."""

    AT_ONCE = "at-once"
    #: One every `gap_s`.
    FIXED = "fixed"
    #: Independently, `gap_s` apart in the mean.
    POISSON = "poisson"
    #: `burst_jobs` together, bursts independently `gap_s` apart in the mean.
    BURSTS = "bursts"


class _Jobs(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What jobs of every kind have."""

    count: int = 100
    #: None: the replay's.
    seed: int | None = None
    min_nodes: int = 1
    max_nodes: int = 64
    arrival: Arrival = Arrival.POISSON
    first_at_s: float = 0.0
    gap_s: float = 60.0
    burst_jobs: int = 10
    epochs: float = 100.0
    dataset_samples: float = 1_281_167.0
    work_sd: float = 0.5
    scale_up_s: float = 18.0
    scale_down_s: float = 12.0
    cost_sd: float = 0.05
    #: On one node: of the model, or the median of models.
    samples_per_s: float = 2400.0


class Hpo(_Jobs, frozen=True, kw_only=True, tag="hpo"):
    """Trials of one model."""

    batch_per_node: float = 192.0
    #: Of the model, or the median of models.
    parameters: float = 10e6
    bandwidth_bytes_per_s: float = 10e9
    #: Share of a step's computation beside which gradients are exchanged.
    overlap: float = 2 / 3
    #: Lost to every doubling of the nodes.
    latency_s: float = 2e-3


class Nas(Hpo, frozen=True, kw_only=True, tag="nas"):
    """Each job is an architecture of its own."""

    samples_per_s_sd: float = 0.7
    parameters_sd: float = 1.2
    latency_sd: float = 0.4
    #: Of the logarithms of an architecture's computation and parameters.
    correlation: float = 0.5


class Mixed(Nas, frozen=True, kw_only=True, tag="mixed"):
    """Trials, architectures, and plain jobs, which are the rest."""

    hpo_share: float = 0.4
    nas_share: float = 0.4
    #: Models that plain jobs train, each equally often.
    plain_models: int = 7


class Powers(_Jobs, frozen=True, kw_only=True, tag="powers"):
    """Each job's speed-up is a power of its nodes."""

    samples_per_s_sd: float = 0.7
    exponent_low: float = 0.3
    exponent_high: float = 1.0


GeneratorSettings: TypeAlias = Hpo | Nas | Mixed | Powers

KINDS: dict[str, type[GeneratorSettings]] = {
    "hpo": Hpo,
    "nas": Nas,
    "mixed": Mixed,
    "powers": Powers,
}
#: (least, most) of numbers that have other bounds than most.
_BOUNDS: dict[str, tuple[float, float]] = {
    "count": (1, 100_000),
    "min_nodes": (1, 1_000_000),
    "max_nodes": (1, 1_000_000),
    "burst_jobs": (1, 100_000),
    "epochs": (1e-3, 1e6),
    "dataset_samples": (1, 1e12),
    "work_sd": (0, 3),
    "cost_sd": (0, 3),
    "samples_per_s": (1e-3, 1e9),
    "samples_per_s_sd": (0, 3),
    "batch_per_node": (1, 1e9),
    "parameters": (0, 1e13),
    "parameters_sd": (0, 3),
    "bandwidth_bytes_per_s": (1e3, 1e15),
    "overlap": (0, 1),
    "latency_sd": (0, 3),
    "correlation": (-1, 1),
    "hpo_share": (0, 1),
    "nas_share": (0, 1),
    "plain_models": (1, 100_000),
    "exponent_low": (0, 1),
    "exponent_high": (0, 1),
}


def from_text(text: str) -> GeneratorSettings | None:
    """Return what `KIND` or `KIND:KEY=VALUE,...` asks for; None for text that is a path.

    A path that looks like a generator can be written with `./` before it.

    Raises:
        WorkloadError: it has the form of a generator, but no such kind or key.
    """
    if text not in KINDS and not re.match(r"[A-Za-z0-9_-]+:", text):
        return None
    kind, _, rest = text.partition(":")
    try:
        return from_table({"kind": kind, **_items(rest)}, is_text=True)
    except WorkloadError as error:
        raise WorkloadError(f"generator {text}: {error}") from error


def _items(text: str) -> dict[str, str]:
    items: dict[str, str] = {}
    for item in text.split(",") if text else ():
        key, separator, value = item.partition("=")
        if not separator or key == "kind":
            raise WorkloadError(f"{tables.show(item)} is no setting: write KIND:key=value,...")
        if key in items:
            raise WorkloadError(f"{key} is given twice")
        items[key] = value
    return items


def from_table(table: Mapping[str, Any], *, is_text: bool = False) -> GeneratorSettings:
    """Return what a `[generate]` table asks for.

    Raises:
        WorkloadError: which key, what it has and what it may have.
    """
    kind = table.get("kind", "")
    if not isinstance(kind, str) or kind not in KINDS:
        known = tables.suggest(str(kind), KINDS, "kinds")
        raise WorkloadError(f"kind = {tables.show(kind)} is no kind of workload: {known}")
    keys = {key: value for key, value in table.items() if key != "kind"}
    settings = tables.read(KINDS[kind], keys, _BOUNDS, is_text=is_text)
    _check_together(settings, keys)
    return settings


def _check_together(settings: GeneratorSettings, given: Mapping[str, Any]) -> None:
    if settings.min_nodes > settings.max_nodes:
        raise WorkloadError(
            f"min_nodes = {settings.min_nodes} is more than max_nodes = {settings.max_nodes}"
        )
    arrival = settings.arrival
    if "burst_jobs" in given and arrival is not Arrival.BURSTS:
        raise WorkloadError(f"burst_jobs means nothing where arrival is {arrival.value}")
    if "gap_s" in given and arrival is Arrival.AT_ONCE:
        raise WorkloadError("gap_s means nothing where arrival is at-once")
    if isinstance(settings, Powers) and settings.exponent_low > settings.exponent_high:
        raise WorkloadError(
            f"exponent_low = {settings.exponent_low:g} is more than"
            f" exponent_high = {settings.exponent_high:g}"
        )
    if isinstance(settings, Mixed) and settings.hpo_share + settings.nas_share > 1:
        raise WorkloadError(
            f"hpo_share + nas_share = {settings.hpo_share + settings.nas_share:g}:"
            " it must be at most 1; the rest is plain jobs"
        )


def generate(settings: GeneratorSettings, seed: int) -> Workload:
    """Draw the workload; `seed` counts where the settings name none."""
    if settings.seed is not None:
        seed = settings.seed
    models = [_model(settings, seed, number) for number in range(1, settings.count + 1)]
    times_s = itertools.islice(_submissions(settings, seed), settings.count)
    jobs = tuple(
        _job(settings, seed, number, model, at_s)
        for number, (model, at_s) in enumerate(zip(models, times_s, strict=True), 1)
    )
    curves = {model.name: _curve(settings, seed, model) for model in dict.fromkeys(models)}
    kind = str(settings.__struct_config__.tag)
    return Workload(
        name=f"{kind}, seed {seed}",
        jobs=jobs,
        curves=curves,
        description=_description(kind, settings, seed),
    )


def _description(kind: str, settings: GeneratorSettings, seed: int) -> str:
    """Return every parameter, in the form that `from_text` reads."""
    values = msgspec.to_builtins(msgspec.structs.replace(settings, seed=seed))
    del values["kind"]
    if settings.arrival is Arrival.AT_ONCE:
        del values["gap_s"]
    if settings.arrival is not Arrival.BURSTS:
        del values["burst_jobs"]
    return f"{kind}:" + ",".join(f"{key}={value}" for key, value in values.items())


class _Model(NamedTuple):
    """What a job trains: one of a class; 0 is the class's only one."""

    job_class: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.job_class}-{self.number:05d}" if self.number else self.job_class


def _model(settings: GeneratorSettings, seed: int, number: int) -> _Model:
    match settings:
        case Mixed():
            share = uniform(seed, "class", number)
            if share < settings.hpo_share:
                return _Model("hpo", 0)
            if share < settings.hpo_share + settings.nas_share:
                return _Model("nas", number)
            return _Model("plain", 1 + int(uniform(seed, "model", number) * settings.plain_models))
        case Nas():
            return _Model("nas", number)
        case Hpo():
            return _Model("hpo", 0)
        case Powers():
            return _Model("powers", number)


def _job(
    settings: GeneratorSettings, seed: int, number: int, model: _Model, at_s: float
) -> MalleableJob:
    def spread(what: str, sd: float) -> float:
        return math.exp(sd * normal(seed, what, number))

    keep_mean = math.exp(-(settings.cost_sd**2) / 2)
    return MalleableJob(
        id=f"{model.job_class}-{number:05d}",
        curve=model.name,
        submitted_at_s=at_s,
        min_nodes=settings.min_nodes,
        max_nodes=settings.max_nodes,
        work_samples=settings.epochs * settings.dataset_samples * spread("work", settings.work_sd),
        scale_up_s=settings.scale_up_s * keep_mean * spread("up", settings.cost_sd),
        scale_down_s=settings.scale_down_s * keep_mean * spread("down", settings.cost_sd),
        job_class=model.job_class,
    )


def _submissions(settings: GeneratorSettings, seed: int) -> Iterator[float]:
    at_s = settings.first_at_s
    for number in itertools.count():
        match settings.arrival:
            case Arrival.AT_ONCE:
                yield at_s
            case Arrival.FIXED:
                yield at_s + number * settings.gap_s
            case Arrival.POISSON:
                at_s += exponential(seed, settings.gap_s, "gap", number)
                yield at_s
            case Arrival.BURSTS:
                at_s += exponential(seed, settings.gap_s, "gap", number)
                yield from itertools.repeat(at_s, settings.burst_jobs)


def _curve(settings: GeneratorSettings, seed: int, model: _Model) -> TrueCurve:
    nodes = _scales(settings.max_nodes)
    if isinstance(settings, Powers):
        span = settings.exponent_high - settings.exponent_low
        exponent = settings.exponent_low + span * uniform(seed, "exponent", model.number)
        sd = settings.samples_per_s_sd
        one_node = settings.samples_per_s * math.exp(sd * normal(seed, "rate", model.number))
        return TrueCurve(nodes, tuple(one_node * n**exponent for n in nodes))
    if isinstance(settings, Nas) and model.job_class != "hpo":
        settings = _drawn(settings, seed, model)
    return TrueCurve(nodes, tuple(_samples_per_s(settings, n) for n in nodes))


def _drawn(settings: Nas, seed: int, model: _Model) -> Nas:
    """Return the settings with an architecture of its own in the place of the median one."""
    compute = normal(seed, "compute", *model)
    rest = normal(seed, "parameters", *model)
    weight = settings.correlation
    parameters = weight * compute + math.sqrt(1 - weight * weight) * rest
    latency = normal(seed, "latency", *model)
    return msgspec.structs.replace(
        settings,
        samples_per_s=settings.samples_per_s * math.exp(-settings.samples_per_s_sd * compute),
        parameters=settings.parameters * math.exp(settings.parameters_sd * parameters),
        latency_s=settings.latency_s * math.exp(settings.latency_sd * latency),
    )


def _samples_per_s(model: Hpo, nodes: int) -> float:
    compute_s = model.batch_per_node / model.samples_per_s
    exchange_s = 2 * (nodes - 1) / nodes * 4 * model.parameters / model.bandwidth_bytes_per_s
    exposed_s = max(0.0, exchange_s - model.overlap * compute_s)
    step_s = compute_s + exposed_s + model.latency_s * math.log2(nodes)
    return nodes * model.batch_per_node / step_s


def _scales(max_nodes: int) -> tuple[int, ...]:
    """Return every number up to 16, then four a doubling: lines between them are off by 0.1%."""
    scales = set(range(1, min(max_nodes, 16) + 1)) | {max_nodes}
    quarter = 4 * 4
    while (nodes := round(2 ** (quarter / 4))) < max_nodes:
        scales.add(nodes)
        quarter += 1
    return tuple(sorted(scales))
