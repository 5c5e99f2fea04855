"""A tiny real transformer that is made, not loaded: grouped-query causal attention, byte tokens, no checkpoint.

    x_0 = W_E[token] + W_pos[position],  h = x / rms(x),  q = h W_Q, k = h W_K, v = h W_V,
    pattern = softmax(q k' / sqrt(d_head)) over the past,  x_{l+1} = x_l + sum over heads of (pattern v) W_O,
    logits = x_L / rms(x_L) W_U

Every tensor is Gaussian with variance 1 / fan-in, by (seed, layer, name), so a fresh draw of the initialisation has the
law of the weights: the model is its own null, save where a head is planted.

What other models have it has where it is asked to, ``TinyModel.of(norm="layer", gains=True, biases=True, mlp=True)``:
LayerNorm in place of rms, gains w and shifts b of norms (near 1 and 0), biases (near 0), an MLP, gelu(h W_in + b_in)
W_out + b_out, behind attention, or with ``parallel`` beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from ..contract.digests_and_seeds import derive, digest
from ..contract.errors import GausslensError
from ..contract.model import ModelInfo, ModelSpec
from ..contract.prompts import Prompt, Tokens
from ..contract.twin import EditFailed
from .tiny_parameters import TinyParameters

BOS = 256
VOCABULARY = 257
POSITIONS = 256
EPSILON = 1e-6
INSIDE = ("W_Q", "W_K", "W_V", "W_O")
BIASES = ("b_Q", "b_K", "b_V", "b_O")
# What a column of a matrix sums over, where that is not the stream.
FAN_IN = {"W_O": "heads", "W_out": "mlp", "W_E": "token", "W_pos": "token"}
# What models differ in, as far as an edit or an analysis of weights may trip over it.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "LayerNorm, biases and an MLP": {"norm": "layer", "gains": True, "biases": True, "mlp": True},
    "gains, an MLP beside attention, no shared key/value heads": {
        "gains": True,
        "mlp": True,
        "parallel": True,
        "kv_heads": 4,
    },
}
SPREAD = 0.1  # of gains about 1, and of shifts and biases about 0
MLP_SITES = ("mlp_pre", "mlp_post", "mlp_out")
OUTSIDE = ("W_E", "W_pos", "W_U")
ATTENTION_SITES = ("q", "k", "v", "scores", "pattern", "z", "attn_out")


@dataclass
class TinyModel:
    """An open model: ``TinyModel()``, or ``TinyModel(TinyParameters(layers=3, planted=[(0, 1, 4.0)]))``.

    ``TinyModel.of(layers=3)`` is the same, shorter.
    """

    parameters: TinyParameters = field(default_factory=TinyParameters)
    dtype: str = "float32"
    _held: dict[tuple[int | None, str], torch.Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, **options: Any) -> TinyModel:
        """A tiny model of these parameters: ``TinyModel.of(norm="layer", gains=True, biases=True, mlp=True)``."""
        return cls(TinyParameters.model_validate(options))

    @classmethod
    def kinds(cls) -> dict[str, TinyModel]:
        """Models that differ in norms, biases, MLP and key/value heads, by what they are: checks run over them."""
        return {name: cls.of(**options) for name, options in KINDS.items()}

    @property
    def info(self) -> ModelInfo:
        """The facts."""
        p = self.parameters
        reason = "this layer has no attention"
        return ModelInfo(
            name="tiny",
            family="tiny",
            fingerprint=digest(["tiny", 1, p.canonical()]),
            dtype=self.dtype,
            n_layers=p.layers,
            n_heads=p.heads,
            n_kv_heads=p.kv_heads,
            d_model=p.d_model,
            d_head=p.d_head,
            d_mlp=4 * p.d_model if p.mlp else 0,
            vocabulary=VOCABULARY,
            n_parameters=sum(
                math.prod(self._shape(name)) for layer in (None, *range(p.layers)) for name in self.names(layer)
            ),
            kv_of_head=tuple(head * p.kv_heads // p.heads for head in range(p.heads)),
            layers=tuple(range(p.layers)),
            heads=tuple(range(p.heads)),
            kv_heads=tuple(range(p.kv_heads)),
            max_positions=POSITIONS,
            lacking={layer: dict.fromkeys(ATTENTION_SITES, reason) for layer in p.attention_free},
            facts={
                "norm": p.norm,
                "norm_epsilon": EPSILON,
                "norm_first": True,
                "gains": p.gains,
                "biases": BIASES if p.biases else (),
                "position": "learned",
                "query_norm": False,
                "scale": (p.d_head**-0.5,) * p.layers,
                "soft_cap": None,
                "sliding_window": (None,) * p.layers,
            }
            | ({"parallel": p.parallel, "activation": "gelu"} if p.mlp else {}),
        )

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens:
        """One token for each byte of the text, after a BOS; a prompt of ids is taken as it is."""
        segments = sorted({part.segment for prompt in prompts for part in prompt.parts} | {"special", "text"})
        made = [_tokenised(prompt, segments) for prompt in prompts]
        names = tuple(prompt.name or str(number) for number, prompt in enumerate(prompts))
        ids, text, word, segment, span, pieces, rendered = zip(*made, strict=True) if made else [()] * 7
        return Tokens(ids, text, word, segment, span, pieces, rendered, tuple(segments), names)

    def names(self, layer: int | None) -> tuple[str, ...]:
        """The tensors of a layer, or those outside the layers."""
        p = self.parameters
        if layer is None:
            return OUTSIDE + _norm("ln_final", p)
        attention = () if layer in p.attention_free else INSIDE + (BIASES if p.biases else ())
        mlp = ("W_in", "W_out") + (("b_in", "b_out") if p.biases else ()) if p.mlp else ()
        before = _norm("ln1", p) if attention or p.parallel else ()
        return (*attention, *before, *(_norm("ln2", p) if mlp and not p.parallel else ()), *mlp)

    def tensor(self, layer: int | None, name: str) -> torch.Tensor:
        """One tensor of the model: the same object each time, as of a loaded model."""
        if (layer, name) not in self._held:
            made = self.initial(layer, name, self.parameters.seed)
            for planted, head, factor in self.parameters.planted:
                if name == "W_Q" and planted == layer:
                    made[head] *= factor
            self._held[layer, name] = made
        return self._held[layer, name]

    def initial(self, layer: int | None, name: str, seed: int) -> torch.Tensor:
        """A fresh draw: Gaussian, variance 1 / fan-in (1 for embeddings); gains are near 1, biases near 0."""
        shape = self._shape(name)
        drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(derive(seed, layer, name)))
        if name in FAN_IN:
            p = self.parameters
            drawn = drawn / math.sqrt({"heads": p.heads * p.d_head, "mlp": 4 * p.d_model, "token": 1}[FAN_IN[name]])
        elif name.startswith("W_"):
            drawn = drawn / math.sqrt(self.parameters.d_model)
        else:
            drawn = SPREAD * drawn + name.endswith(".w")
        return drawn.to(getattr(torch, self.dtype))

    def _shape(self, name: str) -> tuple[int, ...]:
        p = self.parameters
        wide = 4 * p.d_model
        shapes: dict[str, tuple[int, ...]] = {
            "W_Q": (p.heads, p.d_model, p.d_head),
            "W_K": (p.kv_heads, p.d_model, p.d_head),
            "W_V": (p.kv_heads, p.d_model, p.d_head),
            "W_O": (p.heads, p.d_head, p.d_model),
            "b_Q": (p.heads, p.d_head),
            "b_K": (p.kv_heads, p.d_head),
            "b_V": (p.kv_heads, p.d_head),
            "W_in": (p.d_model, wide),
            "b_in": (wide,),
            "W_out": (wide, p.d_model),
            "W_E": (VOCABULARY, p.d_model),
            "W_pos": (POSITIONS, p.d_model),
            "W_U": (p.d_model, VOCABULARY),
        }
        return shapes.get(name, (p.d_model,))

    def held(self) -> Mapping[str, torch.Tensor]:
        """The tensors in memory, all of them."""
        for layer in (None, *range(self.parameters.layers)):
            for name in self.names(layer):
                self.tensor(layer, name)
        return {f"{layer}.{name}": tensor for (layer, name), tensor in self._held.items()}

    def close(self) -> None:
        """Let go of the tensors."""
        self._held.clear()


R = TypeVar("R")


def of_kinds(model: TinyModel | None, check: Callable[[TinyModel], R]) -> R:
    """What a check returns of this model; without one, of the first kind that is not refused, all being checked.

    A kind may be refused by a GausslensError; what refuses all of them is an error.
    """
    if model is not None:
        return check(model)
    found: list[R] = []
    refused: list[GausslensError] = []
    for name, held in TinyModel.kinds().items():
        try:
            found.append(check(held))
        except EditFailed:
            raise
        except GausslensError as error:
            refused.append(error)
        except AssertionError as error:
            raise AssertionError(f"on a tiny model, {name}: {error}") from error
    if not found:
        raise refused[0]
    return found[0]


def claims(path: str) -> bool:
    """Whether a path of a run file means the tiny model."""
    return path == "builtin:testing"


def open_tiny(spec: ModelSpec) -> TinyModel:
    """What the loader does."""
    assert isinstance(spec.parameters, TinyParameters)
    return TinyModel(spec.parameters, spec.dtype or "float32")


def _norm(name: str, p: TinyParameters) -> tuple[str, ...]:
    """The tensors of a norm."""
    return (f"{name}.w", *([f"{name}.b"] if p.norm == "layer" else [])) if p.gains else ()


Made = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, tuple[str, ...], str]


def _tokenised(prompt: Prompt, segments: Sequence[str]) -> Made:
    """ids, text, word, segment, span, pieces and rendered text of one prompt."""
    if prompt.ids is not None:
        n = len(prompt.ids)
        segment = np.full(n, segments.index("text"), dtype=np.int16)
        pieces = tuple(_piece(number) for number in prompt.ids)
        empty = np.full(n, -1, dtype=np.int32)
        ids = np.array(prompt.ids, dtype=np.int64)
        return ids, ids != BOS, empty, segment, np.zeros((n, 2), dtype=np.int32), pieces, ""
    rendered = "".join(part.text for part in prompt.parts)
    words = np.full(len(rendered), -1)
    for number, found in enumerate(re.finditer(r"\S+", rendered)):
        words[found.start() : found.end()] = number
    belongs = [segments.index(part.segment) for part in prompt.parts for _ in part.text]
    bytes_of = [character.encode("utf-8", "surrogatepass") for character in rendered]
    place = np.array([at for at, each in enumerate(bytes_of) for _ in each], dtype=np.int32)
    ids = np.array([BOS, *b"".join(bytes_of)], dtype=np.int64)
    word = np.array([-1, *words[place]], dtype=np.int32)
    segment = np.array([segments.index("special"), *np.array(belongs, dtype=np.int16)[place]], dtype=np.int16)
    span = np.array([(0, 0), *zip(place, place + 1, strict=True)], dtype=np.int32)
    return ids, ids != BOS, word, segment, span, tuple(map(_piece, ids)), rendered


def _piece(number: int) -> str:
    if number == BOS:
        return "<bos>"
    return chr(number) if 32 <= number < 127 else f"<0x{number:02X}>"
