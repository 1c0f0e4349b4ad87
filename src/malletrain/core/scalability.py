"""Throughput curves: what was measured of a model's scaling, and what follows for other scales."""

from __future__ import annotations

import math
import statistics
from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from malletrain.core.model import (
    Cluster,
    Job,
    Observation,
    Scalability,
    StatedScaling,
)
from malletrain.core.rounding import rounded
from malletrain.core.settings import AdvisorKind, PriorSettings

#: No scale's mean rests on more steps than this, so a changed speed takes over in about as many.
MEMORY_STEPS = 1000

#: Growths p of the communication overhead that are considered, with their prior weights. 2 is a
#: step time that grows with every node: rare, but some measured curves fall like that.
_GROWTHS = {0.0: 1.0, 0.5: 1.0, 1.0: 1.0, 2.0: 0.3}
#: Slopes s that are considered; each stands for an efficiency of 16**-s on 16 nodes.
_SLOPES = np.arange(0.02, 1.25, 0.04)
_SLOPE_NODES = 16.0
#: A step's relative deviation that an observation starts from, as if one step had shown it.
_STEP_SD = 0.1
#: Step-time models of a smaller share than this are left out.
_LEAST_WEIGHT = 1e-12
#: Curves are computed for so many nodes at least.
_LEAST_SIZE = 64
#: Curves are fitted to rates and to noise (a variance) of scales with these steps between them, so
#: that most reports leave the curve as it is. Both are far below what the noise itself blurs.
_RATE_STEP = 0.005
_NOISE_STEP = 0.25
#: So is the rate that a model never measured is taken to have.
_REFERENCE_STEP = 0.01

_Floats = NDArray[np.float64]
_Belief = tuple[_Floats, _Floats]


def observe(
    scalability: Scalability, nodes: int, samples_per_s: float, variance: float, steps: int
) -> Scalability:
    """Merge a window of steps at one scale into the running mean and variance of that scale.

    Windows without a usable rate change nothing. Once a scale has `MEMORY_STEPS` steps, older
    ones lose weight to each new window.
    """
    if steps <= 0 or nodes <= 0 or not 0 < samples_per_s < math.inf:
        return scalability
    window = Observation(nodes, samples_per_s, variance if 0 < variance < math.inf else 0.0, steps)
    by_nodes = {o.nodes: o for o in scalability.observations}
    old = by_nodes.get(nodes)
    by_nodes[nodes] = window if old is None else _merged(old, window)
    return Scalability(tuple(by_nodes[n] for n in sorted(by_nodes)))


def _merged(old: Observation, new: Observation) -> Observation:
    """Combine two samples of steps by Chan's update, with the weight of the old one bounded."""
    new_count = min(new.count, MEMORY_STEPS)
    old_count = min(old.count, MEMORY_STEPS - new_count)
    count = old_count + new_count
    share = new_count / count
    shift = new.samples_per_s - old.samples_per_s
    return Observation(
        nodes=old.nodes,
        samples_per_s=old.samples_per_s + share * shift,
        variance=(1 - share) * old.variance + share * new.variance + share * (1 - share) * shift**2,
        count=count,
    )


class Evidence(Struct, frozen=True, cache_hash=True):
    """What an observation says of the curve, rounded."""

    nodes: int
    log_rate: float
    #: Variance of the observed log rate around the true one.
    noise: float


class Curve(Struct, frozen=True, cache_hash=True):
    """The belief about a model's throughput at every scale, given what was measured.

    With s(n) the seconds a sample takes, the model is

        log rate(n) = -log s(n) + w(log2 n),   n * s(n) = a * (1 + b * (n**p - 1) / p)

    - s(n) is the step-time model: compute shared by n, plus communication that starts with share
      b of the compute and grows with power p. p = 1 is a step time of compute / n + constant at
      a fixed global batch, p = 0 a logarithmic term at a fixed local batch, b = p the power law.
      All (b, p) of a grid are weighed by how well they explain the observations, starting from
      the prior over slopes of log efficiency (a gamma distribution, which knows no efficiency
      above 1). The one-node speed a has a flat prior.
    - w is a Wiener process: what no step-time model explains. It makes the curve pass through
      well-measured points, interpolate between them in log-log, and lose certainty with distance.

    Given (b, p), all is Gaussian and solved exactly (universal kriging); the curve is the average
    over the grid. So between measured points the data speak, and beyond them the step-time models
    that fit the data, with the spread among them as uncertainty.
    """

    evidence: tuple[Evidence, ...]
    prior: PriorSettings
    #: One-node rate (samples/s) assumed as long as nothing was measured.
    reference_rate: float = 1.0

    def rates(self, max_nodes: int) -> _Floats:
        """Return the expected samples/s by nodes, shape `(max_nodes + 1,)`."""
        return self._belief(max_nodes)[0][: max_nodes + 1]

    def sd(self, max_nodes: int) -> _Floats:
        """Return the relative standard deviation of `rates`: the stated confidence."""
        return self._belief(max_nodes)[1][: max_nodes + 1]

    def interval(self, max_nodes: int, level: float = 0.95) -> tuple[_Floats, _Floats]:
        """Return the bounds between which the mean rate lies with probability `level`."""
        rates, sd = self.rates(max_nodes), self.sd(max_nodes)
        factor = np.exp(statistics.NormalDist().inv_cdf((1 + level) / 2) * sd)
        return rates / factor, rates * factor

    def _belief(self, max_nodes: int) -> _Belief:
        # Rounded up to a power of two: callers ask for as many nodes as there are just now.
        size = max(_LEAST_SIZE, 1 << max(max_nodes - 1, 0).bit_length())
        return _belief(self, size)


