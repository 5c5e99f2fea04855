"""What the words of the page mean, in plain words; those alone that stand on it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..markup import Markup, element

# In the order in which a reader meets them. A word stands on the page if its pattern is found in what the page says.
_TERMS = (
    ("statistic", "One number that an analysis gives, in all its cells: a value for each layer and head, say."),
    ("cell", "One value of a statistic: that of one layer and head, for instance."),
    (
        "null",
        "What the number would be by chance: the same analysis on twins of the model that share less with it. "
        "Each column of the ladder is one kind of twins.",
    ),
    ("twin", "The same model with some of its weights drawn again at random. Nothing of the model itself is changed."),
    ("draw", "One twin. Several draws tell how far the number varies by chance alone."),
    (
        "depart",
        "A statistic departs where it is further from the null than chance explains: the share of false departures "
        "among those that are called is 5 % (q below 0.05).",
    ),
    (
        "effect",
        "How large a departure is: the difference from the null's mean over the spread between cells. Of a statistic "
        "of one cell it is the ratio less one.",
    ),
    (
        "z",
        "How sure a departure is, and not how large: the difference from the null's mean over the spread of its draws. "
        "A tiny difference has a large z where draws hardly vary.",
    ),
    ("q", "The share of false calls among all that are called at this value or below: the false discovery rate."),
    (
        "prompts",
        "Behind \N{PLUS-MINUS SIGN}: half the 95 % interval over prompts. A claim beyond these prompts needs a "
        "departure larger than it.",
    ),
    (
        "ladder",
        "Nulls in order, each sharing one thing more with the model. The first that gives a number explains it.",
    ),
    ("before", "Twins as the model was before training: they share its architecture alone."),
    ("gains", "Twins that also share the gains of its norms, and its embeddings."),
    ("scale", "Twins whose matrices are Gaussian noise of the same size as the model's."),
    ("entries", "Twins whose matrices hold the same entries, in other places."),
    ("spectrum", "Twins whose matrices have the same singular values, with other vectors."),
    ("seeds", "The same model trained again from other seeds."),
    ("arrangement", "What no null of weights gives: it takes the directions in which the trained weights point."),
    (
        "undecided",
        "These draws and prompts do not tell whether the null gives the number. More draws may: the table of a result "
        "(gausslens show) names how many.",
    ),
    (
        "head",
        "One of the parallel parts of attention in a layer. It looks from each token (the query) at others (the keys).",
    ),
    ("entropy deficit", "How far a head is from looking at all that it can see alike; 0 is even, in nats."),
    ("nat", "The unit of information with natural logarithms: 1 nat is 1.44 bits."),
    ("Marchenko-Pastur", "The law of the singular values of a matrix of pure noise, by its shape alone."),
    (
        "effective rank",
        "How many directions vectors fill: exp of the entropy of their covariance's shares.",
    ),
)


def terms(said: Iterable[str]) -> Markup:
    """A list of the words that stand in ``said``, each with what it means."""
    text = " ".join(said)
    used = [
        (word, meaning)
        for word, meaning in _TERMS
        if re.search(rf"\b{re.escape(word)}(s|ed|ing)?\b", text, re.IGNORECASE)
    ]
    pairs = [part for word, meaning in used for part in (element("dt", word), element("dd", meaning))]
    return element("dl", *pairs, class_="terms")
