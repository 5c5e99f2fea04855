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
Answer = tuple[torch.Tensor, Any]
SITES = ("resid_pre", "q", "k", "v", "q_rot", "k_rot", "scores", "pattern", "z", "attn_out")


def prove(model: PretrainedModel, capture: type[Capture], reference: Answer | None) -> list[Finding]:
    """Two prompts, one shorter, through the model with everything captured, and through its own eager attention.

    Compared are logits (or the final hidden state) and patterns with the model's own; and in each layer what the
    formulas make of our W_Q, W_K, W_V, W_O, biases, norms and positions with the captured q, k, v, scores and output.
    """
    ids, mask = proof_prompt(model)
    layers: dict[int, Seen] = {}
    wanted = wanted_sites(model, [s for s in SITES if s in model.sites], None)
    captured = capture(model, wanted, layers.__setitem__).run(ids, mask.long(), logits=model.headed, whole=True)
    found = []
    if reference is not None:
        what = "logits" if model.headed else "final hidden state"
        ours = captured["logits" if model.headed else "final"]
        found.append(_difference(what, ours[mask], reference[0][mask]))
    for layer, seen in layers.items():
        made_again = _by_formulas(model, layer, seen.arrays, mask)
        checks = [(site, f"{site} of layer {layer} from weights", made, seen.arrays[site]) for site, made in made_again]
        if reference is not None and reference[1] is not None:
            # A layer without attention has no entry in what transformers returns.
            having = [n for n in model.info.layers if "pattern" not in model.info.lacking.get(n, {})]
            patterns = dict(zip(having, reference[1], strict=True))
            if layer in patterns:
                checks.append(("pattern", f"pattern of layer {layer}", seen.arrays["pattern"], patterns[layer]))
        for site, what, made, theirs in checks:
            if site in SQUARE:  # [prompt, head, query, key]: rows of padding are nobody's numbers
                made, theirs = made.transpose(1, 2), theirs.transpose(1, 2)
            found.append(_difference(what, made[mask], theirs[mask]))
    return found


def proof_prompt(model: PretrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Token numbers and mask: two prompts, the second padded."""
    draw = torch.Generator().manual_seed(0)
    most = getattr(model.config, "max_position_embeddings", None)
    length = min(PROMPT, most or PROMPT)
    ids = torch.randint(0, int(model.config.vocab_size), (2, length), generator=draw)
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, -(length // 4) :] = False
    return ids.to(model.device), mask.to(model.device)


def eager_answer(module: Any, ids: torch.Tensor, mask: torch.Tensor) -> Answer:
    """What the module itself says with its own eager attention: logits or final state, and patterns."""
    before = module.config._attn_implementation
    try:
        with quiet(), torch.no_grad():
            module.set_attn_implementation("eager")
            output = module(input_ids=ids, attention_mask=mask.long(), use_cache=False, output_attentions=True)
    finally:
        with quiet():
            module.set_attn_implementation(before)
    final = output.logits if hasattr(output, "logits") else output.last_hidden_state
    return final, getattr(output, "attentions", None)


def _by_formulas(
    model: PretrainedModel, layer: int, seen: dict[str, torch.Tensor], mask: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each captured quantity of a layer made again from the one before it and our tensors."""
    info = model.info
    if info.facts["position"] == "unknown" or "q" not in seen:
        return
    weights = LayerWeights(model, layer)
    read = formulas.attention_input(seen["resid_pre"], weights, info)
    for letter in "QKV":
        yield letter.lower(), formulas.projected(read, weights, letter)
    q, k = (formulas.positioned(seen[s.lower()], weights, s, layer, info) for s in "QK")
    if "q_rot" in seen:
        yield from (("q_rot", q), ("k_rot", k))
    scores = formulas.scores(q, k, layer, info, mask)
    if "scores" in seen:
        yield "scores", scores
    yield "pattern", scores.float().softmax(-1)
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
