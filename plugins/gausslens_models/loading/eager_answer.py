"""A model's own answer to a prompt, by its own eager attention: what captures are held against.

It is asked again with every step of it shaken by about as much as rounding does. How far its answer moves is what two
computations of the same model may differ by at its end, however deep and sensitive it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch

from ..maths.rounding import epsilons
from .config_and_tokenizer import quiet_transformers
from .skeleton import by_transformers
from .turns import turn_of

if TYPE_CHECKING:
    from .pretrained import PretrainedModel

# (logits or final state, patterns) of the token numbers of one prompt, and of the source beside it where there is one.
Ask = Callable[..., tuple[torch.Tensor, tuple[torch.Tensor, ...]]]
# Tokens of the longer of the two short prompts.
PROMPT = 24
# How far the long prompt goes beyond a window, and how long it is where rotary tables are not the default.
BEYOND, ROTARY = 8, 256
# The long prompt: no more numbers of all patterns (256 MB), and no more products of a token with a parameter.
PATTERNS, WORK = 2**26, 6e11
# How often the answer is asked for again; of mixtures of experts oftener, for a token may be sent to others.
SHAKEN, SHAKEN_EXPERTS = 1, 4
# Probabilities that are too small to tell how far their scores moved.
SMALLEST = 1e-12


@dataclass(frozen=True)
class Answer:
    """A model's own answer to each prompt: logits or final state [position, ...], and its patterns.

    ``final_noise`` and ``moved`` [head] of each layer are how far it moves when it is shaken: the largest change, and
    that of the logarithm of an entry of the head's patterns.
    """

    final: list[torch.Tensor]
    patterns: list[tuple[torch.Tensor, ...]]
    final_noise: list[torch.Tensor]
    moved: list[tuple[torch.Tensor, ...]]
    batches: tuple[tuple[int, ...], ...] = ((0, 1),)

    def of_layers(self, layers: Sequence[int]) -> dict[int, list[torch.Tensor]]:
        """{layer: [pattern [head, query, key] of each prompt]} where these are the layers that have patterns."""
        by_layer = zip(*self.patterns, strict=True)
        return {n: [p[0] for p in ps] for n, ps in zip(layers, by_layer, strict=True)} if self.patterns[0] else {}

    def final_of(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits or final state of the prompts of a batch, one after the other, and how far they move."""
        rows = self.batches[batch]
        return torch.cat([self.final[r] for r in rows]), torch.stack([self.final_noise[r] for r in rows]).amax()

    def patterns_of(self, batch: int, place: int) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """(row in the batch, pattern, how far its heads move) of the place-th layer that has patterns."""
        for row, prompt in enumerate(self.batches[batch]):
            if self.patterns[prompt]:
                yield row, self.patterns[prompt][place][0], self.moved[prompt][place]


