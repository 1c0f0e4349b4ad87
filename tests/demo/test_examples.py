"""The demo's scripts as anyone may run them: alone, and as fast as they can."""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from demo.jobs import EXAMPLES, JOBS

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

EMULATED = [job.script for job in JOBS if job.name != "digits-mlp"]


@pytest.fixture(autouse=True)
def _as_a_script(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("EMULATED_DEVICE", "off")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def _script(name: str) -> ModuleType:
    return importlib.import_module(Path(name).stem)


@pytest.mark.parametrize("name", [job.script for job in JOBS])
def test_a_script_trains_alone(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = []
    for epochs in (0, 2):
        script = _script(name)
        monkeypatch.setattr(script, "EPOCHS", epochs)
        script.main()
        printed = capsys.readouterr().out
        losses.append(float(re.findall(r"^final loss (\S+)$", printed, re.MULTILINE)[0]))
    untrained, trained = losses
    assert trained < untrained


@pytest.mark.parametrize("name", EMULATED)
def test_the_stated_flops_are_those_that_pytorch_counts(name: str) -> None:
    counter = pytest.importorskip("torch.utils.flop_counter")
    script = _script(name)
    model = script.make_model()
    rows = script.make_data().tensors[0][:16]
    with counter.FlopCounterMode(display=False) as flops:
        model(rows).sum().backward()
    assert pytest.approx(flops.get_total_flops() / 16, rel=0.01) == script.FLOPS_PER_ROW


def test_a_step_takes_what_device_and_link_need() -> None:
    module = _script("emulated_device.py")
    device = module.EmulatedDevice(flops_per_row=2.5e6, gradient_bytes=600_000)
    assert device.step_s(rows=100, workers=1) == pytest.approx(1.0)
    # Half the rows, the gradients once over the link, two hops.
    assert device.step_s(rows=50, workers=2) == pytest.approx(0.5 + 0.1 + 0.002)
    assert device.rates(100, most_workers=2) == pytest.approx([0.0, 100.0, 166.11], abs=0.01)


def test_a_step_waits_until_its_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMULATED_DEVICE")
    device = _script("emulated_device.py").EmulatedDevice(flops_per_row=2.5e6, gradient_bytes=0)
    started_at_s = time.monotonic()
    with device.step(rows=5, workers=1):
        pass
    assert time.monotonic() - started_at_s >= 0.05


def test_the_jobs_scale_differently() -> None:
    sys.modules.pop("emulated_device", None)
    module = _script("emulated_device.py")

    def speedup(name: str) -> float:
        script = _script(name)
        device = module.EmulatedDevice.for_model(script.make_model(), script.FLOPS_PER_ROW)
        rates = device.rates(script.GLOBAL_BATCH)
        return float(rates[8] / rates[1])

    heavy, text, cnn, wide = (
        speedup(f"{name}.py")
        for name in ("compute_heavy", "char_transformer", "digits_cnn", "wide_mlp")
    )
    assert heavy > 6
    assert 4 < cnn < text < heavy
    assert wide < 2
