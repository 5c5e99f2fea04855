"""Figures as data: what a report section returns. The page, notebooks and PNG files draw them.

    from gausslens.figures import Line, Lines, Source

    def section(results):
        data = results["trained", "gaussian.moments"]
        rank = data["effective_rank"]
        return [
            Lines(
                title="Effective rank by layer",
                caption="How many directions the residual stream fills.",
                sources=(Source("trained", "gaussian.moments", "effective_rank"),),
                units="dimensions",
                x=data["layer"].values,
                x_name="layer",
                series=(Line("trained", rank.values),),
            )
        ]

A section says what is to be seen, never how: the host thins and escapes, and a plugin writes no HTML (what no kind of
figure shows, ``Custom`` draws with a script of the plugin's own, in a frame that can do nothing else). Every figure has
a ``title``, a ``caption`` that says what is seen, the ``sources`` it was made from, and the ``units`` of its values.
Arrays may be anything numpy takes; NaN is a gap. A figure that does not fit together raises BadFigure.

A kind of figure is one module here: a subclass of ``Figure`` that checks its fields and says in the words of
``drawing`` what there is to draw. It is found by its class name, and needs no other line anywhere.
"""

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

from .category_map import CategoryMap as CategoryMap
from .custom import Custom as Custom
from .drawing import Axis as Axis
from .drawing import Cell as Cell
from .drawing import ColourMap as ColourMap
from .drawing import Curve as Curve
from .drawing import Dial as Dial
from .drawing import Dots as Dots
from .drawing import Drawing as Drawing
from .drawing import Level as Level
from .drawing import Passages as Passages
from .drawing import Plot as Plot
from .drawing import Plots as Plots
from .drawing import TableRows as TableRows
from .drawing import Text as Text
from .drawing import View as View
from .figure import BadFigure as BadFigure
from .figure import Figure as Figure
from .figure import Source as Source
from .from_results import averaged as averaged
from .from_results import error_band as error_band
from .from_results import head_curves as head_curves
from .from_results import head_map as head_map
from .from_results import null_maps as null_maps
from .from_results import pooled_over as pooled_over
from .from_results import z_caption as z_caption
from .heatmap import Heatmap as Heatmap
from .lines import Line as Line
from .lines import Lines as Lines
from .panels import Panels as Panels
from .scatter import Scatter as Scatter
from .spectrum import Spectrum as Spectrum
from .table import Table as Table
from .texts import Texts as Texts
from .token_map import TokenMap as TokenMap


@cache
def kinds() -> dict[str, type[Figure]]:
    """Every kind of figure that this package has, by name: the subclasses of Figure that its modules define."""
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    defined = [(value, module) for module in modules for value in vars(module).values() if isinstance(value, type)]
    found = [kind for kind, module in defined if issubclass(kind, Figure) and kind.__module__ == module.__name__]
    return {kind.__name__: kind for kind in sorted(found, key=lambda kind: kind.__name__) if kind is not Figure}


def __getattr__(name: str) -> Any:
    """A kind that has no line above."""
    if not name.startswith("_") and name in kinds():
        return kinds()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
