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
    """Patterns [head, n, n] of one layer of one prompt; values, queries and keys of each head [head, n, d].

    ``V`` is None where there are no values, as of maps that were saved alone.
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
        """Tokens."""
        return int(self.P.shape[-1])

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
    n = P.shape[-1]
    reads = [batch.kv_heads.index(model.kv_of_head[h]) for h in batch.heads]
    V = double(batch["v"][row, :n]).swapaxes(0, 1)[reads] if "v" in batch.arrays else None
    if not with_queries:
        return Patterns(batch.layer, tuple(batch.heads), model.causal, P, V)
    q, k = (double(batch[site][row, :n]).swapaxes(0, 1) for site in query_and_key_sites(model))
    return Patterns(batch.layer, tuple(batch.heads), model.causal, P, V, q, k[reads], model.facts.scale(batch.layer))


def has_values(model: ModelInfo) -> bool:
    """Whether some layer in view has values."""
    return any("v" not in model.lacking.get(layer, {}) for layer in model.layers)


def attention_of(batch: Batch, row: int) -> Floats:
    """The patterns [head, n, n] of one prompt of a batch, nothing else."""
    n = int(batch.mask[row].sum())
    return double(batch["pattern"][row, :, :n, :n])


def query_and_key_sites(model: ModelInfo) -> tuple[str, str]:
    """Where q and k are as they meet: after their norms and position, in models that apply these to them.

    Where the loader does not know how position enters, q_rot and k_rot are it: an engine that has these sites has them
    behind whatever position does.
    """
    facts = model.facts
    applied = not facts.position_is_known or facts.position == "rotary" or bool(facts.get("query_norm", False))
    return ("q_rot", "k_rot") if applied else ("q", "k")


def drawn_by_head(
    context: Context, what: str, layer: int, heads: Sequence[int], draw: int
) -> list[np.random.Generator]:
    """A generator for each head: independent of those of other heads, layers and draws, the same in every process."""
    return [context.generator(f"{what}, layer {layer}, head {head}, draw {draw}") for head in heads]


def double(tensor: Any) -> Floats:
    """A tensor of the model as an array of double precision."""
    found: Floats = tensor.detach().cpu().double().numpy()
    return found


def estimate(parameters: Any, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: patterns of one prompt in double precision, several times; disk is small."""
    longest = max(tokens.lengths, default=0) if tokens is not None else 0
    return Estimate(memory=_HELD * 8 * len(info.heads) * longest**2)
