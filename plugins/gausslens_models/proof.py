"""The parity proof: what this model computes, what is captured, and what its tensors say, held against each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from gausslens import Finding, LayerWeights

from . import formulas
from .capture import SQUARE, Capture, Seen
from .engine import wanted_sites
from .opening import quiet

if TYPE_CHECKING:
    from .pretrained import PretrainedModel

# Largest difference allowed, as a part of the largest magnitude (or of 1, where that is smaller).
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
PROMPT = 24
SITES = ("resid_pre", "q", "k", "v", "q_rot", "k_rot", "scores", "pattern", "z", "attn_out")


def prove(model: PretrainedModel) -> list[Finding]:
    """Two prompts, one shorter, through the model with everything captured, and through its own eager attention.

    Compared are logits (or the final hidden state) and patterns with the model's own; and in each layer what the
    formulas make of our W_Q, W_K, W_V, W_O, biases, norms and positions with the captured q, k, v, scores and output.
    """
    ids, mask = _prompt(model)
    layers: dict[int, Seen] = {}
    wanted = wanted_sites(model, [s for s in SITES if s in model.sites], None)
    capture = Capture(model, wanted, layers.__setitem__)
    captured = capture.run(ids, mask.long(), logits=model.headed, embed=False, whole=not model.headed)
    final, patterns = _eager(model, ids, mask)
    what, ours = ("logits", captured["logits"]) if model.headed else ("final hidden state", captured["final"])
    found = [_difference(what, ours[mask], final[mask])]
    for layer, seen in layers.items():
        checks = [("pattern", f"pattern of layer {layer}", seen.arrays["pattern"], patterns[layer])]
        for site, by_formula in _by_formulas(model, layer, seen.arrays, mask):
            checks.append((site, f"{site} of layer {layer} from weights", by_formula, seen.arrays[site]))
        for site, what, ours, theirs in checks:
            if site in SQUARE:  # [prompt, head, query, key]: rows of padding are nobody's numbers
                ours, theirs = ours.transpose(1, 2), theirs.transpose(1, 2)
            found.append(_difference(what, ours[mask], theirs[mask]))
    return found


def _prompt(model: PretrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    length = min(PROMPT, model.info.max_positions or PROMPT)
    ids = torch.randint(0, model.info.vocabulary, (2, length), generator=draw)
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, -(length // 4) :] = False
    return ids.to(model.device), mask.to(model.device)


def _eager(model: PretrainedModel, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """The model's own answer with its own eager attention."""
    module = model.module
    before = module.config._attn_implementation
    try:
        with quiet(), torch.no_grad():
            module.set_attn_implementation("eager")
            output = module(input_ids=ids, attention_mask=mask.long(), use_cache=False, output_attentions=True)
    finally:
        with quiet():
            module.set_attn_implementation(before)
    return (output.logits if model.headed else output.last_hidden_state), output.attentions


def _by_formulas(
    model: PretrainedModel, layer: int, seen: dict[str, torch.Tensor], mask: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each captured quantity of a layer made again from the one before it and our tensors."""
    info, weights = model.info, LayerWeights(model, layer)
    read = formulas.attention_input(seen["resid_pre"], weights, info)
    for letter in "QKV":
        yield letter.lower(), formulas.projected(read, weights, letter)
    q, k = (formulas.positioned(seen[s.lower()], weights, s, layer, info) for s in "QK")
    if "q_rot" in seen:
        yield from (("q_rot", q), ("k_rot", k))
    yield "scores", formulas.scores(q, k, layer, info, mask)
    yield "pattern", seen["scores"].float().softmax(-1)
    yield "z", torch.einsum("phqk,pkhe->pqhe", seen["pattern"], seen["v"][:, :, list(info.kv_of_head)])
    yield "attn_out", formulas.attention_output(seen["z"], weights, info)


def _difference(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> Finding:
    """The largest difference where both are finite; infinite where they are not finite at the same places."""
    tolerance = TOLERANCE[theirs.dtype]
    ours, theirs = ours.detach().double(), theirs.detach().double()
    finite = theirs.isfinite()
    if ours.shape != theirs.shape or not torch.equal(finite, ours.isfinite()):
        return Finding(what, float("inf"), tolerance)
    scale = max(1.0, float(theirs[finite].abs().max()))
    return Finding(what, float((ours - theirs)[finite].abs().max()), tolerance * scale)
