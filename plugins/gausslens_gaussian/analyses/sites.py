"""The vectors of a site: how many layers and heads have them, and how wide they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gausslens import HEAD_AXIS, KV_HEAD_AXIS

if TYPE_CHECKING:
    from gausslens import Batch, ModelInfo


def head_dimension(site: str) -> str | None:
    """What the dimension of its heads is called; None where a site has no heads."""
    return "kv_head" if site in KV_HEAD_AXIS else "head" if site in HEAD_AXIS else None


def heads_in_view(site: str, of: Batch | ModelInfo) -> tuple[int, ...]:
    """The numbers of its heads that are looked at."""
    return of.kv_heads if site in KV_HEAD_AXIS else of.heads


def sizes(site: str, info: ModelInfo) -> tuple[int, int, int]:
    """Layers, heads and width of its vectors; one layer of a site of the whole model, one head where it has none."""
    layers = 1 if site == "embed" else len(info.layers)
    if head_dimension(site):
        return layers, len(heads_in_view(site, info)), info.d_head
    return layers, 1, info.d_mlp if site in ("mlp_pre", "mlp_post") else info.d_model
