from __future__ import annotations

import pytest

from malletrain.sim.recorder import Recorder


def test_bins_hold_the_means_of_what_lasted_in_them() -> None:
    recorder = Recorder(["hpo", "nas", "unseen"])
    recorder.offered(100.0, 436.0)
    recorder.offered(100.5, 102.0)
    recorder.trained(100.0, 102.5, 2, 10.0, 0)
    recorder.trained(101.0, 102.0, 3, 0.0, 1)
    recorder.undone(101.25, 4.0)
    recorder.charged(102.75, 7.0)
    series = recorder.series(100.0, 436.0)  # 336 bins of 1 s
    assert (series.start_s, series.bin_s) == (100.0, 1.0)
    assert series.offered_nodes[:4] == (1.5, 2.0, 1.0, 1.0)
    assert series.nodes_by_class.keys() == {"hpo", "nas"}
    assert series.nodes_by_class["hpo"][:4] == (2.0, 2.0, 1.0, 0.0)
    assert series.nodes_by_class["nas"][:4] == (0.0, 3.0, 0.0, 0.0)
    assert series.samples_per_s[:4] == (10.0, 10.0, -2.0, 0.0)
    assert series.goodput_samples_per_s[:4] == (10.0, 6.0, -2.0, 0.0)
    assert set(series.samples_per_s[4:]) == {0.0}


def test_the_totals_are_of_everything_however_short() -> None:
    recorder = Recorder(["one"])
    for number in range(1000):
        recorder.trained(number * 0.1, number * 0.1 + 0.05, 1, 100.0, 0)
        recorder.offered(number * 0.1, number * 0.1 + 0.07)
    recorder.undone(3.0, 40.0)
    recorder.charged(5.0, 10.0)
    assert recorder.gross_samples == pytest.approx(5000.0)
    assert recorder.done_samples == pytest.approx(4950.0)
    assert recorder.offered_node_s == pytest.approx(70.0)
    series = recorder.series(0.0, 100.0)
    assert sum(series.goodput_samples_per_s) * series.bin_s == pytest.approx(4950.0, rel=1e-5)
    assert sum(series.offered_nodes) * series.bin_s == pytest.approx(70.0, rel=1e-5)
