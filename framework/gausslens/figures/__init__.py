"""Figures as data: what a report section returns. The page, notebooks and PNG files draw them.

A section says what is to be seen, never how; it returns no HTML.
"""

from .from_results import averaged as averaged
from .from_results import head_map as head_map
from .from_results import null_maps as null_maps
from .from_results import pooled_over as pooled_over
from .kinds import BadFigure as BadFigure
from .kinds import Cell as Cell
from .kinds import Dial as Dial
from .kinds import Figure as Figure
from .kinds import Heatmap as Heatmap
from .kinds import Line as Line
from .kinds import Lines as Lines
from .kinds import Scatter as Scatter
from .kinds import Source as Source
from .kinds import Spectrum as Spectrum
from .kinds import Table as Table
from .kinds import Text as Text
from .kinds import Texts as Texts
from .kinds import TokenMap as TokenMap
