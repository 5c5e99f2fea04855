"""Engine `transformers`: captures any site of a plain transformers model, one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gausslens import Batch, Finding, ModelError, site

from ..loading.turns import turn_of
from .forward_pass import Capture, Captured
from .patching import Patches
from .walk import Run

if TYPE_CHECKING:
    import numpy as np

    from gausslens import Request, Sink, Tokens, Twin

    from ..loading.pretrained import PretrainedModel
    from .runner import TransformersRunner


# What a batch calls ids, text and mask of its keys, where they are other tokens than its queries.
KEYS = ("key_tokens", "key_text", "key_mask")


class TransformersEngine:
    """Captures through a registered attention function and forward hooks."""

    capture: type[Capture] = Capture
    remembers = True  # generation may go on from the keys and values of the tokens before

    def __init__(self) -> None:
        self.patches = Patches()

    def sites(self, model: PretrainedModel) -> tuple[str, ...]:
        """The sites that some layer of this model has."""
        return model.sites

    def run(self, twin: Twin, tokens: Tokens, shard: np.ndarray, request: Request, sink: Sink) -> None:
        """Run one shard; the sink gets each layer as soon as it is done."""
        model: Any = twin.base
        if request.columns and model.exceeds and self.together(model) is None:
            self.run_together(twin, tokens, [shard], request, [sink])
            return
        one = self._prepared(model, tokens, shard, sink, request)
        layers = layers_needed(model, one.capture.wanted, one.logits)
        with turn_of(model.module), self.patches.applied(twin, layers):
            one.finish(one.capture.run(one.ids, one.mask, one.logits, one.embed, sources=one.sources), 0, True)

    def by_layer(self, model: PretrainedModel, edited: Collection[str] = ()) -> str:
        """What a pass reads and holds of a model whose weights are more than ``max_memory``; or why it cannot.

        ``edited`` are the tensors outside the layers that edits change: they are held whole.
        """
        spec = model.spec
        if spec.model is not None:
            raise ModelError(f"{model.name}: a module that is passed from Python is in memory already")
        if model.checkpoint is None:
            raise ModelError(f"{model.name}: its file is read whole; convert it to safetensors")
        if model.stack in ("decoder", "cross"):
            raise ModelError(f"{model.name}: its decoder reads what its encoder gives; `stack: encoder` can be")
        with turn_of(model.module):
            assert model.by_layer is not None
            assert spec.max_memory is not None
            held, name = model.by_layer.held(edited)
            read = sum(map(model.by_layer.bytes, model.by_layer.parts))
        if held > spec.max_memory:
            twin = " with what a twin holds of it" if spec.twins else ""
            raise ModelError(
                f"{model.name}: {name}, and what is outside the layers, take {held / 1e6:,.1f} MB{twin}: the smallest "
                f"that will do is max_memory: {_rounded_up(min(held, model.info.weight_bytes * (1 + spec.twins)))}"
            )
        return f"a pass reads {read / 1e6:,.1f} MB, and holds {held / 1e6:,.1f} MB of it at once ({name})"

    def columns(self, model: PretrainedModel, tokens: int) -> int:
        """How many columns of the logits of so many tokens are there at a time, where analyses take them so."""
        with turn_of(model.module):
            assert model.by_layer is not None
            head = model.by_layer.head
            rows = None if head is None else model.by_layer.rows.get(head)
        return model.info.vocabulary if rows is None else rows.columns(tokens, model.room_for_block)

    def together(self, model: PretrainedModel) -> str | None:
        """Why shards cannot be carried through this model together; None where they can, "" where nothing asks for it.

        Weights that are read a layer at a time are then read once for all shards.
        """
        if not model.exceeds:
            return ""
        from .walk import why_not

        with turn_of(model.module):
            return why_not(model, self.capture)

    def run_together(
        self, twin: Twin, tokens: Tokens, shards: Sequence[np.ndarray], request: Request, sinks: Sequence[Sink]
    ) -> None:
        """Run several shards, all of them through a layer before the next one's weights are read."""
        from .walk import Walk

        model: Any = twin.base
        runs = [self._prepared(model, tokens, *one, request) for one in zip(shards, sinks, strict=True)]
        with turn_of(model.module), self.patches.applied(twin, []):
            Walk(model).carry(runs, model.room)

    def _prepared(self, model: Any, tokens: Tokens, shard: np.ndarray, sink: Sink, request: Request) -> Run:
        """The capture of a shard, which hands over to its sink."""
        ids, text, mask = (torch.from_numpy(a).to(model.device) for a in tokens.padded(shard))
        wanted = wanted_sites(model, request.sites, request.layers)
        heads, kv_heads = model.info.heads, model.info.kv_heads
        read = None if tokens.sources is None else tokens.sources.padded(shard)
        sides = None if read is None else [torch.from_numpy(a).to(model.device) for a in read]
        crossed = sides if sides is not None and tokens.crossed else []
        keys: dict[str, Any] = dict(zip(KEYS[: len(crossed)], crossed, strict=True))

        def batch(layer: int | None, arrays: Any, rows: int = 0, last: bool = True, columns: int = 0) -> None:
            arrays, device = on_one_device(arrays)
            refuse_overflow(layer, arrays)
            t, x, m = (a.to(device) for a in (ids, text, mask))
            beside: dict[str, Any] = {name: a.to(device) for name, a in keys.items()}
            sink(Batch(layer, shard, t, x, m, arrays, heads, kv_heads, rows, last, **beside, columns=columns))

        def done(layer: int, captured: Captured) -> None:
            if captured.call is None:
                batch(layer, captured.arrays)
                return
            length = ids.shape[1]
            for start in range(0, length, request.rows or length):
                end = min(start + (request.rows or length), length)
                square = captured.square(wanted[layer], start, end)
                batch(layer, captured.arrays | square, start, end == length)

        def finish(found: Mapping[str, torch.Tensor], first: int, last: bool) -> None:
            if found:
                batch(None, found, 0, last, first)

        capture = self.capture(model, wanted, done, rows=request.rows is not None)
        capture.prompts = shard
        asked = {s: s in request.sites for s in ("embed", "logits")}
        sources = None if sides is None else (sides[0], sides[2].long())
        return Run(capture, ids, mask.long(), asked["logits"], asked["embed"], finish, sources, request.columns)

    def prove(self, model: PretrainedModel, sites: Sequence[str] | None = None) -> list[Finding]:
        """Hold what is captured (of these sites) against the model's own eager attention, and against its tensors."""
        from ..loading.eager_answer import eager_answer
        from .parity_proof import prove

        with turn_of(model.module):
            model.check_finite()
            return prove(model, self.capture, eager_answer(model), sites)

    def remedies(self, model: PretrainedModel, findings: Sequence[Finding]) -> list[str]:
        """What can be done where the proof fails."""
        from .parity_proof import other_ways

        return other_ways(model, findings)

    def runner(self, twin: Twin) -> TransformersRunner:
        """The runner of ``forward`` analyses."""
        from .runner import TransformersRunner

        return TransformersRunner(self, twin)


