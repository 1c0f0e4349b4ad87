"""Go on in a new process image, where NCCL will not let go of a dead group.

Aborting a communicator has open bugs, and a process with a stuck one can neither train nor leave.
So the worker keeps its state in shared memory and executes its script anew under the same pid: to
its agent it is the same worker, which connects again; to its job a member that needs no joiner's
warm-up and no checkpoint. What is announced in the seconds that this takes goes unheard: a second
change within them ends in the controller's deadline for a switch.

Tested on the CPU with a group that refuses to be released; never yet with NCCL itself.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from malletrain.train.ending import flush_output
from malletrain.train.state import Snapshot, TrainingState
from malletrain.wire import PrepareGroup, ToWorker, decode, encode

REVIVED_ENV = "MALLETRAIN_REVIVED_FROM"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a file of a name that nobody can guess


@dataclass(frozen=True, slots=True)
class FormerLife:
    """What the process was before it executed its script anew."""

    snapshot: Snapshot
    #: As `TrainingState.generation`.
    generation: int
    #: The generation that it was told to go to.
    announced: PrepareGroup


def revive(state: TrainingState, announced: PrepareGroup) -> NoReturn:
    """Keep the state and execute the script anew."""
    directory = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    descriptor, path = tempfile.mkstemp(prefix="malletrain-", dir=directory)
    snapshot = state.snapshot()
    kept = {
        "header": snapshot.header,
        "tensors": [tensor.cpu() for tensor in snapshot.tensors],
        "generation": state.generation,
        "announced": encode(announced),
    }
    with os.fdopen(descriptor, "wb") as file:
        torch.save(kept, file)
    os.environ[REVIVED_ENV] = path
    flush_output()
    os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - a list, never a shell


def recall(environment: MutableMapping[str, str]) -> FormerLife | None:
    """Return what `revive` kept, once; None in a first life."""
    path = environment.pop(REVIVED_ENV, None)
    if path is None:
        return None
    kept = torch.load(path, weights_only=True)
    Path(path).unlink()
    return FormerLife(
        snapshot=Snapshot(kept["header"], tuple(kept["tensors"])),
        generation=kept["generation"],
        announced=decode(kept["announced"], ToWorker),
    )
