"""Read scikit-learn's handwritten digits without importing scikit-learn.

The import takes a second or two, which every worker that joins a job would have to wait for.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def load_digits() -> tuple[Tensor, Tensor]:
    """Return pixels between 0 and 1, shape (1797, 64), and labels, shape (1797,)."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit("the digits come with scikit-learn: pip install scikit-learn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    rows = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    return rows[:, :-1] / 16, rows[:, -1].long()
