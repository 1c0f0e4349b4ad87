"""A job on this machine without controller and agents: for tests and benchmarks.

`LocalJob` plays the part of the controller (it drives the real `RescaleFlow`) and of every node's
agent (it starts the workers and speaks the real protocol with them), so that the training library
can be put through any sequence of rescales and deaths in one process.
"""

from __future__ import annotations

from malletrain.testing.job import LocalJob, NeverHappenedError
from malletrain.testing.nodes import WarmParent

__all__ = ["LocalJob", "NeverHappenedError", "WarmParent"]
