"""A model's own answer to a prompt, by its own eager attention: what captures are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .config_and_tokenizer import quiet_transformers

if TYPE_CHECKING:
    from .pretrained import PretrainedModel

# Tokens of the longer of the two prompts.
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
        with quiet_transformers(), torch.no_grad():
            module.set_attn_implementation("eager")
            for row, real in zip(ids, mask, strict=True):
                output = module(input_ids=row[real][None], use_cache=False, output_attentions=True)
                final.append((output.logits if hasattr(output, "logits") else output.last_hidden_state)[0])
                patterns.append(getattr(output, "attentions", None) or ())
    finally:
        with quiet_transformers():
            module.set_attn_implementation(before)
    return Answer(final, patterns)
