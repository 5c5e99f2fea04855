"""What stands between a site as we see it and what the model goes on with: cut out at its module, and put back there.

What is put back is exact where nothing was changed. Where a site is a sum or a product that the model makes later, the
difference is put back: x + (new - old) / factor, which is x where new is old; gradients go through ``new`` alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gausslens import HEAD_AXIS, KV_HEAD_AXIS, ModelError

from ..families.layout import Sizes, split
from ..families.slots import Tap
from .attention import Call

Flow = Callable[[str, torch.Tensor], torch.Tensor]
Swap = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor | None] | None]


def by_difference(held: torch.Tensor, old: torch.Tensor, new: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    """What the model holds, moved as the site moved; of the graph it keeps the way through ``new``."""
    moved = new - old.detach()
    return held.detach() + (moved if factor == 1 else moved / factor)


def laid_out_as(held: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, in memory as the model holds it: matrices that lie otherwise are multiplied with other rounding."""
    if tensor.stride() == held.stride() or 0 in held.stride():
        return tensor
    return torch.empty_strided(held.shape, held.stride(), dtype=held.dtype, device=held.device).copy_(tensor)


def into_features(held: torch.Tensor, part: torch.Tensor, form: str, tap: Tap, sizes: Sizes) -> torch.Tensor:
    """The features [..., n] of a module with ours in the places from which they were cut."""
    flat = part.flatten(2)
    if flat.shape[-1] == held.shape[-1] and not tap.part:
        return flat.reshape(held.shape)
    places = split(torch.arange(held.shape[-1], device=held.device), 0, form, tap.part, sizes).reshape(-1)
    return held.reshape(*flat.shape[:2], -1).index_copy(-1, places, flat.to(held)).reshape(held.shape)


def put_into(result: Any, item: int, tensor: torch.Tensor) -> Any:
    """What a module gives, with another tensor in this place."""
    return (*result[:item], tensor, *result[item + 1 :]) if isinstance(result, tuple) else tensor


def put_given(arguments: tuple[Any, ...], named: dict[str, Any], tensor: torch.Tensor) -> tuple[Any, dict[str, Any]]:
    """What a module is given, with another first tensor."""
    if arguments:
        return (tensor, *arguments[1:]), named
    name = "hidden_states" if "hidden_states" in named else next(iter(named))
    return (), {**named, name: tensor}


def why_off_path(tap: Tap) -> str:
    """Why what a tap shows is not what the model goes on with; nothing where it is."""
    if tap.shared is not None:
        return "a part of each key is made elsewhere, for all heads at once (latent attention); take k_rot"
    if tap.item:
        return "its module hands out a copy and goes on with its own; take z"
    return ""


def attended(
    call: Call, flow: Flow, on_path: Callable[[str], bool], swap: Swap | None = None
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Head outputs, and scores and patterns as they flow on.

    ``on_path`` says which of them the model must go on with, as they may be changed or gradients go through them.
    ``swap(scores, pattern, out)`` gives a pattern and head outputs (None: those of the pattern), or None, as
    ``replace`` would have them.
    """
    found = [call.rows(start, end) for start, end in call.blocks()]
    out, pattern = torch.cat([f[0] for f in found], dim=1), torch.cat([f[1] for f in found], dim=2)
    made: dict[str, torch.Tensor] = {}
    mixes = False
    if on_path("scores"):
        own = call.scores(0, call.query.shape[2])
        made["scores"] = flow("scores", own)
        mixes = not torch.equal(own, made["scores"])
        pattern = _pattern_of(call, own, made["scores"], pattern)
    if swap is not None:
        made.setdefault("scores", call.scores(0, call.query.shape[2]))
        given = swap(made["scores"], pattern, out)
        if given is not None:
            pattern, mixes = given[0], given[1] is None
            out = out if given[1] is None else given[1]
    own, made["pattern"] = pattern, flow("pattern", pattern)
    if mixes or not torch.equal(own, made["pattern"]):
        out = call.mixed(made["pattern"])
    elif swap is None and (on_path("scores") or on_path("pattern")):
        mixed = call.mixed(made["pattern"])
        out = by_difference(out, mixed, mixed)
    return flow("z", out), made


def _pattern_of(call: Call, own: torch.Tensor, scores: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """The pattern of these scores; the model's own, to the bit, where they are its own."""
    made = _softmax(call, own)
    if not torch.allclose(made, pattern.to(made), atol=0.02 if pattern.element_size() == 2 else 1e-4, rtol=0):
        raise ModelError("the pattern of this attention is not the softmax of its scores: change the pattern itself")
    new = _softmax(call, scores)
    return new.to(pattern) if not torch.equal(own, scores) else by_difference(pattern, new, new).to(pattern)


def _softmax(call: Call, scores: torch.Tensor) -> torch.Tensor:
    """Softmax over keys, and over the sink of a head where there is one; a row that sees nothing is even."""
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    wide = wide.clamp_min(torch.finfo(torch.float32).min)
    sinks = call.options.get("s_aux")
    if sinks is None:
        return wide.softmax(-1)
    beside = sinks.to(wide).reshape(1, -1, 1, 1).expand(*wide.shape[:-1], 1)
    return torch.cat([wide, beside], dim=-1).softmax(-1)[..., :-1]


def form_of(name: str) -> str:
    """How the features of a site are cut into heads."""
    return "query" if name in HEAD_AXIS else "key_value" if name in KV_HEAD_AXIS else "as is"


def replaced(
    layer: int, given: torch.Tensor, out: torch.Tensor, pattern: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The pattern, and head outputs that are not those of it."""
    if given.shape == pattern.shape == out.shape:
        raise ModelError("as many positions as heads: a pattern cannot be told from head outputs; use a longer prompt")
    if given.shape == pattern.shape:
        return given.to(pattern.dtype), None
    if given.shape == out.shape:
        return pattern, given.to(out.dtype)
    raise ModelError(
        f"replace gave {list(given.shape)} in layer {layer}; a pattern is {list(pattern.shape)}, head outputs are "
        f"{list(out.shape)}"
    )


def seen(tap: Tap, arguments: tuple[Any, ...], result: Any) -> torch.Tensor:
    """What a tap shows as it is: what its module is given, or gives."""
    return first(arguments, result) if tap.end == "in" else plain(result, tap.item)


def plain(result: Any, item: int = 0) -> torch.Tensor:
    """One of what a module gives."""
    found: torch.Tensor = result[item] if isinstance(result, tuple) else result
    return found


def first(arguments: tuple[Any, ...], named: Any) -> torch.Tensor:
    """What a module is given first."""
    given = arguments[0] if arguments else named.get("hidden_states", next(iter(named.values()), None))
    assert isinstance(given, torch.Tensor)
    return given


@contextlib.contextmanager
def hook(module: torch.nn.Module, note: Callable[..., Any]) -> Iterator[None]:
    """Let the note see each call of a module, and replace what it gives: (module, arguments, result)."""
    handle = module.register_forward_hook(lambda m, a, r: note(m, a, r))
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def pre_hook(module: torch.nn.Module, note: Callable[..., Any]) -> Iterator[None]:
    """Let the note see what a module is given, and replace it: (module, arguments, named ones)."""
    handle = module.register_forward_pre_hook(lambda m, a, k: note(m, a, k), with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