@lru_cache(maxsize=8192)
def fit(scalability: Scalability, prior: PriorSettings, reference_rate: float = 1.0) -> Curve:
    """Return the curve that the observations suggest, rounded.

    `reference_rate` only matters without any observation: the curve is then that of the prior,
    scaled to it.
    """
    evidence = tuple([_evidence(o, prior) for o in scalability.observations])
    return _curve(evidence, prior, 1.0 if evidence else reference_rate)


@lru_cache(maxsize=16384)
def _evidence(observation: Observation, prior: PriorSettings) -> Evidence:
    count = observation.count
    relative = observation.variance / observation.samples_per_s**2
    step_variance = (count * relative + _STEP_SD**2) / (count + 1)
    return Evidence(
        nodes=observation.nodes,
        log_rate=math.log(rounded(observation.samples_per_s, _RATE_STEP)),
        noise=rounded(step_variance / count + prior.noise_floor**2, _NOISE_STEP),
    )


#: Equal curves are one object: what is remembered of it is found fast.
_curve = lru_cache(maxsize=8192)(Curve)


class StatedCurve(Struct, frozen=True, cache_hash=True):
    """What a user states of a job's throughput, believed to the letter."""

    stated: StatedScaling

    def rates(self, max_nodes: int) -> _Floats:
        """Return the stated samples/s by nodes, shape `(max_nodes + 1,)`; flat past the last."""
        return _stated_rates(self.stated, max_nodes)

    def sd(self, max_nodes: int) -> _Floats:
        return np.zeros(max_nodes + 1)

    def interval(self, max_nodes: int, level: float = 0.95) -> tuple[_Floats, _Floats]:  # noqa: ARG002
        return self.rates(max_nodes), self.rates(max_nodes)


@lru_cache(maxsize=4096)
def _stated_rates(stated: StatedScaling, max_nodes: int) -> _Floats:
    """Return the rates at and between the stated points, read-only."""
    at = np.arange(1, max_nodes + 1)
    return _read_only(np.interp(at, (0, *stated.nodes), (0.0, *stated.samples_per_s)))


def curve_for(cluster: Cluster, job: Job) -> Curve | StatedCurve:
    """Return the curve to decide by for a job: what was stated, for the advisor that is told."""
    if cluster.settings.advisor.kind is AdvisorKind.TOLD and job.spec.stated is not None:
        return StatedCurve(job.spec.stated)
    return model_curve(cluster, job.spec.model_key)


def model_curve(cluster: Cluster, model_key: str) -> Curve:
    """Return the curve of a model: evidence is pooled among its jobs."""
    scalability = cluster.curves.get(model_key)
    is_static = cluster.settings.advisor.kind is AdvisorKind.STATIC
    if is_static or scalability is None or not scalability.observations:
        return unknown_curve(cluster)
    return fit(scalability, cluster.settings.prior)


def unknown_curve(cluster: Cluster) -> Curve:
    """Return the curve of a model that was never measured.

    It is taken to have the median one-node rate of those that were, so that it is neither
    favoured nor starved. The static advisor knows the prior alone, of any model.
    """
    prior = cluster.settings.prior
    if cluster.settings.advisor.kind is AdvisorKind.STATIC:
        return fit(Scalability(), prior)
    return fit(Scalability(), prior, _median_one_node_rate(tuple(cluster.curves.values()), prior))


@lru_cache(maxsize=64)
def _median_one_node_rate(models: tuple[Scalability, ...], prior: PriorSettings) -> float:
    rates = [_one_node_rate(s, prior) for s in models if s.observations]
    return rounded(statistics.median(rates), _REFERENCE_STEP) if rates else 1.0


@lru_cache(maxsize=8192)
def _one_node_rate(scalability: Scalability, prior: PriorSettings) -> float:
    return float(fit(scalability, prior).rates(1)[1])


