from __future__ import annotations

import pytest
from scipy import stats

from malletrain.report.gains import Gain, gain, student_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 10, 29, 30, 500])
def test_the_quantile_is_students(freedom: int) -> None:
    assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-12)


def test_the_interval_is_that_of_a_paired_test() -> None:
    main, other = [110.0, 126.0, 129.0, 104.0], [100.0, 105.0, 111.0, 100.0]
    relative = [ours / theirs - 1 for ours, theirs in zip(main, other, strict=True)]
    expected = stats.ttest_1samp(relative, 0).confidence_interval(0.95)
    found = gain(main, other)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(sum(relative) / 4)
    assert found.n == 4


def test_pairing_takes_out_the_chance_that_both_share() -> None:
    found = gain([11.0, 22.0, 44.0], [10.0, 20.0, 40.0])
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))


def test_one_pair_has_no_interval() -> None:
    assert gain([3.0], [2.0]) == Gain(0.5, None, None, 1)


def test_nothing_can_be_gained_over_nothing() -> None:
    assert gain([3.0, 4.0], [2.0, 0.0]) is None


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        gain([], [])
    with pytest.raises(ValueError, match="zip"):
        gain([1.0, 2.0], [1.0])
