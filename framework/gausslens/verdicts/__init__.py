"""What the comparisons of a run say together: which statistics depart, which null explains them, and one sentence."""

from .columns import rung_columns, with_verdicts
from .explanations import Explanation, explanations, first_nulls
from .selection import LEVEL, Comparisons, Statistic, prompts_half_width, statistics
from .sentence import sentences

__all__ = [
    "LEVEL",
    "Comparisons",
    "Explanation",
    "Statistic",
    "explanations",
    "first_nulls",
    "prompts_half_width",
    "rung_columns",
    "sentences",
    "statistics",
    "with_verdicts",
]
