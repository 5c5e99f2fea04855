"""Analysis `model.capture`: raw activations, streamed into the store as they come."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gausslens import Context, Estimate, InputError, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr

    from gausslens import Batch, ModelInfo, Tokens

    from .parameters import CaptureParameters

# The dimensions of each site, by the names that results have.
DIMS = {
    **dict.fromkeys(
        ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"), ("layer", "prompt", "position", "d_model")
    ),
    **dict.fromkeys(("mlp_pre", "mlp_post"), ("layer", "prompt", "position", "d_mlp")),
    **dict.fromkeys(("q", "q_rot", "z"), ("layer", "prompt", "position", "head", "d_head")),
    **dict.fromkeys(("k", "k_rot", "v"), ("layer", "prompt", "position", "kv_head", "d_head")),
    **dict.fromkeys(("scores", "pattern"), ("layer", "prompt", "head", "query", "key")),
    "embed": ("prompt", "position", "d_model"),
    "logits": ("prompt", "position", "token"),
}
GIGABYTE = 10**9
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def layers_of(sites: Sequence[str], info: ModelInfo) -> tuple[tuple[int, ...], dict[int, str]]:
    """The layers that have all of these sites, and why the others are left out."""
    skipped: dict[int, str] = {}
    for layer in info.layers:
        for site, reason in info.lacking.get(layer, {}).items():
            if site in sites:
                skipped.setdefault(layer, f"{site}: {reason}")
    return tuple(n for n in info.layers if n not in skipped), skipped


def shape_of(site: str, info: ModelInfo, tokens: Tokens, layers: int) -> tuple[int, ...]:
    """The shape of a site over so many layers and all prompts; shorter prompts are filled up with NaN."""
    width = max(tokens.lengths)
    sizes = {
        "layer": layers,
        "prompt": len(tokens),
        "position": width,
        "query": width,
        "key": width,
        "head": len(info.heads),
        "kv_head": len(info.kv_heads),
        "d_model": info.d_model,
        "d_head": info.d_head,
        "d_mlp": info.d_mlp,
        "token": info.vocabulary,
    }
    return tuple(sizes[dim] for dim in DIMS[site])


def dtype_of(parameters: CaptureParameters, info: ModelInfo) -> str:
    """As what numbers are kept."""
    return parameters.dtype or ("float64" if info.dtype == "float64" else "float32")


def estimate(parameters: CaptureParameters, info: ModelInfo, tokens: Tokens) -> Estimate:
    """Bytes on disk before compression, and one layer of them in memory."""
    disk = memory = 0
    computed = 8 if info.dtype == "float64" else 4
    kept = BYTES[dtype_of(parameters, info)]
    layers = len(layers_of(parameters.sites, info)[0])
    for site in parameters.sites:
        if site in DIMS:
            count = math.prod(shape_of(site, info, tokens, layers))
            disk += kept * count
            memory += computed * count // (layers if DIMS[site][0] == "layer" else 1)
    return Estimate(memory=memory // max(len(tokens.shards()), 1), disk=disk)


def _size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} GB"


class RawCapture:
    """Writes each batch where it belongs. Layers that lack a site are left out, and named with the reason."""

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
        if context.bulk is not None:
            dtype = dtype_of(parameters, context.model)
            for site in parameters.sites:
                if site in DIMS:
                    shape = shape_of(site, context.model, context.tokens, len(self.layers))
                    context.bulk.create(site, DIMS[site], shape, dtype, {"long_name": site, "units": "1"})

    def request(self) -> Request:
        """The sites of the run file."""
        return Request(tuple(self.parameters.sites))

    def update(self, batch: Batch) -> None:
        """Write each prompt's real positions."""
        assert self.context.bulk is not None
        lengths = batch.mask.sum(1).tolist()
        for site in batch.arrays:
            if (DIMS[site][0] == "layer") != (batch.layer is not None):
                continue
            values = batch.numpy(site)
            at = () if batch.layer is None else (self.place[batch.layer],)
            for row, prompt in enumerate(batch.prompts):
                n = lengths[row]
                where: tuple[Any, ...] = (slice(0, n),)
                if DIMS[site][-2:] == ("query", "key"):
                    last = min(batch.rows + values.shape[2], n)
                    if last <= batch.rows:
                        continue
                    where = (slice(None), slice(batch.rows, last), slice(0, n))
                    block = values[row, :, : last - batch.rows, :n]
                else:
                    if batch.rows:
                        continue
                    block = values[row, :n]
                self.context.bulk.write(site, (*at, int(prompt), *where), block)

    def merge(self, other: RawCapture) -> None:
        """There is nothing to merge: what was seen is in the store."""

    def end_pass(self, index: int) -> None:
        """There is one pass."""

    def result(self) -> xr.Dataset:
        """What the large arrays need beside them: lengths, token numbers and texts."""
        import numpy as np
        import xarray as xr

        tokens = self.context.tokens
        assert tokens is not None
        ids, _, mask = tokens.padded(range(len(tokens)))
        dims = {dim for site in self.parameters.sites for dim in DIMS[site]}
        info = self.context.model
        known = {"layer": self.layers, "head": info.heads, "kv_head": info.kv_heads}
        attrs = {f"skipped_layer_{layer}": reason for layer, reason in self.skipped.items()}
        return xr.Dataset(
            {
                "length": (
                    "prompt",
                    np.array(tokens.lengths),
                    {"long_name": "tokens of the prompt", "units": "1"},
                ),
                "token_id": (("prompt", "position"), np.where(mask, ids, -1), {"long_name": "token", "units": "1"}),
            },
            coords={"prompt": list(tokens.names)} | {dim: list(at) for dim, at in known.items() if dim in dims},
            attrs=attrs,
        )
