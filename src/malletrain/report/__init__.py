"""Self-contained pages: about a run, read from its journal, and about a replay.

`page`, `plots` and all that draw need the extra `report`; the rest does without.
"""

from malletrain.report.data import Comparison, LossPoints, RunReport, gather

__all__ = ["Comparison", "LossPoints", "RunReport", "gather"]
