"""What the host knows of a model: plain facts, and tensors by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..terminal import html_table
from .errors import ModelError, did_you_mean
from .facts import FactsField

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    import xarray as xr

    from .analyses import StepRef
    from .parameters import Parameters
    from .prompts import Prompt, Tokens

HeadAxis = tuple[int, Literal["head", "kv_head"]]
# Which axis of a tensor is that of heads, unless a loader tells another (facts.head_axes): the host narrows `heads` by
# this, and never repeats key/value heads.
HEAD_AXES: Mapping[str, HeadAxis] = {
    **dict.fromkeys(("W_Q", "b_Q", "W_O"), (0, "head")),
    **dict.fromkeys(("W_K", "W_V", "b_K", "b_V"), (0, "kv_head")),
}

# Bytes of a number of each type that weights may have.
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


class NoTensor(ModelError):
    """A layer does not have the tensor that was asked for."""


@dataclass(frozen=True)
class ModelSpec:
    """What the `model:` block says, resolved: the path (a directory, ``builtin:x`` or ``hub:owner/name@revision``)."""

    path: str
    parameters: Parameters
    dtype: str | None = None
    device: str = "cpu"
    model: Any = None  # a live module or bridge, passed from Python
    tokenizer: Any = None
    open_as: OpenAs | None = None  # what another loader made of the path, to be served as that one's
    max_memory: int | None = None  # bytes: weights that are more are not to be held in memory at once
    twins: bool = False  # twins of it run too, each of which holds a copy of what its edits change


@dataclass(frozen=True, kw_only=True)
class OpenAs:
    """What a loader's ``open`` may return in place of an open model: a module, and the loader that serves it.

    ``module()`` makes the module, in the type that its weights are stored in: it is called when it is needed, again
    after it was let go of, and gives the same numbers each time; ``parameters`` are keys of ``model:`` for the loader
    that is named, as the mapping of `torch`. The model stays yours: steps have the key of your loader, with its name,
    version, parameters and this ``fingerprint``, which must change when the weights do. ``tokenizer`` is one of
    transformers. ``initial()`` makes a module with fresh weights, under the seed that torch then has.
    ``save(directory, tensors)`` writes the tensors of a twin, named as in the module's state_dict, and returns what
    ``open`` makes of that directory, which is then compared with them, bit by bit.
    """

    module: Callable[[], Any]
    parameters: Mapping[str, Any]
    fingerprint: str
    loader: str = "torch"
    name: str | None = None
    tokenizer: Any = None
    initial: Callable[[], Any] | None = None
    save: Callable[[Path, Mapping[str, torch.Tensor]], OpenAs] | None = None


@dataclass(frozen=True)
class ModelInfo:
    """Facts of a model that config and headers tell, without its weights.

    ``layers``, ``heads`` and ``kv_heads`` are those in view: a step with ``layers: [0, 1]`` sees only these.
    ``kv_of_head[h]`` is the key/value head that query head h reads. ``lacking[layer][site]`` is the reason why a layer
    does not have a site that the model has. ``d_value`` is the width of the value of a head where it is not that of its
    query (sites v and z, tensors W_V and W_O). ``facts`` are what a family adds (norm, position, scale, soft cap, ...):
    a loader gives a mapping, and readers find the typed Facts, which refuse what was not told.
    """

    name: str
    family: str
    fingerprint: str
    dtype: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    vocabulary: int
    n_parameters: int
    kv_of_head: tuple[int, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    causal: bool = True
    max_positions: int | None = None
    lacking: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    d_value: int | None = None
    facts: FactsField = FactsField()  # noqa: RUF009  it holds nothing

    @property
    def weight_bytes(self) -> int:
        """What all its weights take in memory, in the type that they are computed with."""
        return self.n_parameters * BYTES.get(self.dtype, 4)

    def head_axis(self, name: str) -> HeadAxis | None:
        """Which axis of a tensor is that of heads, and of which: (0, "head"), (0, "kv_head"); None where none is."""
        told = self.facts.head_axes
        return told[name] if name in told else HEAD_AXES.get(name)

    def why_lacking(self, site: str) -> str:
        """Why layers in view do not have a site, where the model tells: each reason once; nothing where none does."""
        told = (self.lacking.get(layer, {}).get(site) for layer in self.layers)
        return "; ".join(dict.fromkeys(reason for reason in told if reason))

    def narrowed(self, layers: Sequence[int] | None, heads: Sequence[int] | None) -> ModelInfo:
        """The same model with only some layers and heads in view."""
        kept = self.layers if layers is None else tuple(sorted(set(layers)))
        seen = self.heads if heads is None else tuple(sorted(set(heads)))
        for what, chosen, known in (("layer", kept, self.layers), ("head", seen, self.heads)):
            unknown = [i for i in chosen if i not in known]
            if unknown:
                raise ModelError(
                    f"{self.name} has no {what} {', '.join(map(str, unknown))}: "
                    f"its {what}s are {known[0]} to {known[-1]}"
                )
        kv_heads = tuple(sorted({self.kv_of_head[h] for h in seen})) if heads is not None else self.kv_heads
        return replace(self, layers=kept, heads=seen, kv_heads=kv_heads)


# What a derived analysis finds in context.model where the run file has no model: no layers, no heads, no facts.
NO_MODEL = ModelInfo(
    name="no model",
    family="none",
    fingerprint="",
    dtype="float32",
    n_layers=0,
    n_heads=0,
    n_kv_heads=0,
    d_model=0,
    d_head=0,
    d_mlp=0,
    vocabulary=0,
    n_parameters=0,
    kv_of_head=(),
    layers=(),
    heads=(),
    kv_heads=(),
)


class OpenModel(Protocol):
    """What a loader returns. Opening is lazy: weights are read by the first call of ``tensor``.

    It may have ``tokenizer_digest``, what its tokenizer is: part of the key of results that hold text.

    It may have a method ``held() -> Mapping[str, Tensor]``: its weights that are in memory, looked at after an outside
    plugin ran; after ``close`` they are read again.

    It may have a method ``save(directory: Path, twin: Twin) -> str``: it writes the twin into the empty directory as a
    checkpoint that others open, and returns the fingerprint that it has when it is opened again. It answers for what it
    wrote: what cannot be written, or is another when it is read again, is a ModelError.
    """

    @property
    def info(self) -> ModelInfo:
        """The facts, from config, headers and fingerprint."""
        ...

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens:
        """Render, tokenise once with offsets, and map parts to tokens, words and segments."""
        ...

    def names(self, layer: int | None) -> tuple[str, ...]:
        """The tensors of a layer by their TransformerLens names; those outside the layers where layer is None."""
        ...

    def tensor(self, layer: int | None, name: str) -> torch.Tensor:
        """One tensor in the shape TransformerLens gives it; key/value heads not repeated."""
        ...

    def initial(self, layer: int | None, name: str, seed: int) -> torch.Tensor:
        """A fresh draw of that tensor from the model's own initialisation."""
        ...

    def close(self) -> None:
        """Let go of files and memory."""
        ...