def refuse_overflow(layer: int | None, arrays: Mapping[str, torch.Tensor]) -> None:
    """Numbers that float16 cannot hold are told by where they are: they would be NaN in every result.

    Weights are finite: they were looked at when they were read. Scores are left out: what is masked is -inf there.
    """
    for name, tensor in arrays.items():
        if tensor.dtype is not torch.float16 or name == "scores":
            continue
        if not bool(torch.isfinite(tensor.sum(dtype=torch.float32))):
            lost = tensor.numel() - int(torch.isfinite(tensor).sum())
            where = "" if layer is None else f" of layer {layer}"
            raise ModelError(
                f"{name}{where}: {lost:,} of {tensor.numel():,} numbers are not finite: float16 ends at 65,504. "
                "Open the model in another type: `dtype: float32` or `bfloat16` in the table `model`"
            )


def on_one_device(arrays: Mapping[str, torch.Tensor]) -> tuple[Mapping[str, torch.Tensor], torch.device]:
    """The sites of a layer where the largest of them lies: of a model over several devices what goes into a layer comes
    from where the one before it is."""
    device = max(arrays.values(), key=torch.Tensor.numel).device
    return {name: array.to(device) for name, array in arrays.items()}, device


def _rounded_up(size: int) -> str:
    """A number of bytes as a run file says it, not less than it is."""
    unit, of = ("kB", 10**3) if size < 10**7 else ("MB", 10**6)
    return f"{-(-size // of)}{unit}"


def wanted_sites(model: Any, sites: Sequence[str], layers: Sequence[int] | None) -> dict[int, tuple[str, ...]]:
    """{layer: sites} for the sites of layers; those that a layer lacks left out. Unknown sites are refused."""
    family = model.layout.family
    reason = family.reason(family.weights_alone, model.config)
    if reason:
        raise ModelError(f"{model.name}: {reason}")
    unknown = [s for s in sites if s not in model.sites]
    if unknown:
        lacking = model.info.why_lacking(unknown[0])
        why = f" ({lacking})" if lacking else ""
        raise ModelError(f"{model.name} has no site {unknown[0]!r}{why}; its sites: {', '.join(model.sites)}")
    of_layers = [s for s in sites if not site(s).whole]
    info = model.info
    wanted = {}
    for layer in info.layers if layers is None else layers:
        has = tuple(s for s in of_layers if s not in info.lacking.get(layer, {}))
        if has:
            wanted[layer] = has
    return wanted


def layers_needed(model: Any, wanted: Mapping[int, Sequence[str]], logits: bool) -> list[int]:
    """The layers that a pass goes through."""
    return list(range(model.info.n_layers if logits else max(wanted, default=-1) + 1))
