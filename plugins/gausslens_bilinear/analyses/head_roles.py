"""bilinear.head-roles: what each head attends to on tokens that repeat, and how much of it is position alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from gausslens import Batch, Context, Estimate, GausslensError, ModelInfo, Request, Tokens, merge_each, variable
from gausslens.maths.moments import Arrays, arrays_of, put_each

if TYPE_CHECKING:
    from ..parameters import HeadRolesParameters

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

# What a role attends to; the keys of each are told by ``keys_of``.
ROLES = {
    "previous": "the token before",
    "self": "the token itself",
    "first": "the first position, which attention sinks into",
    "duplicate": "earlier occurrences of the same token",
    "induction": "what followed earlier occurrences of the same token",
}


def keys_of(tokens: NDArray[np.int64], real: Bools, rows: NDArray[np.int64]) -> dict[str, Bools]:
    """For each role the keys [prompt, query, key] it attends to, for the query rows given; none: no such role there.

    ``tokens`` and ``real`` (not padding) are [prompt, position].
    """
    width = tokens.shape[1]
    late, place = rows[:, None], np.arange(width)[None, :]
    query = real[:, rows, None] & real[:, None, :]
    same = (tokens[:, rows, None] == tokens[:, None, :]) & (place < late)
    followed = np.zeros_like(same)
    followed[..., 1:] = same[..., :-1]
    return {
        "previous": query & (place == late - 1),
        "self": query & (place == late),
        "first": query & (place == 0) & (late > 0),
        "duplicate": query & same,
        # What follows the token just before is the query itself.
        "induction": query & followed & (place < late),
    }


@dataclass
class _Sums:
    """Sums over prompts of each role's mean attention, its square and chance [role, head, 3], and prompts [role].

    ``pattern`` are sums over prompts of the first positions' attention and its square [2, head, query, key], of queries
    whose token is new, ``rows`` how many.
    """

    sums: Floats
    prompts: Floats
    pattern: Floats
    rows: Floats

    def merge(self, other: _Sums) -> None:
        self.sums += other.sums
        self.prompts += other.prompts
        self.pattern += other.pattern
        self.rows += other.rows


class HeadRoles:
    """One pass over patterns. A shard's rows come in blocks: sums of a prompt are closed with its last."""

    def __init__(self, parameters: HeadRolesParameters, context: Context) -> None:
        self.info, self.positions = context.model, parameters.positions
        self.layers: dict[int, _Sums] = {}
        self.open: dict[int, tuple[Floats, Floats, Floats]] = {}

    def request(self) -> Request:
        """Patterns."""
        return Request(("pattern",))

    def update(self, batch: Batch) -> None:
        """Take in a block of query rows."""
        assert batch.layer is not None
        pattern = batch.numpy("pattern")
        tokens, real = batch.tokens.cpu().numpy(), batch.mask.cpu().numpy().astype(bool)
        rows = np.arange(batch.rows, batch.rows + pattern.shape[2])
        keys = keys_of(tokens, real, rows)
        if batch.rows == 0:
            shape = (len(ROLES), len(pattern))
            self.open[batch.layer] = np.zeros((*shape, pattern.shape[1])), np.zeros(shape), np.zeros(shape)
        attended, chance, queries = self.open[batch.layer]
        visible = self._visible(batch.layer, rows, real)
        for place, role in enumerate(ROLES):
            there = keys[role].any(axis=-1)
            attended[place] += np.einsum("phqk,pqk->ph", pattern, keys[role].astype(pattern.dtype), optimize=True)
            chance[place] += (there * keys[role].sum(axis=-1) / visible).sum(axis=-1)
            queries[place] += there.sum(axis=-1)
        seen = self.layers.setdefault(batch.layer, self._fresh())
        self._positional(seen, pattern, rows, real, keys["duplicate"])
        if batch.last_rows:
            self._close(seen, *self.open.pop(batch.layer))

    def merge(self, other: HeadRoles) -> None:
        """Take in what another shard's state has seen."""
        merge_each(self.layers, other.layers)

    def state(self) -> Arrays:
        """All sums, by paths as ``3/sums``; between shards no prompt is open."""
        return arrays_of(self.layers)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what ``state`` gave."""
        self.layers = put_each(self._fresh, state)

    def result(self) -> xr.Dataset:
        """Mean attention of each role, its error over prompts, chance; and what is position alone."""
        if not self.layers:
            raise GausslensError(f"bilinear.head-roles: no layer of {self.info.name} has attention patterns")
        order = sorted(self.layers)
        each = [self._described(self.layers[n]) for n in order]
        variables: dict[str, Any] = {}
        dims = ("layer", "head")
        for place, (role, what) in enumerate(ROLES.items()):
            for end, text, against in (
                ("", "mean attention to", None),
                ("_error", "standard error over prompts of the mean attention to", False),
                ("_chance", "what even attention would give to", False),
            ):
                values = np.stack([found[f"roles{end}"][place] for found in each])
                variables[f"{role}{end}"] = variable(dims, values, f"{text} {what}", against=against)
        long_name = "share of attention's departure from even that depends on positions alone"
        variables["positional"] = variable(dims, np.stack([found["positional"] for found in each]), long_name)
        return xr.Dataset(variables, coords={"layer": order}).assign_attrs(model=self.info.name)

    def _fresh(self) -> _Sums:
        heads, n = len(self.info.heads), self.positions
        return _Sums(np.zeros((len(ROLES), heads, 3)), np.zeros(len(ROLES)), np.zeros((2, heads, n, n)), np.zeros(n))

    def _visible(self, layer: int, rows: NDArray[np.int64], real: Bools) -> NDArray[Any]:
        """How many keys each query may look at [prompt, query]; NaN for a family that nobody knows."""
        count = np.broadcast_to(rows + 1, (len(real), len(rows))) if self.info.causal else real.sum(axis=1)[:, None]
        if not self.info.facts.position_is_known:
            return np.full(count.shape, np.nan)
        window = self.info.facts.window(layer)
        return count if window is None else np.minimum(count, window)

    def _close(self, seen: _Sums, attended: Floats, chance: Floats, queries: Floats) -> None:
        """Each prompt's mean over its queries is one sample, if it has such queries."""
        there = queries > 0
        mean = np.where(there[..., None], attended / np.maximum(queries, 1)[..., None], 0.0)
        even = np.broadcast_to(np.where(there, chance / np.maximum(queries, 1), 0.0)[..., None], mean.shape)
        seen.sums += np.stack([mean.sum(axis=1), (mean**2).sum(axis=1), even.sum(axis=1)], axis=-1)
        seen.prompts += there.sum(axis=1)

    def _positional(
        self, seen: _Sums, pattern: NDArray[Any], rows: NDArray[np.int64], real: Bools, duplicates: Bools
    ) -> None:
        n = min(self.positions, pattern.shape[3])
        mine = rows < n
        new = real[:, rows[mine]] & ~duplicates[:, mine].any(axis=-1)
        if not self.info.causal:
            new &= real[:, n - 1][:, None]
        P = pattern[:, :, mine, :n].astype(np.float64)
        # Where a row also looks beyond the positions that are kept, its rest is left out.
        P = P / np.maximum(P.sum(axis=-1, keepdims=True), np.finfo(np.float64).tiny) * new[:, None, :, None]
        seen.pattern[0][:, rows[mine], :n] += P.sum(axis=0)
        seen.pattern[1][:, rows[mine], :n] += (P**2).sum(axis=0)
        seen.rows[rows[mine]] += new.sum(axis=0)

    def _described(self, seen: _Sums) -> dict[str, Floats]:
        with np.errstate(invalid="ignore", divide="ignore"):
            n = seen.prompts[:, None]
            mean, square, chance = (seen.sums[..., i] / n for i in range(3))
            error = np.where(n > 1, np.sqrt(np.maximum(square - mean**2, 0.0) / (n - 1)), np.nan)
        return {
            "roles": mean,
            "roles_error": error,
            "roles_chance": chance,
            "positional": positional_share(seen.pattern[0], seen.pattern[1], seen.rows, self.info.causal),
        }


