"""A capture: hooks on a live module for one forward pass, owned by a context manager, checked layer by layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gausslens import HEAD_AXIS, KV_HEAD_AXIS, ModelError, site

from ..families.latent import latent_pairs
from ..families.layout import split
from ..families.slots import UNWATCHED, Tap
from .attention import Call, watch, with_our_attention

if TYPE_CHECKING:
    import numpy as np

    from ..loading.pretrained import PretrainedModel

# What the attention function is handed, by site; scores, patterns and head outputs are made of it.
HANDED: Mapping[str, Callable[[Call], torch.Tensor]] = {
    "q_rot": lambda call: call.query.transpose(1, 2),
    "k_rot": lambda call: call.key.transpose(1, 2),
}
# What is added to the stream, in some families multiplied on the way.
ADDED = ("attn_out", "mlp_out")
# Token numbers and mask [prompt, position] of what an encoder reads beside what its decoder does.
Sources = tuple[torch.Tensor, torch.Tensor]
# replace(layer, scores, pattern, v) -> pattern or head outputs, or None
Replace = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor | None]


class LastLayerDone(Exception):
    """Not an error: the last layer that was asked for is done."""


@dataclass
class Captured:
    """What was captured of a layer; with ``rows`` scores and patterns are made again, block by block, when asked."""

    arrays: dict[str, torch.Tensor] = field(default_factory=dict)
    fired: dict[str, int] = field(default_factory=dict)
    call: Call | None = None
    shared: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Note what a site holds, and that it fired."""
        self.arrays[name] = tensor.detach()
        self.fired[name] = self.fired.get(name, 0) + 1

    def square(self, sites: Sequence[str], start: int, end: int) -> dict[str, torch.Tensor]:
        """Scores and pattern of some query rows."""
        assert self.call is not None
        found = {"scores": self.call.scores(start, end)} if "scores" in sites else {}
        return found | ({"pattern": self.call.rows(start, end)[1].detach()} if "pattern" in sites else {})


