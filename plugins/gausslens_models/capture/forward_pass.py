"""A capture: hooks on a live module for one forward pass, owned by a context manager, checked layer by layer."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gausslens import Interventions, ModelError, site

from ..families.latent import latent_pairs
from ..families.layout import split
from ..families.slots import UNWATCHED, Tap
from .attention import Call, watch, with_our_attention
from .intervening import (
    attended,
    by_difference,
    form_of,
    hook,
    into_features,
    laid_out_as,
    plain,
    pre_hook,
    put_given,
    put_into,
    replaced,
    seen,
    why_off_path,
)

if TYPE_CHECKING:
    import numpy as np

    from ..loading.pretrained import PretrainedModel

# What the attention function is handed; scores, patterns and head outputs are made of it.
HANDED = ("q_rot", "k_rot")
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

    def add(self, name: str, tensor: torch.Tensor, wanted: bool = True) -> None:
        """Note what a site holds, and that it fired; the graph of gradients is kept where there is one."""
        if wanted:
            self.arrays[name] = tensor
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
    a layer's, changes nothing where it changes nothing. ``changes`` are interventions: what a site holds is what the
    model goes on with. So it is with ``grad``, which keeps the graph from the embedding on.
    """

    prompts: Sequence[int] | np.ndarray | None = None  # the numbers of the prompts, which errors tell
    resumed = False  # whether what was before is kept: keys and values of a source are then made no more

    def __init__(
        self,
        model: PretrainedModel,
        wanted: Mapping[int, Sequence[str]],
        done: Callable[[int, Captured], None],
        rows: bool = False,
        eager: bool = False,
        replace: Replace | None = None,
        changes: Interventions | None = None,
        grad: bool = False,
    ) -> None:
        self.model, self.wanted, self.done, self.rows = model, wanted, done, rows
        self.changes, self.grad = changes, grad
        self.eager, self.replace = eager or replace is not None or changes is not None or grad, replace
        self.captured: dict[int, Captured] = {}
        self.finished: set[int] = set()
        self._shape: tuple[int, int] = (0, 0)
        self._sources: Sources | None = None
        self.memory: torch.Tensor | None = None  # what the encoder gave, where keys and values are of it
        self._turn, self._shared_is_watched, self._encodes = -1, False, False

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
        self._sources = sources
        if self.replace is not None and not self.model.layout.family.watched:
            raise ModelError(f"{self.model.name}: replacement needs an attention that can be watched: {UNWATCHED}")
        last = -1 if logits or whole else self.last(logits)
        with contextlib.ExitStack() as stack, torch.set_grad_enabled(self.grad):
            self._ready(stack, self.model.module)
            found = stack.enter_context(self.watching(ids.shape, embed, last))
            with contextlib.suppress(LastLayerDone):
                found |= self.called(ids, mask, logits, whole)
            return self.concluded(found, logits, embed)

    def last(self, logits: bool) -> int:
        """The last layer that is to run; -1 where none is asked for."""
        every = range(self.model.info.n_layers if logits else 0)
        return max((*every, *self.wanted, *self._layers_changed), default=-1)

    def concluded(self, found: dict[str, Any], logits: bool, embed: bool) -> dict[str, Any]:
        """What the whole model gave, once all layers that were asked for are seen to be done."""
        if logits:
            found["logits"] = self.flow(None, "logits", found["logits"])
        self._check_done(found, logits, embed or "embed" in self._changed(None))
        return found if embed else {name: array for name, array in found.items() if name != "embed"}

    @contextlib.contextmanager
    def watching(
        self, shape: Sequence[int], embed: bool = False, stop: int = -1, layers: Sequence[int] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Hooks on the module (on some layers of it) for one pass of this shape, which ends behind layer ``stop``.

        What they find of the whole model is what is handed out.
        """
        found: dict[str, Any] = {}
        self._shape = (shape[0], shape[1])
        with contextlib.ExitStack() as stack:
            if embed or self.grad or (self._changed(None) and (layers is None or 0 in layers)):
                stack.enter_context(hook(self.model.embedding, partial(self._embedded, found)))
            self._turn, self._shared_is_watched = -1, False
            if self.model.layout.family.shared:
                stack.enter_context(pre_hook(self.model.layer_module(0), self._next))
            for layer in range(self.model.info.n_layers) if layers is None else layers:
                self._install(stack, layer, stop=layer == stop)
            yield found

    def flow(self, layer: int | None, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """What the model goes on with from a site."""
        found = tensor if self.changes is None else self.changes(layer, name, tensor)
        if self.grad and not found.requires_grad:
            found.requires_grad_()  # a root: nothing before it has gradients
        return found

    def _changed(self, layer: int | None) -> tuple[str, ...]:
        """The sites of a layer with interventions."""
        return () if self.changes is None else self.changes.sites_of(layer)

    @property
    def _layers_changed(self) -> list[int]:
        return [layer for layer in range(self.model.info.n_layers) if self._changed(layer)]

    def _on_path(self, layer: int, name: str) -> bool:
        """Whether the model must go on with what a site holds."""
        return name in self._changed(layer) or (self.grad and name in self.wanted.get(layer, ()))

    def _embedded(self, found: dict[str, Any], _module: Any, _arguments: Any, result: Any) -> Any:
        """The embedding; the root of gradients. An encoder may have the same, and is not looked at."""
        if self._encodes:
            return None
        found["embed"] = flows = self.flow(None, "embed", plain(result))
        if self.grad:
            return put_into(result, 0, flows.clone())  # some models go on in place, which a root cannot bear
        return put_into(result, 0, flows) if "embed" in self._changed(None) else None

    def _ready(self, stack: contextlib.ExitStack, module: Any) -> None:
        """The module as a capture wants it, until the stack is left."""
        stack.enter_context(with_our_attention(module, self.model.layout.family.watched))

    def called(self, ids: torch.Tensor, mask: torch.Tensor, logits: bool, whole: bool = False) -> dict[str, Any]:
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
        self._encodes = True
        self.memory, kept = encoded(model, self._sources), self._sources[1]
        self._encodes = False
        if logits:
            given = {"encoder_outputs": (self.memory,), "attention_mask": kept, "decoder_input_ids": ids}
            return {"logits": model.module(**given, decoder_attention_mask=mask, use_cache=False).logits}
        given = {"encoder_hidden_states": self.memory, "encoder_attention_mask": kept}
        output = body(input_ids=ids, attention_mask=mask, **given, use_cache=False)
        return {"final": output.last_hidden_state} if whole else {}

    def _keys(self) -> int | None:
        """How many keys there are, where they are others than the queries."""
        crossed = self._sources is not None and self.model.info.facts.crossed
        return self._sources[0].shape[1] if crossed and self._sources is not None else None

    def _install(self, stack: contextlib.ExitStack, layer: int, stop: bool) -> None:
        sites = tuple(dict.fromkeys((*self.wanted.get(layer, ()), *self._changed(layer))))
        if not sites and not self.eager:
            return
        module = self.model.layer_module(layer)
        taps = self.model.taps
        if sites:
            stack.enter_context(pre_hook(module, self._in_turn(layer, partial(self._begin, layer))))
        for name in sites:
            if name in taps:
                self._tap(stack, module, layer, name, taps[name])
        self._watch(stack, module, layer, bool(set(sites) - taps.keys()))
        if sites:
            stack.enter_context(hook(module, self._in_turn(layer, partial(self._end, layer, stop))))

    def _tap(self, stack: contextlib.ExitStack, module: Any, layer: int, name: str, tap: Tap) -> None:
        """A hook where a site is seen."""
        if self._on_path(layer, name) and (reason := why_off_path(tap)):
            what = "gradients" if name not in self._changed(layer) else "interventions"
            raise ModelError(f"{self.model.name}: {name} of layer {layer} takes no {what}: {reason}")
        if tap.shared is not None:
            keep = partial(self._shared_noted, layer, name, tap.shared)
            stack.enter_context(hook(module.get_submodule(tap.shared.module), keep))
        place = module.get_submodule(tap.module)
        note = self._in_turn(layer, partial(self._tapped, layer, name, tap))
        stack.enter_context(hook(place, note) if tap.end == "out" else pre_hook(place, note))

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

    def _in_turn(self, layer: int, note: Callable[..., Any]) -> Callable[..., Any]:
        """A note of one depth alone, where one layer serves every depth."""
        if not self.model.layout.family.shared:
            return note
        return lambda *arguments: note(*arguments) if self._turn == layer else None

    def _next(self, *_: Any) -> None:
        self._turn += 1

    def _begin(self, layer: int, *_: Any) -> None:
        self.captured[layer] = Captured()

    def _tapped(self, layer: int, name: str, tap: Tap, _module: Any, arguments: Any, result: Any) -> Any:
        """Note what a tap shows; where it may be changed, what the module is given or gives instead."""
        if tap.first and name in self.captured[layer].fired:
            return None
        held = seen(tap, arguments, result)
        cut = held if site(name).square else self._cut(name, tap, arguments, result)
        ours = self._as_added(layer, name, tap, cut)
        copied = tap.copied or (name in ("q", "k", "v") and self.model.info.facts.clip is not None)
        wanted = name in self.wanted.get(layer, ())
        if not self._on_path(layer, name):
            self.captured[layer].add(name, ours.clone() if copied else ours, wanted)
            return None
        beside = tap.end == "in" and site(name).dims[-1] == "d_model" and tap.module != ""
        flows = self.flow(layer, name, ours.clone() if beside and self.grad else ours)
        self.captured[layer].add(name, flows, wanted)
        if flows is ours and not self.grad:
            return None
        back = flows if ours is cut else by_difference(cut, ours, flows, self._factor(name))
        form = form_of(name)
        if not site(name).square:
            back = into_features(held, back, form, tap, self.model.layout.sizes)
        if beside:  # the module reads the stream, which goes on beside it: both are this one tensor
            held.copy_(back)
            return None
        back = back.clone() if copied else laid_out_as(held, back)
        return put_into(result, tap.item, back) if tap.end == "out" else put_given(arguments, result, back)

    def _as_added(self, layer: int, name: str, tap: Tap, tensor: torch.Tensor) -> torch.Tensor:
        """What is seen, with what the model adds or multiplies by only afterwards."""
        if tap.shared is not None:
            shared = self.captured[layer].shared.pop(name)[:, :, None]
            tensor = torch.cat([tensor, shared.expand(*tensor.shape[:3], -1)], dim=-1)
        if tap.plus:
            added = self.model.layer_module(layer).get_parameter(tap.plus)
            tensor = tensor + added.unflatten(0, tensor.shape[2:])
        return scaled(self.model, name, tensor)

    def _factor(self, name: str) -> float:
        return self.model.info.facts.residual_scale if name in ADDED else 1.0

    def _cut(self, name: str, tap: Tap, arguments: Any, result: Any) -> torch.Tensor:
        """What a tap shows, cut into heads where the site has them."""
        tensor = seen(tap, arguments, result)
        keys = self._keys() if site(name).of_keys else None
        tensor = tensor.reshape(self._shape[0], self._shape[1] if keys is None else keys, -1)
        form = form_of(name)
        whole = form == "as is" and not tap.part
        return tensor if whole else split(tensor, -1, form, tap.part, self.model.layout.sizes)

    def _shared_noted(self, layer: int, name: str, tap: Tap, _module: Any, arguments: Any, result: Any) -> None:  # noqa: ARG002
        """Keep what all heads have in common until their own part is there."""
        shared = split(plain(result, tap.item), -1, "as is", tap.part, self.model.layout.sizes)
        self.captured[layer].shared[name] = shared.detach()

    def _attended(self, layer: int, call: Call) -> torch.Tensor | None:
        sites = self.wanted.get(layer, ())
        captured = self.captured.get(layer, Captured())
        call = self._turned(layer, call, captured)
        square = {name for name in (*sites, *self._changed(layer)) if site(name).square}
        if not (square or "z" in sites or self.eager):
            return None
        if self.rows and square:
            captured.call, square = call, set()
        changed = any(self._on_path(layer, name) for name in ("scores", "pattern", "z"))
        if changed or self.replace is not None:
            return self._flowing(layer, call, captured)
        out = self._square(call, captured, square) if square else call.outputs(self.eager)
        if "z" in sites:
            captured.add("z", out)
        return out

    def _turned(self, layer: int, call: Call, captured: Captured) -> Call:
        """Note q and k as they meet; the call with what they may have been changed to."""
        heads = {"q_rot": call.query, "k_rot": call.key}
        for name in HANDED:
            changed = self._on_path(layer, name)
            wanted = name in self.wanted.get(layer, ())
            if not (wanted or changed):
                continue
            handed = heads[name].transpose(1, 2)
            ours = self._as_ours(layer, name, call, handed)
            flows = self.flow(layer, name, ours) if changed else ours
            captured.add(name, flows, wanted)
            if flows is not ours or (changed and self.grad):
                theirs = self._as_theirs(layer, name, call, handed, ours, flows).transpose(1, 2)
                heads[name] = laid_out_as(heads[name], theirs)
        same = heads["q_rot"] is call.query and heads["k_rot"] is call.key
        return call if same else dataclasses.replace(call, query=heads["q_rot"], key=heads["k_rot"])

    def _flowing(self, layer: int, call: Call, captured: Captured) -> torch.Tensor:
        """Head outputs where scores, patterns or they themselves may be changed."""
        wanted = self.wanted.get(layer, ())

        def swap(scores: torch.Tensor, pattern: torch.Tensor, out: torch.Tensor) -> Any:
            assert self.replace is not None
            given = self.replace(layer, scores, pattern, call.value.transpose(1, 2))
            return None if given is None else replaced(layer, given, out, pattern)

        def flow(name: str, tensor: torch.Tensor) -> torch.Tensor:
            return self.flow(layer, name, tensor) if self._on_path(layer, name) else tensor

        chosen = swap if self.replace is not None else None
        out, made = attended(call, flow, partial(self._on_path, layer), chosen)
        made = {"scores": call.scores(0, call.query.shape[2])} | made if "scores" in wanted else made
        for name, array in {**made, "z": out}.items():
            captured.add(name, array, name in wanted)
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

    def _as_theirs(
        self, layer: int, name: str, call: Call, handed: torch.Tensor, ours: torch.Tensor, flows: torch.Tensor
    ) -> torch.Tensor:
        """The other way round: what the attention function is handed, of q or k as we have it."""
        family = self.model.layout.family
        if family.query_scaled and name == "q_rot":
            factor = float(call.options["scaling"]) / self.model.info.facts.scale(layer)
            return by_difference(handed, ours, flows, factor)
        if family.latent not in ("", "pairs", "halves") and latent_pairs(self.model.config, family):
            own = flows.shape[-1] - self.model.layout.sizes.latent[1]
            pairs = torch.unflatten(flows[..., own:], -1, (-1, 2))
            return torch.cat([flows[..., :own], pairs.mT.flatten(-2)], dim=-1)
        return flows

    def _square(self, call: Call, captured: Captured, sites: set[str]) -> torch.Tensor:
        """Head outputs with whole scores and patterns beside them."""
        found = [call.rows(start, end) for start, end in call.blocks()]
        out = torch.cat([f[0] for f in found], dim=1) if self.eager else call.outputs()
        if "scores" in sites:
            captured.add("scores", call.scores(0, call.query.shape[2]))
        if "pattern" in sites:
            captured.add("pattern", torch.cat([f[1] for f in found], dim=2))
        return out

    def _end(self, layer: int, stop: bool, *_: Any) -> None:
        captured = self.captured.pop(layer)
        self._check(layer, captured)
        if layer in self.wanted:
            self.done(layer, captured)
        self.finished.add(layer)
        if stop:
            raise LastLayerDone

    def _check(self, layer: int, captured: Captured) -> None:
        """Each site once, with the shape and a type that a site of this model has."""
        wanted = self.wanted.get(layer, ())
        for name in dict.fromkeys((*wanted, *self._changed(layer))):
            if captured.call is not None and site(name).square:
                continue
            times = captured.fired.get(name, 0)
            if times != 1 and not self.resumed:
                raise ModelError(f"{self.model.name}: {name} of layer {layer} fired {times} times; it must fire once")
            if name not in wanted:
                continue
            shape = site(name).shape(self.model.info, *self._shape, self._keys())
            array = captured.arrays[name]
            if tuple(array.shape) != shape or not array.is_floating_point():
                got = f"{array.dtype} {list(array.shape)}"
                raise ModelError(f"{self.model.name}: {name} of layer {layer} is {got}, not {list(shape)}")

    def _check_done(self, found: Mapping[str, Any], logits: bool, embed: bool) -> None:
        lost = sorted({*self.wanted, *self._layers_changed} - self.finished)
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
