"""Save attention of a model as plain arrays: how matrices.npz, which matrices.yaml reads, was made.

python examples/save_maps.py matrices.npz

Whoever has maps from elsewhere writes them in the same way: one array [prompt, layer, head, query, key] called pattern,
whatever else there is beside it, how many tokens of each prompt are real, and which of these are text (BOS is not).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import gausslens

TEXTS = [
    "A small animal that lives in the water.",
    "The end of the day, and the end of the road.",
    "A dog is an animal. A cat is an animal.",
    "To make a thing of wood.",
]


def captured(model: str = "builtin:clue-tiny", texts: list[str] = TEXTS) -> dict[str, np.ndarray]:
    """Patterns and values of a model on texts, half precision, with the lengths, the tokens and which are text."""
    study: dict[str, Any] = {
        "model": {"path": model},
        "prompts": {"source": "text", "text": texts},
        "analyses": [{"use": "model.capture", "with": {"sites": ["pattern", "v"]}}],
        "report": False,
    }
    with tempfile.TemporaryDirectory() as store:
        data = gausslens.run(study, store=store)["trained", "model.capture"]
        pattern = data["pattern"].transpose("prompt", "layer", "head", "query", "key").values
        v = data["v"].transpose("prompt", "layer", "kv_head", "position", "d_head").values
    tokens = gausslens.load(model).tokens(*texts)
    pieces = [[*each, *[""] * (max(tokens.lengths) - len(each))] for each in tokens.pieces]
    # Behind the end of a shorter prompt the store holds no numbers.
    arrays = {"pattern": np.nan_to_num(pattern).astype(np.float16), "v": np.nan_to_num(v).astype(np.float16)}
    text = tokens.padded(range(len(texts)))[1]
    return arrays | {"lengths": np.array(tokens.lengths), "tokens": np.array(pieces), "text": text}


if __name__ == "__main__":
    arrays: dict[str, Any] = captured()
    np.savez_compressed(Path(sys.argv[1]), **arrays)