class LayerWeights:
    """The tensors of one layer, edits overlaid, by name: ``weights.W_Q`` or ``weights["W_Q"]``.

    ``layer`` is None for the tensors outside the layers. ``heads``, ``kv_heads`` name the rows of the head axis of
    the tensors in view that have one; ``kv_of_head`` gives, for each head in view, its place among the key/value
    heads in view.
    """

    def __init__(
        self,
        model: OpenModel,
        layer: int | None,
        overlay: Mapping[str, torch.Tensor] | None = None,
        info: ModelInfo | None = None,
        seed: int = 0,
        edited: Sequence[int] | None = None,
        inputs: Mapping[StepRef, xr.Dataset] | None = None,
    ) -> None:
        self.layer = layer
        self.info = info or model.info
        self.heads = self.info.heads
        self.kv_heads = self.info.kv_heads
        self.kv_of_head = tuple(self.kv_heads.index(self.info.kv_of_head[h]) for h in self.heads)
        self._model = model
        self._overlay = overlay or {}
        self._seed = seed
        self._edited = edited
        self._inputs = inputs or {}

    @property
    def model(self) -> OpenModel:
        """The model as its loader opened it, without edits: for an edit that knows what this loader tells besides."""
        return self._model

    @property
    def inputs(self) -> Mapping[StepRef, xr.Dataset]:
        """The results that an edit reads, by its ``inputs(parameters, steps)``."""
        return self._inputs

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that there are."""
        return self._model.names(self.layer)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __repr__(self) -> str:
        where = "tensors outside the layers" if self.layer is None else f"layer {self.layer}"
        return f"<{where} of {self.info.name}: {', '.join(self.names)}>"

    def _repr_html_(self) -> str:
        where = "outside the layers" if self.layer is None else f"of layer {self.layer}"
        shown = ((name, self[name]) for name in self.names)
        each = ((name, tensor.shape, str(tensor.dtype).removeprefix("torch.")) for name, tensor in shown)
        rows = [(name, " \u00d7 ".join(map(str, shape)), dtype) for name, shape, dtype in each]
        return html_table(f"tensors {where} of {self.info.name}", rows, ("name", "shape", "type"))

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.names:
            where = "outside the layers" if self.layer is None else f"in layer {self.layer}"
            raise NoTensor(f"{self.info.name} has no {name} {where}{did_you_mean(name, self.names)}")
        held = self._overlay.get(name)
        if held is None and any(factor in self._overlay for factor in self._factors(name)):
            held = self._model.product(self.layer, name, self._overlay)  # type: ignore[attr-defined]
        tensor = self._model.tensor(self.layer, name) if held is None else held
        return self._narrowed(name, tensor)

    def __getattr__(self, name: str) -> torch.Tensor:
        if name.startswith("_") or not name[:1].isalpha():
            raise AttributeError(name)
        try:
            return self[name]
        except ModelError as error:
            raise AttributeError(str(error)) from error

    def base(self, layer: int | None) -> LayerWeights:
        """The tensors of any layer as the model has them, without edits: to graft from, or to compare with.

        Of a difference of two models they are those of the one that is taken away.
        """
        of_difference = getattr(self._model, "base_weights", None)
        if of_difference is not None:
            taken_away: LayerWeights = of_difference(layer, self.info)
            return taken_away
        return type(self)(self._model, layer, info=self.info)

    def initial(self, name: str) -> torch.Tensor:
        """A fresh draw of a tensor from the model's own initialisation (for edits)."""
        return self._narrowed(name, self._model.initial(self.layer, name, self._seed))

    def rows(self, name: str) -> list[int] | None:
        """What of a tensor an edit may change: rows of its head axis, in order; None: all of it (for edits).

        Where a run file names no ``heads`` it is None for every tensor. Where it does, these are the rows of these
        heads (of W_K and W_V the key/value heads that they read), and [] for a tensor that has no head axis: none of
        it belongs to some heads alone. The host keeps all other rows as they are; an edit that keeps something of a
        tensor keeps it of these rows.
        """
        if self._edited is None:
            return None
        found = self.info.head_axis(name)
        if found is None:
            return []
        return sorted({h if found[1] == "head" else self.info.kv_of_head[h] for h in self._edited})

    def may_change(self, name: str) -> bool:
        """Whether the layer has this tensor and an edit may change some of it here (for edits)."""
        return name in self and self.rows(name) != []

    def _factors(self, name: str) -> tuple[str, ...]:
        """The tensors that this one is a product of."""
        products = self.info.facts.products.get(self.layer, {}) if self._overlay else {}
        return tuple(products.get(name, ()))

    def _narrowed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        found = self.info.head_axis(name)
        if found is None:
            return tensor
        axis, seen = found[0], self.heads if found[1] == "head" else self.kv_heads
        if len(seen) == tensor.shape[axis]:
            return tensor
        return tensor[(slice(None),) * axis + (list(seen),)]
