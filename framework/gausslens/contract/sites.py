"""Sites: where activations are captured, as one table. A new site is a new row.

A row says the dimensions of the site's array in a batch; shapes, widths, head axes and memory follow from the facts of
the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import ModelError, did_you_mean

if TYPE_CHECKING:
    from .batches import Batch
    from .model import ModelInfo

_STREAM = ("prompt", "position", "d_model")
_MLP = ("prompt", "position", "d_mlp")
_OF_HEADS = ("prompt", "position", "head", "d_head")
_OF_KV_HEADS = ("prompt", "position", "kv_head", "d_head")
_MAPS = ("prompt", "head", "query", "key")


@dataclass(frozen=True)
class Site:
    """A place in a model: its name, the dimensions of its array in a batch, and what TransformerLens calls it.

    ``whole`` sites are of the whole model, all others of a layer. ``of_values`` are as wide as the value of a head.
    """

    name: str
    dims: tuple[str, ...]
    transformer_lens: str = ""
    whole: bool = False
    of_values: bool = False

    @property
    def square(self) -> bool:
        """Whether it holds a number for each query and key."""
        return "query" in self.dims

    @property
    def of_keys(self) -> bool:
        """Whether it has a number, or a vector, for each key: keys may be other tokens than queries."""
        return "key" in self.dims or "kv_head" in self.dims

    @property
    def heads_dim(self) -> str | None:
        """What the dimension of its heads is called, "head" or "kv_head"; None where it has no heads."""
        return next((dim for dim in ("head", "kv_head") if dim in self.dims), None)

    def heads(self, view: Batch | ModelInfo) -> tuple[int, ...]:
        """The numbers of its heads in a batch, or of those in view; of a site without heads those of the queries."""
        return view.kv_heads if self.heads_dim == "kv_head" else view.heads

    def shape(self, info: ModelInfo, prompts: int, longest: int, keys: int | None = None) -> tuple[int, ...]:
        """The shape of its array for so many prompts, the longest of so many tokens, and the heads in view.

        ``keys`` are those of the longest source, in attention from one stack to another.
        """
        wide = longest if keys is None else keys
        sizes = {
            "prompt": prompts,
            "position": wide if self.of_keys else longest,
            "query": longest,
            "key": wide,
            "head": len(info.heads),
            "kv_head": len(info.kv_heads),
            "d_model": info.d_model,
            "d_head": info.d_value or info.d_head if self.of_values else info.d_head,
            "d_mlp": info.d_mlp,
            "token": info.vocabulary,
        }
        return tuple(sizes[dim] for dim in self.dims)

    def width(self, info: ModelInfo) -> int:
        """Numbers in one vector of it, of one head where it has heads; of one token's keys nothing is said."""
        sizes = self.shape(info, 1, 1)
        return math.prod(n for dim, n in zip(self.dims, sizes, strict=True) if dim.startswith("d_") or dim == "token")

    def vectors(self, info: ModelInfo) -> tuple[int, int, int]:
        """How many layers and heads in view have vectors of it (one without such an axis), and how wide they are."""
        layers = 1 if self.whole else len(info.layers)
        return layers, len(self.heads(info)) if self.heads_dim else 1, self.width(info)


TABLE = {
    site.name: site
    for site in (
        Site("embed", _STREAM, "hook_embed", whole=True),
        Site("resid_pre", _STREAM, "hook_resid_pre"),
        Site("resid_mid", _STREAM, "hook_resid_mid"),
        Site("resid_post", _STREAM, "hook_resid_post"),
        Site("q", _OF_HEADS, "hook_q"),
        Site("k", _OF_KV_HEADS, "hook_k"),
        Site("v", _OF_KV_HEADS, "hook_v", of_values=True),
        Site("q_rot", _OF_HEADS, "hook_rot_q"),
        Site("k_rot", _OF_KV_HEADS, "hook_rot_k"),
        Site("scores", _MAPS, "hook_attn_scores"),
        Site("pattern", _MAPS, "hook_pattern"),
        Site("z", _OF_HEADS, "hook_z", of_values=True),
        Site("attn_out", _STREAM, "hook_attn_out"),
        Site("mlp_pre", _MLP, "mlp.hook_pre"),
        Site("mlp_post", _MLP, "mlp.hook_post"),
        Site("mlp_out", _STREAM, "hook_mlp_out"),
        Site("logits", ("prompt", "position", "token"), whole=True),
    )
}
# Their names, in the order of a pass. An engine may have others.
SITES = tuple(TABLE)
# Sites of the whole model: their batches have layer None.
MODEL_SITES = tuple(site.name for site in TABLE.values() if site.whole)
# Sites that hold a number for each query and key.
SQUARE_SITES = tuple(site.name for site in TABLE.values() if site.square)
# The axis of heads, for the sites that have one.
HEAD_AXIS = {name: site.dims.index("head") for name, site in TABLE.items() if "head" in site.dims}
KV_HEAD_AXIS = {name: site.dims.index("kv_head") for name, site in TABLE.items() if "kv_head" in site.dims}
# What TransformerLens calls them, for suggestions.
TRANSFORMER_LENS = {site.transformer_lens: name for name, site in TABLE.items() if site.transformer_lens}


def site(name: str) -> Site:
    """A site by its name: ``site("pattern").dims``."""
    if name not in TABLE:
        raise ModelError(f"there is no site {name!r}{did_you_mean(name, SITES, len(SITES))}")
    return TABLE[name]
