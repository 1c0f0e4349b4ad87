"""What happened over time, kept as compact columns and drawn together into bins at the end."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from malletrain.sim.results import Series

_NUM_BINS = 336

_Floats = NDArray[np.float64]


class Recorder:
    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = classes
        #: Stretches of a job's time at one speed: five columns, see `trained`.
        self._from_s, self._to_s = array("d"), array("d")
        self._nodes, self._samples_per_s = array("d"), array("d")
        self._class = array("l")
        #: Samples that were taken away again at a time; and those of them that are done twice.
        self._taken_at_s, self._taken = array("d"), array("d")
        self._undone_at_s, self._undone = array("d"), array("d")
        #: Stretches of a node's time with us.
        self._node_from_s, self._node_to_s = array("d"), array("d")

    def trained(
        self, from_s: float, to_s: float, nodes: int, samples_per_s: float, class_index: int
    ) -> None:
        """Note a stretch of a job's time in which it had so many nodes and was so fast."""
        self._from_s.append(from_s)
        self._to_s.append(to_s)
        self._nodes.append(nodes)
        self._samples_per_s.append(samples_per_s)
        self._class.append(class_index)

    def charged(self, at_s: float, samples: float) -> None:
        self._taken_at_s.append(at_s)
        self._taken.append(samples)

    def undone(self, at_s: float, samples: float) -> None:
        self._undone_at_s.append(at_s)
        self._undone.append(samples)

    def offered(self, from_s: float, to_s: float) -> None:
        """Note that a node was ours from then to then."""
        self._node_from_s.append(from_s)
        self._node_to_s.append(to_s)

    @property
    def offered_node_s(self) -> float:
        return float(np.sum(np.array(self._node_to_s) - np.array(self._node_from_s)))

    @property
    def done_samples(self) -> float:
        """All samples of all jobs, by their stretches and what was taken away."""
        return self.gross_samples - float(np.sum(self._taken)) - float(np.sum(self._undone))

    @property
    def gross_samples(self) -> float:
        """All samples that were ever trained."""
        lasted = np.array(self._to_s) - np.array(self._from_s)
        return float(np.dot(lasted, np.array(self._samples_per_s)))

    def series(self, start_s: float, end_s: float) -> Series:
        """Return means over bins of equal width from start to end."""
        edges = np.linspace(start_s, end_s, _NUM_BINS + 1)
        width_s = float(edges[1] - edges[0])
        from_s, to_s = np.array(self._from_s), np.array(self._to_s)
        nodes, speed = np.array(self._nodes), np.array(self._samples_per_s)
        classes = np.array(self._class)
        taken = _sums(np.array(self._taken_at_s), np.array(self._taken), edges)
        undone = _sums(np.array(self._undone_at_s), np.array(self._undone), edges)
        throughput = _means(from_s, to_s, speed, edges) - taken / width_s
        return Series(
            start_s=start_s,
            bin_s=width_s,
            offered_nodes=_tuple(
                _means(np.array(self._node_from_s), np.array(self._node_to_s), None, edges)
            ),
            nodes_by_class={
                name: _tuple(_means(from_s[is_of], to_s[is_of], nodes[is_of], edges))
                for index, name in enumerate(self._classes)
                if (is_of := classes == index).any()
            },
            samples_per_s=_tuple(throughput),
            goodput_samples_per_s=_tuple(throughput - undone / width_s),
        )


def _means(from_s: _Floats, to_s: _Floats, height: _Floats | None, edges: _Floats) -> _Floats:
    """Return the mean over each bin of the sum of steps that last from ... to.

    By the integral up to each edge: a step contributes its height times how long it has lasted.
    """
    heights = np.ones_like(from_s) if height is None else height
    integral = _lasted(from_s, heights, edges) - _lasted(to_s, heights, edges)
    means: _Floats = np.diff(integral) / np.diff(edges)
    return means


def _lasted(at_s: _Floats, heights: _Floats, edges: _Floats) -> _Floats:
    """Return the sum of height * max(edge - at, 0) for each edge."""
    order = np.argsort(at_s, kind="stable")
    at_s, heights = at_s[order], heights[order]
    heights_before = np.concatenate([[0.0], np.cumsum(heights)])
    moments_before = np.concatenate([[0.0], np.cumsum(heights * at_s)])
    num_before = np.searchsorted(at_s, edges, side="right")
    lasted: _Floats = edges * heights_before[num_before] - moments_before[num_before]
    return lasted


def _sums(at_s: _Floats, amounts: _Floats, edges: _Floats) -> _Floats:
    sums, _ = np.histogram(at_s, bins=edges, weights=amounts)
    return np.asarray(sums, dtype=np.float64)


def _tuple(values: _Floats) -> tuple[float, ...]:
    """Round off what is only the cancellation of large sums."""
    least = 1e-9 * float(np.max(np.abs(values)))
    return tuple(float(f"{value:.6g}") if abs(value) > least else 0.0 for value in values)
