"""Text generation: what a model writes after given tokens, greedily or sampled by a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gausslens import ModelError

from .capture import watching

if TYPE_CHECKING:
    from .pretrained import PretrainedModel


def continued(
    model: PretrainedModel,
    tokens: np.ndarray,
    most: int,
    temperature: float = 0.0,
    seed: int = 0,
    stop: str = "",
) -> list[np.ndarray]:
    """The new tokens of each row of [prompt, position]: so many at most, up to an end-of-text token or ``stop``.

    Temperature 0 takes the likeliest token; any other samples softmax(logits / temperature). The token that ends a row
    is part of it where it holds text, and left out where it is the model's own end-of-text. Rows are equally long and
    hold no padding.
    """
    if not model.info.causal or not model.headed:
        raise ModelError(f"{model.name} cannot write text: that takes a causal model with a language-model head")
    ids = torch.as_tensor(tokens, dtype=torch.long, device=model.device)
    room = most if model.info.max_positions is None else min(most, model.info.max_positions - ids.shape[1])
    if room < 1:
        raise ModelError(f"{model.name} takes {model.info.max_positions} tokens, and the prompt has {ids.shape[1]}")
    generator = torch.Generator().manual_seed(seed)
    ends = _ends(model)
    rows: list[list[int]] = [[] for _ in ids]
    done = [False] * len(rows)
    cache: Any = None
    with watching(model.module), torch.no_grad():
        for _ in range(room):
            output = model.module(input_ids=ids, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            picked = _picked(output.logits[:, -1].float().cpu(), temperature, generator)
            for row, number in enumerate(picked.tolist()):
                if done[row]:
                    continue
                done[row] = number in ends
                if not done[row]:
                    rows[row].append(number)
                    done[row] = bool(stop) and stop in _text(model, rows[row])
            if all(done):
                break
            ids = picked[:, None].to(model.device)
    return [np.array(row, dtype=np.int64) for row in rows]


def _picked(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    if temperature == 0:
        return logits.argmax(dim=-1)
    return torch.multinomial(torch.softmax(logits.double() / temperature, dim=-1), 1, generator=generator)[:, 0]


def _ends(model: PretrainedModel) -> set[int]:
    """The tokens that end a text, by the model's generation config and by its tokenizer."""
    found: list[Any] = [getattr(getattr(model.module, "generation_config", None), "eos_token_id", None)]
    found.append(getattr(model.tokenizer, "eos_token_id", None))
    flat = [one for each in found for one in (each if isinstance(each, Sequence) else [each])]
    return {int(one) for one in flat if one is not None}


def _text(model: PretrainedModel, ids: Sequence[int]) -> str:
    if model.tokenizer is None:
        raise ModelError(f'{model.name} has no tokenizer, so text to stop at cannot be found: give `stop: ""`')
    return str(model.tokenizer.decode(list(ids)))
