"""`python -m malletrain.cli` is `malletrain`."""

from __future__ import annotations

from malletrain.cli.main import app

app(prog_name="malletrain")
