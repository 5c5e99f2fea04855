"""The patterns of one prompt as analyses take them from a batch: without padding, in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gausslens import Batch, Context, Estimate, ModelInfo, Tokens

from ..maths.arrays import Floats

# Arrays of the size of a layer's patterns in double precision that are held at once, at most.
_HELD = 8


@dataclass(frozen=True)
class Patterns:
    """Patterns [head, n, m] of one layer of one prompt; queries [head, n, d], keys and values [head, m, d] of heads.

    m is n but in attention from one stack to another, whose keys are other tokens. ``V`` is None where there are no
    values, as of maps that were saved alone.
    """

    layer: int
    heads: tuple[int, ...]
    causal: bool
    P: Floats
    V: Floats | None
    q: Floats | None = None
    k: Floats | None = None
    scale: float = 1.0

    @property
    def n(self) -> int:
        """Queries."""
        return int(self.P.shape[-2])

    @property
    def m(self) -> int:
        """Keys."""
        return int(self.P.shape[-1])

    @property
    def size(self) -> str:
        """What names the generators of what is drawn for maps of this size."""
        return size_of(self.n, self.m)

    @property
    def d(self) -> int:
        """Width of the values; 0 where there are none."""
        return 0 if self.V is None else int(self.V.shape[-1])

    @cached_property
    def svd(self) -> tuple[Floats, Floats, Floats]:
        """The singular value decomposition of each pattern: u, s, v'."""
        u, s, vt = np.linalg.svd(self.P, full_matrices=False)
        return u, s, vt

    @cached_property
    def scores(self) -> Floats:
        """Scaled q . k, without any mask."""
        assert self.q is not None
        assert self.k is not None
        found: Floats = self.q @ np.swapaxes(self.k, -1, -2) * self.scale
        return found


def patterns_of(batch: Batch, row: int, model: ModelInfo, with_queries: bool = False) -> Patterns:
    """One prompt of a batch, key/value heads given to the heads that read them; queries and keys if asked for."""
    assert batch.layer is not None
    P = attention_of(batch, row)
    n, m = P.shape[-2:]
    reads = [batch.kv_heads.index(model.kv_of_head[h]) for h in batch.heads]
    V = wide(batch, "v", row, slice(m)).swapaxes(0, 1)[reads] if "v" in batch.arrays else None
    heads, causal = tuple(batch.heads), looks_back(model)
    if not with_queries:
        return Patterns(batch.layer, heads, causal, P, V)
    sites = zip(query_and_key_sites(model), (n, m), strict=True)
    q, k = (wide(batch, site, row, slice(length)).swapaxes(0, 1) for site, length in sites)
    return Patterns(batch.layer, heads, causal, P, V, q, k[reads], model.facts.scale(batch.layer))


def looks_back(model: ModelInfo) -> bool:
    """Whether a query sees no key after it: one of another stack sees all, whatever its own stack does."""
    return model.causal and not model.facts.crossed


def predicts(model: ModelInfo) -> bool:
    """Whether a token is predicted from those before it: so is one that reads another stack besides."""
    return model.causal or model.facts.crossed


def size_of(n: int, m: int) -> str:
    """A map's size in words: that of a square one is one number."""
    return f"{n}" if n == m else f"{n} x {m}"


def of_other_keys(model: ModelInfo) -> dict[str, str]:
    """The note of results whose keys are other tokens than their queries; none for any other model."""
    said = "tokens of the other stack; a query's own place among m of them is that nearest to i (m - 1)/(n - 1)"
    return {"keys": said} if model.facts.crossed else {}


def has_values(model: ModelInfo) -> bool:
    """Whether some layer in view has values."""
    return any("v" not in model.lacking.get(layer, {}) for layer in model.layers)


def attention_of(batch: Batch, row: int) -> Floats:
    """The patterns [head, n, m] of one prompt of a batch, nothing else."""
    n, m = sizes_of(batch, row)
    return wide(batch, "pattern", row, slice(None), slice(n), slice(m))


def sizes_of(batch: Batch, row: int) -> tuple[int, int]:
    """How many queries and keys a prompt of a batch has, without padding."""
    return int(batch.mask[row].sum()), int(batch.key_mask[row].sum())


def query_and_key_sites(model: ModelInfo) -> tuple[str, str]:
    """Where q and k are as they meet: after their norms and position, in models that apply these to them.

    Where the loader does not know how position enters, q_rot and k_rot are it: an engine that has these sites has them
    behind whatever position does.
    """
    facts = model.facts
    applied = not facts.position_is_known or facts.position == "rotary" or facts.query_norm
    return ("q_rot", "k_rot") if applied else ("q", "k")


def drawn_by_head(
    context: Context, what: str, layer: int, heads: Sequence[int], draw: int
) -> list[np.random.Generator]:
    """A generator for each head: independent of those of other heads, layers and draws, the same in every process."""
    return [context.generator(f"{what}, layer {layer}, head {head}, draw {draw}") for head in heads]


def wide(batch: Batch, site: str, *where: int | slice) -> Floats:
    """Some of a site in double precision; a device hands over the whole site, once for all analyses of a pass."""
    found: Floats = batch.numpy(site)[where].astype(np.float64)
    return found


def double(tensor: Any) -> Floats:
    """A tensor of the model as an array of double precision."""
    found: Floats = tensor.detach().cpu().double().numpy()
    return found


def of_maps(info: ModelInfo, tokens: Tokens | None, cell_seconds: float) -> Estimate:
    """Memory: patterns of one prompt in double precision, several times; disk is small; seconds for each cell of a map.

    What a cell takes was measured on one core (benchmarks/estimates.py), of maps of some 80 tokens.
    """
    if tokens is None:
        return Estimate()
    lengths, keys = tokens.lengths, tokens.keys.lengths
    longest = max(lengths, default=0) * max(keys, default=0)
    cells = len(info.layers) * len(info.heads) * sum(n * m for n, m in zip(lengths, keys, strict=True))
    return Estimate(memory=_HELD * 8 * len(info.heads) * longest, seconds=cells * cell_seconds)