class Capture:
    """One forward pass of a model: what is wanted of each layer goes to ``done(layer, captured)`` as it completes.

    ``wanted`` is {layer: sites}. With ``rows`` the square sites stay unmade: ``captured.square`` makes them. ``eager``
    has head outputs made from patterns, so that ``replace``, which may put its own pattern or head outputs in place of
    a layer's, changes nothing where it changes nothing.
    """

    prompts: Sequence[int] | np.ndarray | None = None  # the numbers of the prompts, which errors tell

    def __init__(
        self,
        model: PretrainedModel,
        wanted: Mapping[int, Sequence[str]],
        done: Callable[[int, Captured], None],
        rows: bool = False,
        eager: bool = False,
        replace: Replace | None = None,
    ) -> None:
        self.model, self.wanted, self.done, self.rows = model, wanted, done, rows
        self.eager, self.replace = eager or replace is not None, replace
        self.captured: dict[int, Captured] = {}
        self.finished: set[int] = set()
        self._shape: tuple[int, int] = (0, 0)
        self._sources: Sources | None = None
        self.memory: torch.Tensor | None = None  # what the encoder gave, where keys and values are of it
        self._turn, self._shared_is_watched = -1, False

    def run(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        logits: bool = False,
        embed: bool = False,
        whole: bool = False,
        sources: Sources | None = None,
    ) -> dict[str, Any]:
        """Run the model on [prompt, position] and return embed and logits if asked.

        ``whole`` runs all layers although no logits are asked, and returns the final hidden state. ``sources`` are ids
        and mask of what the encoder reads, of a model whose decoder is studied.
        """
        check_sources(self.model, sources)
        module, self._sources = self.model.module, sources
        if self.replace is not None and not self.model.layout.family.watched:
            raise ModelError(f"{self.model.name}: replacement needs an attention that can be watched: {UNWATCHED}")
        found: dict[str, Any] = {}
        self._shape = (ids.shape[0], ids.shape[1])
        last = max(self.wanted, default=-1)
        with contextlib.ExitStack() as stack, torch.no_grad():
            self._ready(stack, module)
            if embed:
                stack.enter_context(
                    hook(self.model.embedding, lambda _m, _a, out: found.update(embed=_plain(out).detach()))
                )
            self._turn, self._shared_is_watched = -1, False
            if self.model.layout.family.shared:
                stack.enter_context(pre_hook(self.model.layer_module(0), self._next))
            for layer in range(self.model.info.n_layers):
                self._install(stack, layer, stop=layer == last and not (logits or whole))
            with contextlib.suppress(LastLayerDone):
                found |= self._called(ids, mask, logits, whole)
        self._check_done(found, logits, embed)
        return found

    def _ready(self, stack: contextlib.ExitStack, module: Any) -> None:
        """The module as a capture wants it, until the stack is left."""
        stack.enter_context(with_our_attention(module, self.model.layout.family.watched))

    def _called(self, ids: torch.Tensor, mask: torch.Tensor, logits: bool, whole: bool) -> dict[str, Any]:
        """What the module itself gives of this: logits, or the final hidden state."""
        if self.model.stack is not None:
            return self._called_stack(ids, mask, logits, whole)
        body = self.model.module if logits else self.model.module.base_model
        output = body(input_ids=ids, attention_mask=mask, use_cache=False)
        if logits:
            return {"logits": output.logits}
        return {"final": output.last_hidden_state} if whole else {}

    def _called_stack(self, ids: torch.Tensor, mask: torch.Tensor, logits: bool, whole: bool) -> dict[str, Any]:
        """The same of one stack of two; the encoder runs before the decoder, and what it gave is kept."""
        model, body = self.model, self.model.body
        if self._sources is None:
            output = body(input_ids=ids, attention_mask=mask)
            return {"final": output.last_hidden_state} if whole else {}
        self.memory, seen = encoded(model, self._sources), self._sources[1]
        if logits:
            given = {"encoder_outputs": (self.memory,), "attention_mask": seen, "decoder_input_ids": ids}
            return {"logits": model.module(**given, decoder_attention_mask=mask, use_cache=False).logits}
        given = {"encoder_hidden_states": self.memory, "encoder_attention_mask": seen}
        output = body(input_ids=ids, attention_mask=mask, **given, use_cache=False)
        return {"final": output.last_hidden_state} if whole else {}

    def _keys(self) -> int | None:
        """How many keys there are, where they are others than the queries."""
        crossed = self._sources is not None and self.model.info.facts.crossed
        return self._sources[0].shape[1] if crossed and self._sources is not None else None

    def _install(self, stack: contextlib.ExitStack, layer: int, stop: bool) -> None:
        sites = self.wanted.get(layer, ())
        if not sites and not self.eager:
            return
        module = self.model.layer_module(layer)
        taps = self.model.taps
        if sites:
            stack.enter_context(pre_hook(module, self._in_turn(layer, partial(self._begin, layer))))
        self._watch(stack, module, layer, bool(set(sites) - taps.keys()))
        for name in sites:
            if name in taps:
                tap = taps[name]
                if tap.shared is not None:
                    keep = partial(self._shared_noted, layer, name, tap.shared)
                    stack.enter_context(hook(module.get_submodule(tap.shared.module), keep))
                place = module.get_submodule(tap.module)
                note = self._in_turn(layer, partial(self._tapped, layer, name, tap))
                stack.enter_context(hook(place, note) if tap.end == "out" else pre_hook(place, note))
        if sites:
            stack.enter_context(hook(module, self._in_turn(layer, partial(self._end, layer, stop))))

    def _watch(self, stack: contextlib.ExitStack, module: Any, layer: int, needed: bool) -> None:
        """Let this layer's attention be seen; where one layer serves every depth, once, for whose turn it is."""
        family = self.model.layout.family
        always = self.eager and not self.model.layout.kinds[layer] and family.watched
        if not (needed or always) or (family.shared and self._shared_is_watched):
            return
        self._shared_is_watched = family.shared
        attention = module.get_submodule(family.attention)
        handler = (lambda call: self._attended(self._turn, call)) if family.shared else partial(self._attended, layer)
        stack.callback(watch(attention, handler))

    def _in_turn(self, layer: int, note: Callable[..., None]) -> Callable[..., None]:
        """A note of one depth alone, where one layer serves every depth."""
        if not self.model.layout.family.shared:
            return note
        return lambda *arguments: note(*arguments) if self._turn == layer else None

    def _next(self, *_: Any) -> None:
        self._turn += 1

    def _begin(self, layer: int, *_: Any) -> None:
        self.captured[layer] = Captured()

    def _tapped(self, layer: int, name: str, tap: Tap, _module: Any, arguments: Any, result: Any) -> None:
        if tap.first and name in self.captured[layer].fired:
            return
        if site(name).square:
            self.captured[layer].add(name, _seen(tap, arguments, result))
            return
        tensor = self._cut(name, tap, arguments, result)
        if tap.shared is not None:
            shared = self.captured[layer].shared.pop(name)[:, :, None]
            tensor = torch.cat([tensor, shared.expand(*tensor.shape[:3], -1)], dim=-1)
        if tap.plus:
            added = self.model.layer_module(layer).get_parameter(tap.plus)
            tensor = tensor + added.unflatten(0, tensor.shape[2:])
        if tap.copied or (name in ("q", "k", "v") and self.model.info.facts.clip is not None):
            tensor = tensor.clone()  # the model clips it where it stands
        self.captured[layer].add(name, scaled(self.model, name, tensor))

    def _cut(self, name: str, tap: Tap, arguments: Any, result: Any) -> torch.Tensor:
        """What a tap shows, cut into heads where the site has them."""
        tensor = _seen(tap, arguments, result)
        keys = self._keys() if site(name).of_keys else None
        tensor = tensor.reshape(self._shape[0], self._shape[1] if keys is None else keys, -1)
        form = "query" if name in HEAD_AXIS else "key_value" if name in KV_HEAD_AXIS else "as is"
        whole = form == "as is" and not tap.part
        return tensor if whole else split(tensor, -1, form, tap.part, self.model.layout.sizes)

    def _shared_noted(self, layer: int, name: str, tap: Tap, _module: Any, arguments: Any, result: Any) -> None:  # noqa: ARG002
        """Keep what all heads have in common until their own part is there."""
        shared = split(_plain(result, tap.item), -1, "as is", tap.part, self.model.layout.sizes)
        self.captured[layer].shared[name] = shared.detach()

    def _attended(self, layer: int, call: Call) -> torch.Tensor | None:
        sites = self.wanted.get(layer, ())
        captured = self.captured.get(layer, Captured())
        for name, of in HANDED.items():
            if name in sites:
                captured.add(name, self._as_ours(layer, name, call, of(call)))
        square = {name for name in sites if site(name).square}
        if not (square or "z" in sites or self.eager):
            return None
        if self.rows and square:
            captured.call, square = call, set()
        out = self._square(layer, call, captured, square) if square or self.replace else call.outputs(self.eager)
        if "z" in sites:
            captured.add("z", out)
        return out

    def _as_ours(self, layer: int, name: str, call: Call, handed: torch.Tensor) -> torch.Tensor:
        """q or k as handed over, but neither scaled nor with its dimensions in another order than in the weights."""
        family = self.model.layout.family
        if family.query_scaled and name == "q_rot":
            handed = handed * (float(call.options["scaling"]) / self.model.info.facts.scale(layer))
        if family.latent not in ("", "pairs", "halves") and latent_pairs(self.model.config, family):
            own = handed.shape[-1] - self.model.layout.sizes.latent[1]
            halves = torch.unflatten(handed[..., own:], -1, (2, -1))
            handed = torch.cat([handed[..., :own], halves.mT.flatten(-2)], dim=-1)
        return handed

    def _square(self, layer: int, call: Call, captured: Captured, sites: set[str]) -> torch.Tensor:
        """Head outputs with whole scores and patterns beside them, which ``replace`` may change."""
        found = [call.rows(start, end) for start, end in call.blocks()]
        out = torch.cat([f[0] for f in found], dim=1) if self.eager else call.outputs()
        pattern = torch.cat([f[1] for f in found], dim=2)
        scores = call.scores(0, call.query.shape[2]) if self.replace is not None or "scores" in sites else pattern
        if self.replace is not None:
            given = self.replace(layer, scores, pattern, call.value.transpose(1, 2))
            if given is not None:
                out, pattern = _replaced(layer, call, given, out, pattern)
        for name, array in (("scores", scores), ("pattern", pattern)):
            if name in sites:
                captured.add(name, array)
        return out

    def _end(self, layer: int, stop: bool, *_: Any) -> None:
        captured = self.captured.pop(layer)
        self._check(layer, captured)
        self.done(layer, captured)
        self.finished.add(layer)
        if stop:
            raise LastLayerDone

    def _check(self, layer: int, captured: Captured) -> None:
        """Each site once, with the shape and a type that a site of this model has."""
        for name in self.wanted[layer]:
            if captured.call is not None and site(name).square:
                continue
            times = captured.fired.get(name, 0)
            if times != 1:
                raise ModelError(f"{self.model.name}: {name} of layer {layer} fired {times} times; it must fire once")
            shape = site(name).shape(self.model.info, *self._shape, self._keys())
            array = captured.arrays[name]
            if tuple(array.shape) != shape or not array.is_floating_point():
                got = f"{array.dtype} {list(array.shape)}"
                raise ModelError(f"{self.model.name}: {name} of layer {layer} is {got}, not {list(shape)}")

    def _check_done(self, found: Mapping[str, Any], logits: bool, embed: bool) -> None:
        lost = sorted(set(self.wanted) - self.finished)
        if lost:
            raise ModelError(f"{self.model.name}: layer {lost[0]} never ran: nothing was captured there")
        for name, asked in (("logits", logits), ("embed", embed)):
            if asked and name not in found:
                raise ModelError(f"{self.model.name}: {name} never fired: nothing was captured there")
            if asked and tuple(found[name].shape) != site(name).shape(self.model.info, *self._shape):
                raise ModelError(f"{self.model.name}: {name} has the shape {list(found[name].shape)}")


