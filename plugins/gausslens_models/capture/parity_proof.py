"""The parity proof: what this model computes, what is captured, and what its tensors say, held against each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from gausslens import Finding, LayerWeights, site

from ..loading.eager_answer import Answer, proof_prompt
from ..maths import attention_formulas as formulas
from .engine import wanted_sites
from .forward_pass import Capture, Captured

if TYPE_CHECKING:
    from ..loading.pretrained import PretrainedModel

# Largest difference allowed, as a part of the largest magnitude (or of 1, where that is smaller).
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# What the formulas make, and what they start from.
PROVED = ("resid_pre", "q", "k", "v", "q_rot", "k_rot", "scores", "pattern", "z", "attn_out")


def prove(model: PretrainedModel, capture: type[Capture], reference: Answer | None) -> list[Finding]:
    """Two prompts, one shorter, through the model with everything captured, and through its own eager attention.

    Compared are logits (or the final hidden state) and patterns with the model's own; and in each layer what the
    formulas make of our W_Q, W_K, W_V, W_O, biases, norms and positions with the captured q, k, v, scores and output.
    """
    ids, mask = proof_prompt(model)
    layers: dict[int, Captured] = {}
    wanted = wanted_sites(model, [s for s in PROVED if s in model.sites], None)
    whole = capture(model, wanted, layers.__setitem__).run(ids, mask.long(), logits=model.headed, whole=True)
    found = []
    if reference is not None:
        what = "logits" if model.headed else "final hidden state"
        ours = whole["logits" if model.headed else "final"]
        found.append(_difference(what, ours[mask], torch.cat(reference.final)))
    having = [n for n in model.info.layers if "pattern" not in model.info.lacking.get(n, {})]
    patterns = reference.of_layers(having) if reference is not None else {}
    for layer, captured in layers.items():
        for name, made in _by_formulas(model, layer, captured.arrays, mask):
            theirs = captured.arrays[name]
            if site(name).square:  # [prompt, head, query, key]: rows of padding are nobody's numbers
                made, theirs = made.transpose(1, 2), theirs.transpose(1, 2)
            found.append(_difference(f"{name} of layer {layer} from weights", made[mask], theirs[mask]))
        if layer in patterns:
            ours = captured.arrays["pattern"]
            rows = [ours[row, :, :n, :n].flatten() for row, n in enumerate(mask.sum(1).tolist())]
            theirs = torch.cat([pattern.flatten() for pattern in patterns[layer]])
            found.append(_difference(f"pattern of layer {layer}", torch.cat(rows), theirs))
    return found


def _by_formulas(
    model: PretrainedModel, layer: int, captured: dict[str, torch.Tensor], mask: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each captured quantity of a layer made again from the one before it and our tensors."""
    info = model.info
    if not info.facts.position_is_known or "q" not in captured:
        return
    weights = LayerWeights(model, layer)
    read = formulas.attention_input(captured["resid_pre"], weights, info)
    for letter in "QKV":
        yield letter.lower(), formulas.projected(read, weights, letter)
    q, k = (formulas.positioned(captured[s.lower()], weights, s, layer, info) for s in "QK")
    if "q_rot" in captured:
        yield from (("q_rot", q), ("k_rot", k))
    if info.facts.position != "disentangled":  # whose scores have terms beside q . k that are not written out
        distance = formulas.distance_term(mask.shape[1], info, LayerWeights(model, None))
        scores = formulas.scores(q, k, layer, info, mask, distance)
        if "scores" in captured:
            yield "scores", scores if distance is None else formulas.levelled(scores, captured["scores"])
        yield "pattern", formulas.pattern(scores, weights)
    v = formulas.clipped(captured["v"], info)[:, :, list(info.kv_of_head)]
    yield "z", torch.einsum("phqk,pkhe->pqhe", captured["pattern"], v)
    yield "attn_out", formulas.attention_output(formulas.gated(captured["z"], read, weights), weights, info)


def _difference(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> Finding:
    """The largest difference where both are finite; infinite where they are not finite at the same places."""
    tolerance = TOLERANCE[theirs.dtype]
    ours, theirs = ours.detach().double(), theirs.detach().double()
    finite = theirs.isfinite()
    if ours.shape != theirs.shape or not torch.equal(finite, ours.isfinite()):
        return Finding(what, float("inf"), tolerance)
    scale = max(1.0, float(theirs[finite].abs().max()))
    return Finding(what, float((ours - theirs)[finite].abs().max()), tolerance * scale)
