"""Put back what a step changed before it turned out to be lost: the model's buffers.

Parameters and optimizer change only once a step is whole, and random generators are seeded at
every step; but batch-norm statistics move in the forward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BufferKeeper:
    """Keep a copy of the buffers as they were at the start of the step."""

    def __init__(self, model: nn.Module) -> None:
        self._buffers = list(model.buffers())
        self._copies: list[Tensor] = []
        self._versions: list[int] = []

    def keep(self) -> None:
        """Take the present values as those to go back to; unchanged buffers cost nothing."""
        if not self._copies:
            self._copies = [buffer.detach().clone() for buffer in self._buffers]
            self._versions = [_version(buffer) for buffer in self._buffers]
            return
        for number, buffer in enumerate(self._buffers):
            version = _version(buffer)
            if version != self._versions[number]:
                self._copies[number].copy_(buffer.detach())
                self._versions[number] = version

    def restore(self) -> None:
        """Go back to the kept values."""
        with torch.no_grad():
            for buffer, copy in zip(self._buffers, self._copies, strict=True):
                buffer.copy_(copy)


def _version(buffer: Tensor) -> int:
    return buffer._version  # noqa: SLF001 - torch's counter of in-place changes has no public name
