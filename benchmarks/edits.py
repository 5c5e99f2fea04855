"""What a random twin costs: making it and undoing it, beside one forward pass over 512 tokens; and its memory.

Ratios of minima over interleaved rounds, one thread, in processor time: a busy neighbour slows both alike.
``python benchmarks/edits.py [MODEL] [ROUNDS]`` where MODEL is a directory, as of SmolLM2-135M-Instruct; without one a
model of its shape with fewer layers and random weights is made here.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from capture import make_model

import gausslens_reinit.plugin as reinit
import gausslens_spectrum.plugin as spectrum
from gausslens import Edit, Twin, load
from gausslens.contract.descriptors import Owned, Owner
from gausslens.contract.errors import Mark
from gausslens.contract.reference import resolve
from gausslens.contract.twin import EditCall

ROUNDS = 7
TOKENS = 512
# The edit, its parameters, and the target as a ratio to the forward pass.
EDITS: list[tuple[Edit, dict[str, Any], float | None]] = [
    (reinit.CONFIG, {}, 1.0),
    (reinit.GAUSSIAN, {}, 1.0),
    (reinit.PERMUTE, {}, 1.0),
    (reinit.ROTATE, {"matrices": ["W_Q", "W_K", "W_V", "W_O"]}, None),
    (spectrum.SCALE, {"alpha": 2.0}, None),
    (spectrum.KEEP, {"k": 8, "matrices": ["QK", "OV"]}, None),
]


def timed(work: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def twin_of(model: Any, edit: Edit, given: dict[str, Any], draw: int) -> Twin:
    parameters = resolve(edit.parameters).model_validate(given)
    call = EditCall(Owned(edit, Owner("", "", "")), parameters, None, None, Mark("", 1, 1))
    return Twin(model, [call], 0, draw)


def made_and_undone(opened: Any, edit: Edit, given: dict[str, Any], draw: int) -> None:
    """As a run does: every layer drawn, put into the live module, taken out again."""
    twin = twin_of(opened.model, edit, given, draw)
    with opened.running.patches.applied(twin, list(opened.model.info.layers)):
        pass


def storages(tensors: Any) -> int:
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(held.values())


def memory(opened: Any, edit: Edit, given: dict[str, Any]) -> tuple[int, int]:
    """Bytes of the edited tensors, and bytes that the twin and the module hold besides the model's own."""
    twin = twin_of(opened.model, edit, given, 0)
    module, layers = opened.model.module, list(opened.model.info.layers)
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    with opened.running.patches.applied(twin, layers):
        overlaid = [t for layer in (None, *layers) for t in twin.overlay(layer).values()]
        exchanged = [p for p in module.parameters() if p.untyped_storage().data_ptr() not in own]
        return sum(t.nbytes for t in overlaid), storages([*overlaid, *exchanged])


def main() -> int:
    with tempfile.TemporaryDirectory() as made:
        if len(sys.argv) < 2:
            make_model(made)
            print("model: made here, random weights in the shape of SmolLM2-135M, 8 layers", flush=True)
        return measure(sys.argv[1] if len(sys.argv) > 1 else made)


def measure(path: str) -> int:
    torch.set_num_threads(1)
    opened = load(path)._opened
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    ids = np.arange(TOKENS)[None] % opened.model.info.vocabulary
    runner = opened.running.runner(Twin(opened.model))

    def forward() -> None:
        runner.forward(ids)

    works = {"forward": forward} | {
        edit.name: lambda edit=edit, given=given: made_and_undone(opened, edit, given, 0) for edit, given, _ in EDITS
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():  # the first of each imports, builds skeletons, fills caches
        work()
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(timed(work))
    base = min(times["forward"])
    spread = max(times["forward"]) / base
    print(f"forward pass over {TOKENS} tokens: {base:.2f} s (slowest round {spread:.2f} times that)")
    if spread > 1.3:
        print("the baseline itself spreads by more than 1.3: no verdict")
    for edit, given, target in EDITS:
        ratio = min(times[edit.name]) / base
        edited, held = memory(opened, edit, given)
        verdict = "" if target is None else f", target at most {target}: {'met' if ratio <= target else 'MISSED'}"
        size = f"{held / 2**20:.0f} MB held for {edited / 2**20:.0f} MB of edited tensors"
        print(f"{edit.name:18} {ratio:5.2f} of a forward pass{verdict}; {size}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
