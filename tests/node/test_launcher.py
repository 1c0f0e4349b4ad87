"""How an agent ends its own zygote."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from malletrain.node.launcher import ZygoteLauncher
from malletrain.node.zygote import Spawn


def test_nobody_waits_for_a_zygote_that_still_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endless.py").write_text("import signal\nsignal.pause()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    spawn = Spawn(
        worker_id="w",
        command=(sys.executable, "-c", ""),
        cwd=str(tmp_path),
        env={},
        log_path=str(tmp_path / "worker.log"),
    )

    async def asked_and_ended() -> None:
        launcher = ZygoteLauncher(None, ["endless"])
        await launcher.start(lambda _worker_id, _status: None)
        await launcher.spawn(spawn)
        async with asyncio.timeout(20):
            await launcher.close()

    asyncio.run(asked_and_ended())
