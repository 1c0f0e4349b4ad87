from __future__ import annotations

import math

import msgspec
import pytest

from malletrain.errors import WireError
from malletrain.wire import FromAgent, Progress, Saved, decode, encode

PROGRESS = Progress(
    worker_id="w",
    job_id="j",
    generation=1,
    workers=1,
    step=1,
    epoch=0,
    samples=1.0,
    steps=1,
    samples_per_s=1.0,
    variance=0.0,
)
SAVED = Saved(worker_id="w", job_id="j", generation=1, step=1, samples=1.0, path="/c")


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize(
    ("message", "name"),
    [
        (PROGRESS, "samples"),
        (PROGRESS, "samples_per_s"),
        (PROGRESS, "variance"),
        (SAVED, "samples"),
    ],
)
def test_a_number_that_the_journal_could_not_keep_is_refused(
    message: Progress | Saved, name: str, value: float
) -> None:
    assert decode(encode(message), FromAgent) == message
    with pytest.raises(WireError, match=name):
        decode(encode(msgspec.structs.replace(message, **{name: value})), FromAgent)


def test_a_loss_may_be_anything() -> None:
    astray = msgspec.structs.replace(PROGRESS, loss=math.nan)
    assert math.isnan(decode(encode(astray), FromAgent).loss)
