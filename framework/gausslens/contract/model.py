"""What the host knows of a model: plain facts, and tensors by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from .errors import ModelError, did_you_mean
from .facts import FactsField

if TYPE_CHECKING:
    import torch

    from .parameters import Parameters
    from .prompts import Prompt, Tokens

# Which axis 0 a tensor of a layer has: the host narrows `heads` by this, and never repeats key/value heads.
HEAD_TENSORS = ("W_Q", "b_Q", "W_O")
KV_HEAD_TENSORS = ("W_K", "W_V", "b_K", "b_V")


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

    ``layer`` is None for the tensors outside the layers. ``heads``, ``kv_heads`` name the rows of axis 0 of
    the per-head tensors in view; ``kv_of_head`` gives, for each head in view, its place among the key/value
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

    @property
    def model(self) -> OpenModel:
        """The model as its loader opened it, without edits: for an edit that knows what this loader tells besides."""
        return self._model

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that there are."""
        return self._model.names(self.layer)

    def __contains__(self, name: object) -> bool:
        return name in self.names

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
        """The rows of axis 0 that an edit restricted to some heads changes, in order; None where it is not (for edits).

        Those of W_K and W_V are the key/value heads that these heads read. The host keeps all other rows as they are;
        an edit that keeps something of a tensor keeps it of these rows.
        """
        if self._edited is None or name not in HEAD_TENSORS + KV_HEAD_TENSORS:
            return None
        return sorted({h if name in HEAD_TENSORS else self.info.kv_of_head[h] for h in self._edited})

    def _factors(self, name: str) -> tuple[str, ...]:
        """The tensors that this one is a product of."""
        products = self.info.facts.products.get(self.layer, {}) if self._overlay else {}
        return tuple(products.get(name, ()))

    def _narrowed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name in HEAD_TENSORS and len(self.heads) != tensor.shape[0]:
            return tensor[list(self.heads)]
        if name in KV_HEAD_TENSORS and len(self.kv_heads) != tensor.shape[0]:
            return tensor[list(self.kv_heads)]
        return tensor
