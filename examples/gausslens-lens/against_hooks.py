"""Hold lens.patching against the same done with plain hooks of torch, cell by cell, on a Llama of transformers.

    python against_hooks.py DIRECTORY --layers 0 14 29

Prints the largest difference for each site, in logits, of all heads and positions of these layers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import gausslens

SITES = ("resid_pre", "mlp_out", "q", "k", "v", "z")
PAIR = {
    "clean": "The capital of France is",
    "corrupted": "The capital of Italy is",
    "answer": " Paris",
    "wrong": " Rome",
}
# The module of a layer that each site is at, and whether it is what that is given or what it returns.
PLACES = {
    "resid_pre": (lambda layer: layer, True),
    "mlp_out": (lambda layer: layer.mlp, False),
    "q": (lambda layer: layer.self_attn.q_proj, False),
    "k": (lambda layer: layer.self_attn.k_proj, False),
    "v": (lambda layer: layer.self_attn.v_proj, False),
    "z": (lambda layer: layer.self_attn.o_proj, True),
}
Change = Callable[[torch.Tensor], torch.Tensor]


def main(argv: Sequence[str] | None = None) -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="DIRECTORY")
    parser.add_argument("--layers", type=int, nargs="+", default=[0])
    chosen = parser.parse_args(argv)
    disable_progress_bar()
    for site, (worst, cells, largest, ours, plain) in compared(chosen.model, chosen.layers).items():
        differs = f"largest difference {worst:.1e}, of changes to {largest:.2f}"
        print(f"{site:9}  {differs}; {cells} cells, {ours:.0f} s, hooks {plain:.0f} s", flush=True)


def compared(
    directory: Path, layers: Sequence[int], pair: dict[str, str] = PAIR, host: Any = None, dtype: str = "float32"
) -> dict[str, tuple[float, int, float, float, float]]:
    """For each site the largest difference, how many cells, the largest change, seconds of ours and of hooks."""
    hooked = Hooked(directory, pair, dtype)
    found = {}
    for site in SITES:
        began = time.perf_counter()
        changes = patched(directory, layers, site, pair, host, dtype)
        between = time.perf_counter()
        plain = hooked.changes(site, layers, changes.shape)
        took = (between - began, time.perf_counter() - between)
        found[site] = (float(np.abs(changes - plain).max()), changes.size, float(np.abs(plain).max()), *took)
    return found


def patched(
    directory: Path, layers: Sequence[int], site: str, pair: dict[str, str], host: Any, dtype: str
) -> np.ndarray:
    """[layer, head, position] or [layer, position], by gausslens."""
    study = {
        "gausslens": 1,
        "name": "against-hooks",
        "model": {"path": str(directory), "dtype": dtype},
        "prompts": {"source": "text", "text": [pair["clean"]]},
        "analyses": [
            {
                "use": "lens.patching",
                "with": {"pairs": [pair], "sites": [site], "each_position": True, "random_sets": 2},
                "layers": list(layers),
            }
        ],
    }
    with tempfile.TemporaryDirectory() as store:
        results = gausslens.run(study, store=store, host=host, shown=False)
        [by_variant] = results.of("lens.patching").values()
        [data] = by_variant.values()
        return np.array(data[f"{site}_change"].values)


class Hooked:
    """The model of transformers, patched by hooks."""

    def __init__(self, directory: Path, pair: dict[str, str], dtype: str) -> None:
        kind = getattr(torch, dtype)
        loaded = AutoModelForCausalLM.from_pretrained(directory, dtype=kind, attn_implementation="eager")
        self.model = loaded.eval().requires_grad_(False)
        tokenizer = AutoTokenizer.from_pretrained(directory)
        clean, corrupted, answered, misled = (
            tokenizer(text, return_tensors="pt")["input_ids"]
            for text in (
                pair["clean"],
                pair["corrupted"],
                pair["clean"] + pair["answer"],
                pair["corrupted"] + pair["wrong"],
            )
        )
        self.clean, self.corrupted = clean, corrupted
        self.answer, self.wrong = int(answered[0, clean.shape[1]]), int(misled[0, clean.shape[1]])

    def metric(self, ids: torch.Tensor) -> torch.Tensor:
        """The logit difference at the last token."""
        last = self.model(ids).logits[0, -1].double()
        return last[self.answer] - last[self.wrong]

    def changes(self, site: str, layers: Sequence[int], shape: tuple[int, ...]) -> np.ndarray:
        """Every cell of a site, patched from the clean run into the corrupted one."""
        found, before = np.zeros(shape), float(self.metric(self.corrupted))
        for at, layer in enumerate(layers):
            seen: list[torch.Tensor] = []
            with self.changing(site, layer, lambda x, seen=seen: seen.append(x.clone()) or x):
                self.metric(self.clean)
            for cell in np.ndindex(*shape[1:]):
                with self.changing(site, layer, _put(seen[0], shape[1] if len(cell) == 2 else 1, cell)):
                    found[(at, *cell)] = float(self.metric(self.corrupted)) - before
        return found

    @contextmanager
    def changing(self, site: str, layer: int, change: Change) -> Iterator[None]:
        """A hook at a site of a layer, while it lasts."""
        place, given = PLACES[site]
        module = place(self.model.model.layers[layer])
        if given:
            hook = module.register_forward_pre_hook(lambda _, args: (change(args[0]), *args[1:]))
        else:
            hook = module.register_forward_hook(lambda _, __, output: change(output))
        try:
            yield
        finally:
            hook.remove()


def _put(source: torch.Tensor, heads: int, cell: tuple[int, ...]) -> Change:
    """The clean tensor of one head at one position in place of what is there."""

    def changed(x: torch.Tensor) -> torch.Tensor:
        head, position = (0, *cell)[-2:]
        new = x.clone().unflatten(-1, (heads, -1))
        new[:, position, head] = source.unflatten(-1, (heads, -1))[:, position, head]
        return new.flatten(-2)

    return changed


if __name__ == "__main__":
    main()