def positional_share(total: Floats, squares: Floats, prompts: Floats, causal: bool) -> Floats:
    """The share [head] of E (P_ij - 1/n_i)^2 that the mean pattern over prompts explains, unbiased.

    Prompts hold other tokens at the same positions, so what their patterns have in common is position. ``total`` and
    ``squares`` are sums of P and P^2 over prompts [head, query, key], ``prompts`` how many there were [query]. The mean
    of m draws exceeds what is common by 1/m of their variance, which is taken off. NaN where attention is even.
    """
    size = total.shape[-1]
    i, j = np.arange(size)[:, None], np.arange(size)[None, :]
    used = (prompts > 1)[:, None] & ((j <= i) if causal else True) & (i > 0)
    m = np.maximum(prompts, 2)[:, None]
    even = 1 / (i + 1) if causal else np.full((size, 1), 1 / size)
    mean = total / m
    variance = np.maximum(squares / m - mean**2, 0.0) * m / (m - 1)
    common = np.where(used, (mean - even) ** 2 - variance / m, 0.0).sum(axis=(1, 2))
    whole = np.where(used, (mean - even) ** 2 + variance * (m - 1) / m, 0.0).sum(axis=(1, 2))
    return np.where(whole > 1e-9, common / np.where(whole > 0, whole, 1.0), np.nan)


def estimate(parameters: HeadRolesParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory: two patterns of the first positions in float64 for each layer and head, twice while shards merge."""
    layers, heads = len(info.layers), len(info.heads)
    return Estimate(memory=2 * 2 * 8 * layers * heads * parameters.positions**2, disk=8 * 16 * layers * heads)
