"""Maps of cosine and of attention of the first prompts, the one beside the other, as bilinear.angles keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gausslens import Runner, Tokens

Floats: TypeAlias = NDArray[np.float64]
# Positions of a prompt that a map has.
MOST = 128
_DIMS = ("map", "layer", "query", "key")


class Beside:
    """Keeps, of the first prompts, the cosine of each pair of tokens and the attention between them, layer by layer."""

    def __init__(self, prompts: Tokens, maps: int) -> None:
        self.prompts = prompts
        self.longest = [min(length, MOST) for length in prompts.lengths[:maps]]
        self.seen: dict[tuple[int, int], tuple[NDArray[Any], NDArray[Any]]] = {}

    def add(self, prompt: int, layer: int, cosine: Floats, pattern: NDArray[Any], visible: NDArray[np.bool_]) -> None:
        """Of one prompt at one layer [query, key]; what a query cannot see is left empty in both."""
        if prompt >= len(self.longest):
            return
        n = self.longest[prompt]
        attended = pattern[:, :n, :n].mean(axis=0)
        made = (np.where(visible[:n, :n], values, np.nan) for values in (cosine[:n, :n], attended))
        one, other = (values.astype(np.float32) for values in made)
        self.seen[prompt, layer] = one, other

    def variables(self, layers: Sequence[int], runner: Runner) -> dict[str, Any]:
        """Variables [map, layer, query, key], padded with NaN, and the text of the tokens [map, query]."""
        if not self.longest:
            return {}
        n = max(self.longest)
        maps = np.full((2, len(self.longest), len(layers), n, n), np.nan, dtype=np.float32)
        text = np.full((len(self.longest), n), "", dtype=object)
        for prompt, length in enumerate(self.longest):
            text[prompt, :length] = [runner.decode([int(i)]) for i in self.prompts.ids[prompt][:length]]
            for place, layer in enumerate(layers):
                for which, values in enumerate(self.seen.get((prompt, layer), ())):
                    maps[which, prompt, place, :length, :length] = values
        said = ("cosine between the vectors of query and key", "attention, mean over heads")
        made = {
            name: (_DIMS, values, {"long_name": words, "units": "1", "against": 0})
            for name, values, words in zip(("cosine_map", "attention_map"), maps, said, strict=True)
        }
        return made | {"map_text": (("map", "query"), text, {"long_name": "token", "units": "1"})}
