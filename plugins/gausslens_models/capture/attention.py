"""The attention function that gausslens registers with transformers, and what it makes of a call.

The model hands it q and k after position and norm, v, the mask and the scaling. Patterns come from the eager function
of the model's own module, in blocks of query rows whose size depends on nothing but the shapes. Head outputs come from
the fused kernel that transformers prefers, which never holds a pattern, or from that eager function; which of them
never depends on the sites that are asked for, so that no number does.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from gausslens import ModelError

from ..loading.config_and_tokenizer import quiet_transformers

NAME = "gausslens"
# Scores of one block: with the softmax beside it about twice this is held at a time.
BLOCK_BYTES = 64 * 2**20

Handler = Callable[["Call"], torch.Tensor | None]
_HANDLERS: weakref.WeakKeyDictionary[torch.nn.Module, Handler] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Call:
    """One call of a layer's attention: q [prompt, head, query, d_head]; k and v [prompt, kv_head, key, d_head].

    There may be other keys than queries, where k and v are of another stack.
    """

    module: torch.nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    options: Mapping[str, Any]

    @property
    def fused(self) -> bool:
        """Whether the fused kernel can do this: it knows neither soft caps nor sinks."""
        return self.options.get("softcap") is None and self.options.get("s_aux") is None

    def outputs(self, eager: bool = False) -> torch.Tensor:
        """Head outputs [prompt, query, head, d_head] as the model makes them."""
        if self.fused and not eager:
            kernel = AttentionInterface()["sdpa"]
            found: torch.Tensor = kernel(self.module, self.query, self.key, self.value, self.mask, **self.options)[0]
            return found
        return torch.cat([self.rows(start, end)[0] for start, end in self.blocks()], dim=1)

    def rows(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Head outputs [prompt, query, head, d_head] and pattern of some query rows, by the model's eager function."""
        eager = _eager_of(self.module)
        seen = self.visible(start, end)
        # The softmax is in float32 whatever the type: what float64 calls lowest is minus infinity there.
        lowest = max(torch.finfo(self.query.dtype).min, torch.finfo(torch.float32).min)
        mask = None if seen is None else torch.where(seen, self.query.new_zeros(()), lowest)
        whole = start == 0 and end == self.query.shape[2]
        query = self.query if whole else self.query[:, :, start:end]
        options, bias = self.options, self.bias(start, end)
        options = options if whole or bias is None else {**options, "position_bias": bias}
        out, pattern = eager(self.module, query, self.key, self.value, mask, **options)
        return out, pattern

    def bias(self, start: int, end: int) -> torch.Tensor | None:
        """What is added to the scores of these rows by distance [1, head, query, key]; None where nothing is."""
        found: torch.Tensor | None = self.options.get("position_bias")
        return None if found is None else found[:, :, start:end]

    def scores(self, start: int, end: int) -> torch.Tensor:
        """What enters the softmax in these rows: scaled, soft-capped, with the mask; -inf where masked."""
        scaling = self.options.get("scaling")
        query = self.query[:, :, start:end]
        found: torch.Tensor = torch.matmul(query, self._repeated(self.key).transpose(2, 3))
        found = found * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        bias = self.bias(start, end)
        found = found if bias is None else found + bias
        cap = self.options.get("softcap")
        if cap is not None:
            found = torch.tanh(found / cap) * cap
        seen = self.visible(start, end)
        return found if seen is None else found.masked_fill(~seen, -torch.inf)

    def visible(self, start: int, end: int) -> torch.Tensor | None:
        """Which keys these query rows may look at [prompt or 1, 1, query, key]; None where all see all."""
        if self.mask is not None:
            rows = slice(start, end) if self.mask.shape[2] > 1 else slice(None)  # one row may serve all
            mask = self.mask[:, :, rows, : self.key.shape[2]]
            # Some models make their own mask, of what is added to scores: 0, or the lowest number.
            return mask > torch.finfo(mask.dtype).min / 2 if mask.is_floating_point() else mask
        queries, keys = self.query.shape[2], self.key.shape[2]
        told = self.options.get("is_causal")  # goes before what the module is
        if queries == 1 or not (getattr(self.module, "is_causal", True) if told is None else told):
            return None
        places = torch.arange(start, end, device=self.query.device) + keys - queries
        return (torch.arange(keys, device=self.query.device) <= places[:, None])[None, None]

    def mixed(self, pattern: torch.Tensor) -> torch.Tensor:
        """Head outputs that another pattern would give, in the same blocks as the model's own."""
        value = self._repeated(self.value)
        blocks = [torch.matmul(pattern[:, :, a:b], value) for a, b in self.blocks()]
        return torch.cat(blocks, dim=2).transpose(1, 2).contiguous()

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Blocks of query rows: one, unless scores of all rows would be large."""
        prompts, heads, length, _ = self.query.shape
        row = prompts * heads * self.key.shape[2] * self.query.element_size()
        size = max(1, BLOCK_BYTES // max(row, 1))
        for start in range(0, length, size):
            yield start, min(start + size, length)

    def _repeated(self, tensor: torch.Tensor) -> torch.Tensor:
        groups = self.query.shape[1] // tensor.shape[1]
        return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=1)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls for every layer while a capture is on."""
    call = Call(module, query, key, value, attention_mask, options)
    handler = _HANDLERS.get(module)
    out = handler(call) if handler is not None else None
    return (call.outputs() if out is None else out), None


def watch(module: torch.nn.Module, handler: Handler) -> Callable[[], None]:
    """Let the handler see this module's calls; returns what ends it. One at a time."""
    if module in _HANDLERS:
        raise ModelError("this model is being captured already: finish that first")
    _HANDLERS[module] = handler
    return lambda: _HANDLERS.pop(module, None) and None


def watched() -> int:
    """How many modules are being watched."""
    return len(_HANDLERS)


def _eager_of(module: torch.nn.Module) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    home = sys.modules[type(module).__module__]
    found = getattr(home, "eager_attention_forward", None)
    if found is None:
        raise ModelError(f"{type(module).__name__} has no eager attention function that can be watched")
    return found  # type: ignore[no-any-return]


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, AttentionMaskInterface()["sdpa"])


@contextlib.contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """The module in evaluation mode; afterwards each of its parts as before."""
    training = [m for m in module.modules() if m.training]
    try:
        module.eval()
        yield
    finally:
        for one in training:
            one.training = True


@contextlib.contextmanager
def with_our_attention(module: Any, watched: bool = True) -> Iterator[None]:
    """The module in evaluation mode, with our attention function (eager where it calls none); afterwards as before."""
    before = module.config._attn_implementation
    try:
        if watched:
            with quiet_transformers():
                module.set_attn_implementation(NAME)
            if module.config._attn_implementation != NAME:
                raise ModelError(
                    f"{type(module).__name__} does not let its attention be watched: use `loader: transformer-lens`"
                )
        else:  # its modules read the config as they run, and some do not let it be set otherwise
            module.config._attn_implementation = "eager"
        with evaluating(module):
            yield
    finally:
        if watched:
            with quiet_transformers():
                module.set_attn_implementation(before)
        else:
            module.config._attn_implementation = before
