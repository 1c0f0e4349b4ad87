"""The jobs that the demo submits: bounds, and nothing about how they scale."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass(frozen=True, slots=True)
class DemoJob:
    name: str
    script: str
    max_nodes: int
    min_nodes: int = 1

    @property
    def path(self) -> Path:
        return EXAMPLES / self.script


JOBS = (
    DemoJob("compute-heavy", "compute_heavy.py", max_nodes=8),
    DemoJob("char-transformer", "char_transformer.py", max_nodes=6),
    DemoJob("digits-cnn", "digits_cnn.py", max_nodes=4),
    DemoJob("wide-mlp", "wide_mlp.py", max_nodes=4),
    DemoJob("digits-mlp", "digits_mlp.py", max_nodes=2),
)
