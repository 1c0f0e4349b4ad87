"""Measure the throughput of steady-state steps, for the controller to learn from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """What was measured since the last report."""

    steps: int
    samples_per_s: float
    #: Of a single step's samples/s.
    variance: float
    loss: float | None


class Meter:
    """Collect step times; steps right after a switch are no measurement."""

    def __init__(self, warmup_steps: int) -> None:
        self._warmup_steps = warmup_steps
        self._left_out = warmup_steps
        self._clear()

    def _clear(self) -> None:
        self._rates: list[float] = []
        self._samples = 0
        self._took_s = 0.0
        self._losses: list[float] = []

    def switched(self) -> None:
        """Begin anew: the number of workers has changed."""
        self._left_out = self._warmup_steps
        self._clear()

    def add(self, samples: int, took_s: float, loss: float | None) -> None:
        """Take in a committed step of all workers."""
        if loss is not None:
            self._losses.append(loss)
        if self._left_out:
            self._left_out -= 1
            return
        self._rates.append(samples / took_s)
        self._samples += samples
        self._took_s += took_s

    def take(self) -> Window:
        """Return the window and begin the next."""
        count = len(self._rates)
        mean = self._samples / self._took_s if count else 0.0
        spread = sum((rate - mean) ** 2 for rate in self._rates)
        window = Window(
            steps=count,
            samples_per_s=mean,
            variance=spread / (count - 1) if count > 1 else 0.0,
            loss=sum(self._losses) / len(self._losses) if self._losses else None,
        )
        self._clear()
        return window
