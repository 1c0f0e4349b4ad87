from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from malletrain.draws import exponential, normal, uniform

COUNT = 20_000


def test_a_draw_is_the_same_in_every_process_and_version() -> None:
    assert uniform(7, "crash", "node-17", 3) == 0.737561032639051
    assert uniform(7) == 0.795761322839521
    assert normal(7, "noise", "job-3", 2) == -0.7823837477436298
    assert exponential(7, 60.0, "gap", 5) == 120.21923180967667


def test_what_was_drawn_before_changes_nothing() -> None:
    keys = [("noise", f"job-{job}", generation) for job in range(30) for generation in range(30)]
    drawn = {key: uniform(3, *key) for key in keys}
    random.Random(1).shuffle(keys)
    for key in keys:
        normal(3, "something", "else", *key)
        assert uniform(3, *key) == drawn[key]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1, "crash"), (2, "crash")),
        ((1, "crash", 1), (1, "crash", 2)),
        ((1, "crash", 1, 2), (1, "crash", 2, 1)),
        ((1, 2), (1, "2")),
        ((1, "ab", "c"), (1, "a", "bc")),
        ((1,), (1, 0)),
        ((1, 0), (0, 1)),
        ((1, 1), (1, -1)),
    ],
)
def test_other_seeds_and_other_keys_draw_otherwise(
    a: tuple[int, *tuple[int | str, ...]], b: tuple[int, *tuple[int | str, ...]]
) -> None:
    assert uniform(*a) != uniform(*b)


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_numbers_are_distributed_as_named(seed: int) -> None:
    uniforms = [uniform(seed, "u", i) for i in range(COUNT)]
    assert min(uniforms) >= 0
    assert max(uniforms) < 1
    assert stats.kstest(uniforms, "uniform").pvalue > 1e-3
    normals = [normal(seed, "n", i) for i in range(COUNT)]
    assert stats.kstest(normals, "norm").pvalue > 1e-3
    waits = [exponential(seed, 5.0, "e", i) for i in range(COUNT)]
    assert min(waits) >= 0
    assert stats.kstest(waits, "expon", args=(0, 5.0)).pvalue > 1e-3


def test_neighbouring_seeds_share_no_draws() -> None:
    drawn = [uniform(seed, i) for seed in range(100) for i in range(100)]
    assert len(set(drawn)) == len(drawn)


def test_consecutive_seeds_are_as_good_as_consecutive_keys() -> None:
    assert stats.kstest([uniform(seed, "x") for seed in range(COUNT)], "uniform").pvalue > 1e-3


@pytest.mark.parametrize("step", [1, 2, 1 << 20, 1 << 40])
def test_neighbouring_keys_are_uncorrelated(step: int) -> None:
    grid = np.array([[uniform(5, "x", a * step, b * step) for a in range(100)] for b in range(100)])
    for shifted in (grid[1:] * grid[:-1], grid[:, 1:] * grid[:, :-1]):
        # The mean of a product of independent uniforms is 1/4, its variance 7/144.
        assert abs(shifted.mean() - 0.25) < 4 * math.sqrt(7 / 144 / shifted.size)
    # All 10,000 lie in different places: as many cells of a fine histogram as chance would fill.
    cells = len({int(value * 10_000) for value in grid.flat})
    assert abs(cells - 10_000 * (1 - math.exp(-1))) < 300


def test_the_normal_has_no_infinite_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    for bits in (0, 2**64 - 1):
        monkeypatch.setattr("malletrain.draws._bits", lambda _seed, _key, bits=bits: bits)
        assert math.isfinite(normal(1))
        assert math.isfinite(exponential(1, 1.0))
        assert 0 <= uniform(1) < 1
