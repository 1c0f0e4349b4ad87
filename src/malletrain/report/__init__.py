"""One self-contained page about a run, read from its journal."""

from malletrain.report.data import Comparison, LossPoints, RunReport, gather
from malletrain.report.page import write_report

__all__ = ["Comparison", "LossPoints", "RunReport", "gather", "write_report"]
