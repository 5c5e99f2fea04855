"""What the comparisons of a run say together: which statistics depart, which null explains them, and one sentence."""

from .columns import rung_columns, with_verdicts
from .explanations import Explanation, explanations, first_nulls
from .onsets import LATER, NEVER, PASSES, START, Onset, onset_sentences, onsets, whole
from .selection import LEVEL, Comparisons, Statistic, prompts_half_width, statistics
from .sentence import named_null, sentences, what_twins_are

__all__ = [
    "LATER",
    "LEVEL",
    "NEVER",
    "PASSES",
    "START",
    "Comparisons",
    "Explanation",
    "Onset",
    "Statistic",
    "explanations",
    "first_nulls",
    "named_null",
    "onset_sentences",
    "onsets",
    "prompts_half_width",
    "rung_columns",
    "sentences",
    "statistics",
    "what_twins_are",
    "whole",
    "with_verdicts",
]