def check_sources(model: Any, sources: Sources | None) -> None:
    """Refuse a decoder without what its encoder reads, and any other model with it."""
    needed = getattr(model, "stack", None) in ("decoder", "cross")
    if needed and sources is None:
        raise ModelError(
            f"{model.name}: its decoder reads what its encoder makes of a source: give its token numbers too, "
            "runner.forward(ids, **tokens.beside(prompts))"
        )
    if sources is not None and not needed:
        raise ModelError(f"{model.name}: sources are for the decoder of a model of two stacks; this reads one text")


def encoded(model: Any, sources: Sources) -> torch.Tensor:
    """What the encoder gives [prompt, source position, d_model]."""
    found: torch.Tensor = model.module.get_encoder()(input_ids=sources[0], attention_mask=sources[1])[0]
    return found


def scaled(model: PretrainedModel, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """What a site holds: of what is added to the stream, the product with what it is multiplied by there."""
    factor = model.info.facts.residual_scale if name in ADDED else 1.0
    return tensor if factor == 1 else tensor * factor


def _replaced(
    layer: int, call: Call, given: torch.Tensor, out: torch.Tensor, pattern: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if given.shape == pattern.shape == out.shape:
        raise ModelError("as many positions as heads: a pattern cannot be told from head outputs; use a longer prompt")
    if given.shape == pattern.shape:
        return call.mixed(given.to(pattern.dtype)), given
    if given.shape == out.shape:
        return given.to(out.dtype), pattern
    raise ModelError(
        f"replace gave {list(given.shape)} in layer {layer}; a pattern is {list(pattern.shape)}, head outputs are "
        f"{list(out.shape)}"
    )


def _seen(tap: Tap, arguments: tuple[Any, ...], result: Any) -> torch.Tensor:
    """What a tap shows as it is: what its module is given, or gives."""
    return _first(arguments, result) if tap.end == "in" else _plain(result, tap.item)


def _plain(result: Any, item: int = 0) -> torch.Tensor:
    found: torch.Tensor = result[item] if isinstance(result, tuple) else result
    return found


def _first(arguments: tuple[Any, ...], named: Any) -> torch.Tensor:
    given = arguments[0] if arguments else named.get("hidden_states", next(iter(named.values()), None))
    assert isinstance(given, torch.Tensor)
    return given


@contextlib.contextmanager
def hook(module: torch.nn.Module, note: Callable[..., None]) -> Iterator[None]:
    """Let the note see each call of a module: (module, arguments, result)."""
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
