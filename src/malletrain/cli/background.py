"""Start a controller that outlives the command which started it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from malletrain.cli.client import connect
from malletrain.errors import NoControllerError, StateDirError, UserError
from malletrain.live.state_dir import Endpoint, StateDir

_ANSWERS_WITHIN_S = 30.0
_POLL_EVERY_S = 0.05


def start(state_dir: StateDir, arguments: Sequence[str]) -> Endpoint:
    """Run `malletrain up ARGUMENTS` in a session of its own; return once it answers.

    Raises:
        UserError: it ended at once, with its own last words, or it does not answer.
        StateDirError: its log cannot be written.
    """
    log_path = state_dir.path / "controller.log"
    try:
        state_dir.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = log_path.open("ab")
    except OSError as error:
        raise StateDirError(f"cannot write {log_path}: {error.strerror}") from error
    with log:
        begins_at = log.tell()
        child = subprocess.Popen(
            # -P: no file of the working directory is mistaken for a module.
            [sys.executable, "-P", "-m", "malletrain.cli", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    ends_at_s = time.monotonic() + _ANSWERS_WITHIN_S
    while child.poll() is None:
        endpoint = _answering(state_dir, child.pid)
        if endpoint is not None:
            return endpoint
        if time.monotonic() > ends_at_s:
            child.terminate()
            raise UserError(
                f"the controller did not answer within {_ANSWERS_WITHIN_S:.0f} s and was ended: "
                f"see {log_path}"
            )
        time.sleep(_POLL_EVERY_S)
    raise UserError(_last_words(log_path, begins_at) or f"the controller ended: see {log_path}")


def _answering(state_dir: StateDir, pid: int) -> Endpoint | None:
    endpoint = state_dir.endpoint()
    if endpoint is None or endpoint.pid != pid:
        return None
    try:
        with connect(state_dir) as client:
            client.nodes()
    except NoControllerError:
        return None
    return endpoint


def _last_words(log_path: Path, begins_at: int) -> str:
    with log_path.open("rb") as log:
        log.seek(begins_at)
        lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("malletrain: ") if lines else ""
