"""Analysis `model.capture`: raw activations, streamed into the store as they come."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens import (
    SITES,
    Context,
    Estimate,
    InputError,
    Request,
    attributes,
    ragged_variables,
    site,
    variable,
)
from gausslens.maths.ragged import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr

    from gausslens import Batch, Bulk, ModelInfo, Tokens

    from ..parameters import CaptureParameters

GIGABYTE = 10**9
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def layers_of(sites: Sequence[str], info: ModelInfo) -> tuple[tuple[int, ...], dict[int, str]]:
    """The layers that have all of these sites, and why the others are left out."""
    skipped: dict[int, str] = {}
    for layer in info.layers:
        for name, reason in info.lacking.get(layer, {}).items():
            if name in sites:
                skipped.setdefault(layer, f"{name}: {reason}")
    return tuple(n for n in info.layers if n not in skipped), skipped


def dims_of(name: str, info: ModelInfo) -> tuple[str, ...]:
    """The dimensions of a site in a result; values that are not as wide as queries have a dimension of their own.

    Keys and values of a source are at its positions: those that "key" counts.
    """
    place = site(name)
    own = {"d_head": "d_value"} if place.of_values and info.d_value is not None else {}
    own |= {"position": "key"} if info.facts.crossed and place.of_keys else {}
    dims = tuple(own.get(dim, dim) for dim in place.dims)
    return dims if place.whole else ("layer", *dims)


def shape_of(name: str, info: ModelInfo, tokens: Tokens, layers: int) -> tuple[int, ...]:
    """The shape of a site over so many layers and all prompts; shorter prompts are filled up with NaN."""
    shape = site(name).shape(info, len(tokens), max(tokens.lengths), max(tokens.keys.lengths))
    return shape if site(name).whole else (layers, *shape)


def layout_of(name: str, info: ModelInfo, tokens: Tokens, layers: int) -> Ragged | None:
    """How a site lies where prompts are not filled up to the longest, as that would waste much; None where they are.

    Of two sides of unequal length neither says how far to fill: they are filled up.
    """
    dims = dims_of(name, info)
    sizes = dict(zip(dims, shape_of(name, info, tokens, layers), strict=True))
    if tokens.crossed:
        return None
    found = Ragged.of(dims, [d for d in ("position", "query", "key") if d in dims], tokens.lengths, sizes)
    return found if found.wasteful else None


def dtype_of(parameters: CaptureParameters, info: ModelInfo) -> str:
    """As what numbers are kept."""
    return parameters.dtype or ("float64" if info.dtype == "float64" else "float32")


def estimate(parameters: CaptureParameters, info: ModelInfo, tokens: Tokens) -> Estimate:
    """Bytes on disk before compression, and one layer of them in memory; nothing where no layer has all sites."""
    disk = memory = 0
    computed = 8 if info.dtype == "float64" else 4
    kept = BYTES[dtype_of(parameters, info)]
    layers = len(layers_of(parameters.sites, info)[0])
    for name in parameters.sites:
        if name in SITES:
            count = math.prod(shape_of(name, info, tokens, layers))
            layout = layout_of(name, info, tokens, layers)
            disk += kept * (count if layout is None else math.prod(layout.flat_shape))
            memory += computed * count // (1 if site(name).whole else max(layers, 1))
    return Estimate(memory=memory // max(len(tokens.shards()), 1), disk=disk)


def token_ids(tokens: Tokens) -> dict[str, Any]:
    """The number of each token, -1 where a prompt has no more."""
    layout = Ragged.of(("prompt", "position"), ("position",), tokens.lengths, {})
    if layout.wasteful:
        return ragged_variables("token_id", layout, np.concatenate(tokens.ids), "token", fill=-1)
    ids, _, mask = tokens.padded(range(len(tokens)))
    return {"token_id": variable(("prompt", "position"), np.where(mask, ids, -1), "token")}


def _size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} GB"


class RawCapture:
    """Writes each batch where it belongs. Layers that lack a site are left out, and named with the reason.

    It has no ``state``: what it saw is in the part that it writes, and a killed run's part is thrown away.
    """

    def __init__(self, parameters: CaptureParameters, context: Context) -> None:
        self.parameters, self.context = parameters, context
        self.layers, self.skipped = layers_of(parameters.sites, context.model)
        self.place = {layer: number for number, layer in enumerate(self.layers)}
        assert context.tokens is not None
        needed = estimate(parameters, context.model, context.tokens).disk
        if needed > parameters.most_gigabytes * GIGABYTE:
            raise InputError(
                f"model.capture would write {_size(needed)}, more than most_gigabytes: "
                f"{parameters.most_gigabytes}; ask for fewer layers, sites or prompts, or raise it"
            )
        # Where the longest prompt is far from the others they are not filled up to it.
        self.ragged = {
            name: layout
            for name in parameters.sites
            if name in SITES and (layout := layout_of(name, context.model, context.tokens, len(self.layers)))
        }
        if context.bulk is not None:
            self._create(context.bulk)

    def _create(self, bulk: Bulk) -> None:
        info, tokens = self.context.model, self.context.tokens
        assert tokens is not None
        dtype = dtype_of(self.parameters, info)
        for name in self.parameters.sites:
            if name in self.ragged:
                layout = self.ragged[name]
                told = attributes(name, against=False, ragged=layout.told())
                bulk.create(name, layout.flat_dims(name), layout.flat_shape, dtype, told)
            elif name in SITES:
                shape = shape_of(name, info, tokens, len(self.layers))
                bulk.create(name, dims_of(name, info), shape, dtype, attributes(name))

    def request(self) -> Request:
        """The sites of the run file."""
        return Request(tuple(self.parameters.sites))

    def update(self, batch: Batch) -> None:
        """Write each prompt's real positions."""
        assert self.context.bulk is not None
        lengths, of_keys = batch.mask.sum(1).tolist(), batch.key_mask.sum(1).tolist()
        for name in batch.arrays:
            if site(name).whole != (batch.layer is None):
                continue
            values = batch.numpy(name)
            at = () if batch.layer is None else (self.place[batch.layer],)
            for row, prompt in enumerate(batch.prompts):
                n, square, keys = lengths[row], site(name).square, of_keys[row]
                n = keys if site(name).of_keys and not square else n
                last = min(batch.rows + values.shape[2], n) if square else n
                if last <= batch.rows or (batch.rows and not square):
                    continue
                block = values[row, :, : last - batch.rows, :keys] if square else values[row, :n]
                if name in self.ragged:
                    layout = self.ragged[name]
                    first = int(layout.offsets[prompt]) + batch.rows * n
                    flat = layout.flat(block)
                    self.context.bulk.write(name, (*at, slice(first, first + len(flat))), flat)
                    continue
                rows = (slice(None), slice(batch.rows, last)) if square else ()
                self.context.bulk.write(name, (*at, int(prompt), *rows, slice(0, keys if square else n)), block)

    def merge(self, other: RawCapture) -> None:
        """There is nothing to merge: what was seen is in the store, so states cannot be had without some prompts."""

    def result(self) -> xr.Dataset:
        """What the large arrays need beside them: lengths, token numbers and texts."""
        import xarray as xr

        tokens = self.context.tokens
        assert tokens is not None
        info = self.context.model
        dims = {dim for name in self.parameters.sites for dim in dims_of(name, info)}
        known = {"layer": self.layers, "head": info.heads, "kv_head": info.kv_heads}
        attrs = {f"skipped_layer_{layer}": reason for layer, reason in self.skipped.items()}
        beside: dict[str, Any] = {}
        if tokens.crossed:
            ids, _, mask = tokens.keys.padded(range(len(tokens)))
            beside["source_length"] = variable("prompt", np.array(tokens.keys.lengths), "tokens of the source")
            beside["source_token_id"] = variable(("prompt", "key"), np.where(mask, ids, -1), "token of the source")
        extents: dict[str, Any] = {}
        for name, layout in self.ragged.items():
            found = ragged_variables(name, layout, None, name)
            extents[f"{name}_extent"] = found[f"{name}_extent"]
        return xr.Dataset(
            {
                "length": variable("prompt", np.array(tokens.lengths), "tokens of the prompt"),
                **token_ids(tokens),
                **beside,
                **extents,
            },
            coords={"prompt": list(tokens.names)} | {dim: list(at) for dim, at in known.items() if dim in dims},
            attrs=attrs,
        )
