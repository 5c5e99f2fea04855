"""The parity proof: what this model computes, what is captured, and what its tensors say, held against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


@dataclass(frozen=True)
class Answer:
    """A model's own answer to each prompt: logits or final state [position, ...], and its patterns."""

    final: list[torch.Tensor]
    patterns: list[tuple[torch.Tensor, ...]]

    def of_layers(self, layers: Sequence[int]) -> dict[int, list[torch.Tensor]]:
        """{layer: [pattern [head, query, key] of each prompt]} where these are the layers that have patterns."""
        by_layer = zip(*self.patterns, strict=True)
        return {n: [p[0] for p in ps] for n, ps in zip(layers, by_layer, strict=True)} if self.patterns[0] else {}


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
        found.append(_difference(what, ours[mask], torch.cat(reference.final)))
    having = [n for n in model.info.layers if "pattern" not in model.info.lacking.get(n, {})]
    patterns = reference.of_layers(having) if reference is not None else {}
    for layer, seen in layers.items():
        for site, made in _by_formulas(model, layer, seen.arrays, mask):
            theirs = seen.arrays[site]
            if site in SQUARE:  # [prompt, head, query, key]: rows of padding are nobody's numbers
                made, theirs = made.transpose(1, 2), theirs.transpose(1, 2)
            found.append(_difference(f"{site} of layer {layer} from weights", made[mask], theirs[mask]))
        if layer in patterns:
            ours = seen.arrays["pattern"]
            rows = [ours[row, :, :n, :n].flatten() for row, n in enumerate(mask.sum(1).tolist())]
            theirs = torch.cat([pattern.flatten() for pattern in patterns[layer]])
            found.append(_difference(f"pattern of layer {layer}", torch.cat(rows), theirs))
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


def eager_answer(model: PretrainedModel) -> Answer:
    """What the module itself says with its own eager attention, one prompt at a time and so without padding."""
    module = model.module
    ids, mask = proof_prompt(model)
    before = module.config._attn_implementation
    final, patterns = [], []
    try:
        with quiet(), torch.no_grad():
            module.set_attn_implementation("eager")
            for row, real in zip(ids, mask, strict=True):
                output = module(input_ids=row[real][None], use_cache=False, output_attentions=True)
                final.append((output.logits if hasattr(output, "logits") else output.last_hidden_state)[0])
                patterns.append(getattr(output, "attentions", None) or ())
    finally:
        with quiet():
            module.set_attn_implementation(before)
    return Answer(final, patterns)


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
