"""A tiny real transformer that is made, not loaded: grouped-query causal attention, byte tokens, no checkpoint.

    x_0 = W_E[token] + W_pos[position],  h = x / rms(x),  q = h W_Q, k = h W_K, v = h W_V,
    pattern = softmax(q k' / sqrt(d_head)) over the past,  x_{l+1} = x_l + sum over heads of (pattern v) W_O,
    logits = x_L / rms(x_L) W_U

Every tensor is Gaussian with variance 1 / fan-in, by (seed, layer, name), so a fresh draw of the initialisation has the
law of the weights: the model is its own null, save where a head is planted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ..contract.digests_and_seeds import derive, digest
from ..contract.model import ModelInfo, ModelSpec
from ..contract.prompts import Prompt, Tokens
from .tiny_parameters import TinyParameters

BOS = 256
VOCABULARY = 257
POSITIONS = 256
EPSILON = 1e-6
INSIDE = ("W_Q", "W_K", "W_V", "W_O")
OUTSIDE = ("W_E", "W_pos", "W_U")
ATTENTION_SITES = ("q", "k", "v", "scores", "pattern", "z", "attn_out")


@dataclass
class TinyModel:
    """An open model: ``TinyModel()``, or ``TinyModel(TinyParameters(layers=3, planted=[(0, 1, 4.0)]))``."""

    parameters: TinyParameters = field(default_factory=TinyParameters)
    dtype: str = "float32"
    _held: dict[tuple[int | None, str], torch.Tensor] = field(default_factory=dict, repr=False)

    @property
    def info(self) -> ModelInfo:
        """The facts."""
        p = self.parameters
        per_layer = 2 * (p.heads + p.kv_heads) * p.d_model * p.d_head
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
            d_mlp=0,
            vocabulary=VOCABULARY,
            n_parameters=(p.layers - len(p.attention_free)) * per_layer + (2 * VOCABULARY + POSITIONS) * p.d_model,
            kv_of_head=tuple(head * p.kv_heads // p.heads for head in range(p.heads)),
            layers=tuple(range(p.layers)),
            heads=tuple(range(p.heads)),
            kv_heads=tuple(range(p.kv_heads)),
            max_positions=POSITIONS,
            lacking={layer: dict.fromkeys(ATTENTION_SITES, reason) for layer in p.attention_free},
            facts={
                "norm": "rms",
                "norm_epsilon": EPSILON,
                "norm_first": True,
                "gains": False,
                "biases": (),
                "position": "learned",
                "query_norm": False,
                "scale": (p.d_head**-0.5,) * p.layers,
                "soft_cap": None,
                "sliding_window": (None,) * p.layers,
            },
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
        if layer is None:
            return OUTSIDE
        return () if layer in self.parameters.attention_free else INSIDE

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
        """A fresh draw: Gaussian, variance 1 / fan-in (1 for the embeddings)."""
        p = self.parameters
        shape, fan_in = {
            "W_Q": ((p.heads, p.d_model, p.d_head), p.d_model),
            "W_K": ((p.kv_heads, p.d_model, p.d_head), p.d_model),
            "W_V": ((p.kv_heads, p.d_model, p.d_head), p.d_model),
            "W_O": ((p.heads, p.d_head, p.d_model), p.heads * p.d_head),
            "W_E": ((VOCABULARY, p.d_model), 1),
            "W_pos": ((POSITIONS, p.d_model), 1),
            "W_U": ((p.d_model, VOCABULARY), p.d_model),
        }[name]
        generator = torch.Generator().manual_seed(derive(seed, layer, name))
        drawn = torch.randn(*shape, generator=generator) / math.sqrt(fan_in)
        return drawn.to(getattr(torch, self.dtype))

    def held(self) -> Mapping[str, torch.Tensor]:
        """The tensors in memory, all of them."""
        for layer in (None, *range(self.parameters.layers)):
            for name in self.names(layer):
                self.tensor(layer, name)
        return {f"{layer}.{name}": tensor for (layer, name), tensor in self._held.items()}

    def close(self) -> None:
        """Let go of the tensors."""
        self._held.clear()


def claims(path: str) -> bool:
    """Whether a path of a run file means the tiny model."""
    return path == "builtin:testing"


def open_tiny(spec: ModelSpec) -> TinyModel:
    """What the loader does."""
    assert isinstance(spec.parameters, TinyParameters)
    return TinyModel(spec.parameters, spec.dtype or "float32")


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
