"""Runs a test's coroutine, with an end to its patience."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

PATIENCE_S = 10.0


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story

    asyncio.run(bounded())
