"""The result of gaussian.collapse as named variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import ModelInfo
from gausslens.maths.moments import Floats, RunningMoments

from .described import attributes
from .information import frechet
from .uniformity import rates

if TYPE_CHECKING:
    from .collapse import Seen
    from .parameters import CollapseParameters

_NAMES = {"residual": ("", "the residual stream"), "attention": ("_path", "the attention-only path")}


def dataset(seen: Seen, info: ModelInfo, parameters: CollapseParameters, prompts: int) -> xr.Dataset:
    """Variables [layer, head] and [layer] of the layers with attention in view, and the rates over them."""
    attended = [n for n in info.layers if n in seen.deficits]
    heads = list(info.heads)
    variables: dict[str, Any] = {"count": ((), np.int64(prompts), attributes("prompts", "prompts", 0))}
    variables |= _of_heads(seen, attended, heads, np.array(seen.rows[attended[0]], dtype=np.float64))
    left_out = []
    for stream, (suffix, words) in _NAMES.items():
        variables |= _of_stream(seen, stream, attended, suffix, words)
        places = [seen.places.get((stream, n)) for n in attended]
        enough = all(p is not None and p.count > 2 * parameters.dims for p in places)
        if enough:
            distances = np.array([_between_positions(p) for p in places if p is not None])
            text = (
                f"mean distance between the distributions of two positions, {words}, over their root mean square size"
            )
            variables[f"position_distance{suffix}"] = (("layer",), distances, attributes(text, "1"))
        else:
            left_out.append(f"position_distance{suffix}")
    made = xr.Dataset(variables, coords={"layer": attended, "head": heads})
    notes = {
        "rate": "nats per layer by which the relative diameter of tokens falls, fitted over layers; 0: no collapse"
    }
    if left_out:
        notes["not_measured"] = (
            f"{', '.join(left_out)}: more than {2 * parameters.dims} prompts of {parameters.positions} text tokens "
            "are needed"
        )
    return made.assign_attrs(notes)


def _of_heads(seen: Seen, layers: list[int], heads: list[int], rows: Floats) -> dict[str, Any]:
    deficits = np.stack([np.stack(seen.deficits[n])[:, heads] for n in layers])
    means = deficits.sum(axis=1) / rows.sum()
    # Prompts are the independent units: the spread of their means, weighted by rows.
    apart = (deficits - means[:, None] * rows[None, :, None]) / rows.sum()
    m = len(rows)
    errors = np.sqrt((apart**2).sum(axis=1) * m / max(m - 1, 1)) if m > 1 else np.full_like(means, np.nan)
    narrowing = np.exp(np.stack([_mean_of_finite(np.stack(seen.mixing[n])[:, heads]) for n in layers]))
    dims = ("layer", "head")
    return {
        "entropy_deficit": (
            dims,
            means,
            attributes("how far the entropy of attention rows is below that of uniform ones, log n", "nat"),
        ),
        "entropy_deficit_se": (
            dims,
            errors,
            attributes("standard error of the entropy deficit, over prompts (NaN: one prompt)", "nat", 0),
        ),
        "mixing": (
            dims,
            narrowing,
            attributes("diameter of a head's outputs over that of its values, geometric mean over prompts", "1"),
        ),
    }


def _mean_of_finite(logs: Floats) -> Floats:
    """Mean over prompts [prompt, head]; a prompt whose values or outputs are all equal has no ratio. NaN: all do."""
    seen = np.isfinite(logs)
    many = seen.sum(axis=0)
    found: Floats = np.where(many > 0, np.where(seen, logs, 0.0).sum(axis=0) / np.maximum(many, 1), np.nan)
    return found


def _of_stream(seen: Seen, stream: str, layers: list[int], suffix: str, words: str) -> dict[str, Any]:
    spread = np.stack([np.array(seen.spread[stream, n]) for n in layers], axis=1)
    alike = np.array([np.mean(seen.alike[stream, n]) for n in layers])
    dims = ("layer",)
    made: dict[str, Any] = {
        f"diameter{suffix}": (
            dims,
            spread.mean(axis=0),
            attributes(f"diameter of a prompt's tokens over their length, {words}", "1"),
        ),
        f"cosine{suffix}": (dims, alike, attributes(f"mean cosine of two tokens of a prompt, {words}", "1")),
    }
    found = rates(spread) if len(layers) > 1 else np.full(len(spread), np.nan)
    seen_rates = found[~np.isnan(found)]
    value = float(seen_rates.mean()) if len(seen_rates) else np.nan
    error = float(seen_rates.std(ddof=1) / np.sqrt(len(seen_rates))) if len(seen_rates) > 1 else np.nan
    text = f"rate of collapse of {words} (NaN: fewer than two layers)"
    made[f"collapse_rate{suffix}"] = ((), value, attributes(text, "nat/layer"))
    text = f"standard error of the rate of {words}, over prompts (NaN: one prompt)"
    made[f"collapse_rate{suffix}_se"] = ((), error, attributes(text, "nat/layer", 0))
    return made


def _between_positions(state: RunningMoments) -> float:
    """Mean Frechet distance of all pairs of positions, over the root mean square size of the vectors."""
    means, covariances = state.mean, state.covariance
    pairs = [(i, j) for i in range(len(means)) for j in range(i)]
    distances = [frechet(means[i], covariances[i], means[j], covariances[j]) for i, j in pairs]
    size = np.sqrt((np.trace(covariances, axis1=-2, axis2=-1) + (means**2).sum(axis=-1)).mean())
    return float(np.mean(distances) / size) if size > 0 else 0.0
