"""Figures as SVG that is a part of a page: it takes the page's font and its text colour."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

#: Okabe and Ito's palette, told apart with any colour vision, without black and with a blue that
#: can be seen on a dark page.
COLOURS = ("#1f83c4", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a900")
OTHERS_COLOUR = "#9a9a9a"
#: Stands for the page's text colour until the SVG is written.
INK = "#010203"
#: Of a figure as wide as the page.
WIDTH_IN = 9.6
#: 50,000 and 0.25 along an axis.
PLAIN_NUMBERS = "{x:,.10g}"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "malletrain",
    # A dollar sign in a name is a dollar sign.
    "text.parse_math": False,
    "font.size": 10.0,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "legend.frameon": False,
}


def svg(build: Callable[[], Figure], name: str) -> str:
    """Draw what `build` returns; `name` makes its ids the only ones of their kind in a page."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # The letters are the browser's: those that matplotlib's font lacks are none of our matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        buffer = io.StringIO()
        build().savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inlined(buffer.getvalue(), name)


def small(draw: Callable[[Axes], None], name: str) -> str:
    """Draw one of several figures that stand side by side."""

    def build() -> Figure:
        figure = Figure(figsize=(5.2, 3.0), layout="constrained")
        draw(figure.subplots())
        return figure

    return svg(build, name)


def legend_above(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, borderaxespad=0.2)


def short(name: str) -> str:
    """Cut a name of a user's making to what a legend has room for."""
    shown = name if len(name) <= 28 else f"{name[:27]}\N{HORIZONTAL ELLIPSIS}"
    # Matplotlib leaves labels that begin with an underscore out of legends.
    return f"\N{ZERO WIDTH SPACE}{shown}" if shown.startswith("_") else shown


def _inlined(drawn: str, name: str) -> str:
    """Make the SVG a part of a page: its ids unique, its size and text the page's."""
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', drawn
    )
    drawn = re.sub(r'\bid="', f'id="{name}-', drawn)
    drawn = re.sub(r'xlink:href="#', f'href="#{name}-', drawn)
    drawn = re.sub(r"url\(#", f"url(#{name}-", drawn)
    return drawn.replace(INK, "currentColor").strip()