@lru_cache(maxsize=4096)
def _belief(curve: Curve, max_nodes: int) -> _Belief:
    """Return rates and their relative standard deviation by nodes, read-only."""
    if curve.evidence:
        return _posterior_belief(curve.evidence, curve.prior, max_nodes)
    return _prior_belief(curve.prior, curve.reference_rate, max_nodes)


def _prior_belief(prior: PriorSettings, reference_rate: float, max_nodes: int) -> _Belief:
    variance = prior.rate_sd**2 + prior.residual_sd**2 * _doublings(max_nodes)
    speedups = np.exp(_shapes(max_nodes))
    return _averaged(_normalised(_log_prior(prior)), reference_rate * speedups, variance)


def _posterior_belief(
    evidence: tuple[Evidence, ...], prior: PriorSettings, max_nodes: int
) -> _Belief:
    """Average universal kriging over the step-time models, weighed by their likelihood."""
    at = np.array([e.nodes for e in evidence]) - 1
    log_rates = np.array([e.log_rate for e in evidence])
    limit = max(max_nodes, int(at[-1]) + 1)
    doublings = _doublings(limit)
    shapes = _shapes(limit)

    residual = prior.residual_sd**2
    covariance = residual * np.minimum.outer(doublings[at], doublings[at])
    covariance += np.diag([e.noise for e in evidence])
    precision = np.linalg.inv(covariance)
    total = precision.sum()

    # (num_models, num_observations): what each model leaves unexplained after its best speed.
    errors = log_rates - shapes[:, at]
    speeds = errors @ precision.sum(axis=0) / total
    errors -= speeds[:, None]
    explained = errors @ precision
    weights = _normalised(_log_prior(prior) - 0.5 * (explained * errors).sum(axis=1))
    # Most models are out of the question: their share is below the rounding of the others'.
    likely = np.flatnonzero(weights > _LEAST_WEIGHT)
    weights, speeds, explained = weights[likely], speeds[likely], explained[likely]

    # (num_observations, max_nodes): covariance of each observation with each scale.
    cross = residual * np.minimum.outer(doublings[at], doublings[:max_nodes])
    log_means = shapes[likely, :max_nodes] + speeds[:, None] + explained @ cross
    kriged = precision @ cross
    variance = (
        residual * doublings[:max_nodes]
        - (cross * kriged).sum(axis=0)
        + (1 - kriged.sum(axis=0)) ** 2 / total
    )
    return _averaged(weights, np.exp(log_means), np.maximum(variance, 0.0))


def _averaged(weights: _Floats, rates: _Floats, variance: _Floats) -> _Belief:
    """Average rates `(num_models, max_nodes)`; `variance` is what they have in common."""
    mean = weights @ rates
    spread = weights @ (rates / mean - 1) ** 2
    return _read_only(mean), _read_only(np.sqrt(variance + spread))


def _read_only(by_nodes: _Floats) -> _Floats:
    """Put the 0 of no nodes in front of an array that starts at one node."""
    padded = np.concatenate(([0.0], by_nodes))
    padded.flags.writeable = False
    return padded


@lru_cache(maxsize=16)
def _doublings(max_nodes: int) -> _Floats:
    nodes: _Floats = np.arange(1.0, max_nodes + 1)
    return np.log2(nodes)


@lru_cache(maxsize=16)
def _shapes(max_nodes: int) -> _Floats:
    """Return log speed-up by step-time model and nodes, shape `(num_models, max_nodes)`."""
    nodes = np.arange(1.0, max_nodes + 1)
    overhead_there = _SLOPE_NODES**_SLOPES - 1
    overheads = [
        np.outer(overhead_there / _grown(_SLOPE_NODES, p), _grown(nodes, p)) for p in _GROWTHS
    ]
    log_speedups: _Floats = np.log(nodes / (1 + np.concatenate(overheads)))
    return log_speedups


def _grown(nodes: float | _Floats, growth: float) -> _Floats:
    """Return (n**p - 1) / p, which is the logarithm at p = 0."""
    grown = np.log(nodes) if growth == 0 else (np.power(nodes, growth) - 1) / growth
    return np.asarray(grown, dtype=np.float64)


@lru_cache(maxsize=16)
def _log_prior(prior: PriorSettings) -> _Floats:
    """Return log weights of the step-time models, not normalised, shape `(num_models,)`."""
    shape = (prior.efficiency_slope / prior.efficiency_slope_sd) ** 2
    scale = prior.efficiency_slope_sd**2 / prior.efficiency_slope
    log_density: _Floats = (shape - 1) * np.log(_SLOPES) - _SLOPES / scale
    return np.concatenate([log_density + math.log(weight) for weight in _GROWTHS.values()])


def _normalised(log_weights: _Floats) -> _Floats:
    weights: _Floats = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    return weights