def proof_prompt(model: PretrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Token numbers and mask: two prompts, the second padded where the model can be given padding."""
    length = min(PROMPT, _max_positions(model) or PROMPT)
    ids = _drawn(model, 2, length)
    mask = torch.ones(2, length, dtype=torch.bool)
    if getattr(model, "bears_padding", True):
        mask[1, -(length // 4) :] = False
    return ids.to(model.device), mask.to(model.device)


def proof_sources(model: PretrainedModel, prompts: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What the encoder reads beside so many prompts, where a decoder is studied: longer, and the first is padded."""
    if getattr(model, "stack", None) not in ("decoder", "cross"):
        return None
    length = min(PROMPT + PROMPT // 3, _max_positions(model) or PROMPT * 2)
    ids = _drawn(model, prompts, length, int(model.config.vocab_size), seed=1)
    mask = torch.ones(prompts, length, dtype=torch.bool)
    mask[0, -(length // 4) :] = False
    return ids.to(model.device), mask.to(model.device)


def long_prompt(model: PretrainedModel) -> tuple[torch.Tensor, torch.Tensor] | None:
    """One more prompt where the short ones do not see all that a config says: windows, rotary tables of a long text.

    It goes a few tokens beyond the widest window that it can reach; None where there is nothing to see.
    """
    if not _is_laid_out(model):
        return None
    most = _most_tokens(model)
    wanted = [w + BEYOND for w in _windows(model) if w + BEYOND <= most]
    if any(r.get("type", "default") not in ("default", "none") for r in model.info.facts.get("rotary", ())):
        wanted.append(min(ROTARY, most))
    if getattr(model, "stack", None) and model.info.facts.position == "buckets":
        wanted.append(min(model.info.facts.distance_buckets[1] + BEYOND, most))
    length = max(wanted, default=0)
    if length <= PROMPT:
        return None
    ids = _drawn(model, 1, length).to(model.device)
    return ids, torch.ones_like(ids, dtype=torch.bool)


def proof_batches(model: PretrainedModel) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Token numbers and mask of all prompts of the proof."""
    long = long_prompt(model)
    return [proof_prompt(model), *([] if long is None else [long])]


def unseen_windows(model: PretrainedModel) -> list[int]:
    """The windows that no prompt of the proof is long enough for, though prompts of a run may be."""
    longest = max(ids.shape[1] for ids, _ in proof_batches(model))
    return [w for w in _windows(model) if longest <= w < (model.info.max_positions or w + 1)]


def eager_answer(model: PretrainedModel) -> Answer:
    """What the module itself says with its own eager attention, and without the dropout of training."""
    from ..capture.attention import evaluating

    module = model.module
    before, dtype = module.config._attn_implementation, str(model.dtype).removeprefix("torch.")
    try:
        with turn_of(module), by_transformers(model.spec.path, f"run this model as {dtype}"), torch.no_grad():
            module.set_attn_implementation("eager")
            with evaluating(module):
                ask = partial(_asked, module) if model.stack is None else partial(_asked_stack, model)
                return answer_of(model, ask)
    finally:
        with quiet_transformers():
            module.set_attn_implementation(before)


def answer_of(model: PretrainedModel, ask: Ask) -> Answer:
    """What a module says when it is asked, one prompt at a time and so without padding."""
    draws = SHAKEN_EXPERTS if _is_laid_out(model) and any(model.info.facts.get("experts") or ()) else SHAKEN
    batches = proof_batches(model)
    rows = [row[real][None] for ids, mask in batches for row, real in zip(ids, mask, strict=True)]
    beside: list[Any] = [None] * len(rows)
    read = [proof_sources(model, len(ids)) for ids, _ in batches]
    if all(one is not None for one in read):
        beside = [row[real][None] for one in read if one for row, real in zip(*one, strict=True)]
    ends = list(accumulate((len(ids) for ids, _ in batches), initial=0))
    found = Answer([], [], [], [], tuple(tuple(range(*pair)) for pair in pairwise(ends)))
    for ids, source in zip(rows, beside, strict=True):
        asked = partial(ask, ids) if source is None else partial(ask, ids, source)
        final, patterns = asked()
        shaken = [_shaken_answer(model.module, asked, final, patterns, draw) for draw in range(draws)]
        found.final.append(final)
        found.patterns.append(patterns)
        found.final_noise.append(torch.stack([noise for noise, _ in shaken]).amax())
        found.moved.append(tuple(torch.stack(m).amax(0) for m in zip(*(m for _, m in shaken), strict=True)))
    return found


def _asked(module: Any, ids: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    output = module(input_ids=ids, use_cache=False, output_attentions=True)
    final = (output.logits if hasattr(output, "logits") else output.last_hidden_state)[0]
    return final, getattr(output, "attentions", None) or ()


def _asked_stack(
    model: PretrainedModel, ids: torch.Tensor, source: torch.Tensor | None = None
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """The answer of one stack of two, as the module itself gives it."""
    if source is None:
        output = model.body(input_ids=ids, output_attentions=True)
        return output.last_hidden_state[0], output.attentions
    output = model.module(input_ids=source, decoder_input_ids=ids, use_cache=False, output_attentions=True)
    final = (output.logits if model.headed else output.last_hidden_state)[0]
    return final, output.cross_attentions if model.stack == "cross" else output.decoder_attentions


def _shaken_answer(
    module: Any, ask: Ask, final: torch.Tensor, patterns: tuple[torch.Tensor, ...], seed: int
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """How far the final state, and the scores of each head, move when all steps are shaken."""
    with _shaking(module, seed):
        moved_final, moved_patterns = ask()
    noise = (moved_final.float() - final.float()).abs().amax()
    kept, _ = epsilons(final.dtype)
    floor = kept * final.float().abs().amax()
    moved = (_scores_moved(*pair, kept) for pair in zip(patterns, moved_patterns, strict=True))
    return torch.maximum(noise, floor), tuple(moved)


def _scores_moved(pattern: torch.Tensor, shaken: torch.Tensor, least: float) -> torch.Tensor:
    """How far the scores of each head moved, by the logarithms of patterns [1, head, query, key]."""
    one, other = pattern[0].float(), shaken[0].float()
    seen = (one > SMALLEST) & (other > SMALLEST)
    moved = torch.where(seen, (one.clamp_min(SMALLEST).log() - other.clamp_min(SMALLEST).log()).abs(), 0.0)
    return moved.flatten(1).amax(1).clamp_min(least)


@contextlib.contextmanager
def _shaking(module: Any, seed: int) -> Iterator[None]:
    """What every module with tensors of its own gives, off by about what rounding of its sums is."""
    draw = torch.Generator().manual_seed(seed)
    handles = [
        m.register_forward_hook(partial(_shaken, draw))
        for m in module.modules()
        if next(m.parameters(recurse=False), None) is not None
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _shaken(draw: torch.Generator, module: Any, _inputs: Any, output: Any) -> Any:
    if not isinstance(output, torch.Tensor) or not output.is_floating_point():
        return output
    kept, summed = epsilons(output.dtype)
    width = max(max(p.shape, default=1) for p in module.parameters(recurse=False))
    wide = output.to(torch.promote_types(output.dtype, torch.float32))
    noise = torch.randn(output.shape, generator=draw).to(wide)
    amount = (kept + summed * width**0.5) / 2
    return (wide + amount * noise * wide.square().mean(-1, keepdim=True).sqrt()).to(output.dtype)


def _drawn(
    model: PretrainedModel, prompts: int, length: int, vocabulary: int | None = None, seed: int = 0
) -> torch.Tensor:
    """Any tokens but the padding, which some models give no position and skip when they count."""
    # A decoder may have other tokens than its encoder.
    own = model.info.vocabulary if getattr(model, "stack", None) else int(model.config.vocab_size)
    draw, size = torch.Generator().manual_seed(seed), own if vocabulary is None else vocabulary
    ids = torch.randint(0, size, (prompts, length), generator=draw)
    padding = getattr(model.config, "pad_token_id", None)
    return ids if padding is None else torch.where(ids == padding, (ids + 1) % size, ids)


def _is_laid_out(model: PretrainedModel) -> bool:
    """Whether its facts can be asked for: a bridge is booted before the sizes of an unknown family are known."""
    return hasattr(model, "layout")


def _max_positions(model: PretrainedModel) -> int | None:
    return model.info.max_positions if _is_laid_out(model) else getattr(model.config, "max_position_embeddings", None)


def _windows(model: PretrainedModel) -> list[int]:
    return sorted({w for w in model.info.facts.get("sliding_window", ()) if w is not None})


def _most_tokens(model: PretrainedModel) -> int:
    """How long the long prompt may be, by its cost in memory and in time."""
    info = model.info
    by_memory = (PATTERNS / max(info.n_layers * info.n_heads, 1)) ** 0.5
    by_time = WORK / max(info.n_parameters, 1)
    return int(min(by_memory, by_time, info.max_positions or by_time))
