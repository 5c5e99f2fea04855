"""gaussian.moments: the Gaussian of what flows through a site, for each layer and head, and how Gaussian it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gausslens import HEAD_AXIS, KV_HEAD_AXIS, Batch, Context, Estimate, GausslensError, ModelInfo, Request, Tokens
from gausslens.maths.moments import Floats

from .described import WHOLE, first_pass, second_pass, stacked
from .held import Held
from .normality import directions
from .observed import First, Second, counted, heads_in_front
from .robust import SAMPLE, Ball, place_numbers
from .sketch import omega

if TYPE_CHECKING:
    import xarray as xr

    from .parameters import MomentsParameters


@dataclass
class _Fixed:
    """What the first pass found."""

    first: dict[int | None, First] = field(default_factory=dict)
    principal: dict[int | None, Floats] = field(default_factory=dict)
    balls: dict[int | None, list[Ball]] = field(default_factory=dict)


class Moments:
    """Streams mean and covariance; one state for each layer that was seen, made when it is first seen."""

    def __init__(self, parameters: MomentsParameters, context: Context) -> None:
        self.parameters = parameters
        self.model = context.model.name
        self.heads: tuple[int, ...] = ()
        self.first: dict[int | None, First] = {}
        self.second: dict[int | None, Second] = {}
        self.fixed = Held(_Fixed())

    def request(self) -> Request:
        """One site, in every layer in view; a second pass for principal directions and the bulk."""
        twice = self.parameters.principal or self.parameters.robust
        return Request(sites=(self.parameters.site,), passes=2 if twice else 1)

    def update(self, batch: Batch) -> None:
        """Take in the vectors of a batch's tokens."""
        site, layer, fixed = self.parameters.site, batch.layer, self.fixed.value
        text, mask = batch.text.cpu().numpy(), batch.mask.cpu().numpy()
        chosen = counted(self.parameters.tokens, text, mask)
        vectors = batch.numpy(site)
        values = heads_in_front(vectors[chosen])
        if values.ndim == 3:
            self.heads = batch.kv_heads if site in KV_HEAD_AXIS else batch.heads
        if fixed.first:
            state = self.second.setdefault(layer, Second())
            state.add(values, fixed.principal.get(layer), fixed.balls.get(layer, []), self._sketch(values))
            return
        rows, positions = np.nonzero(chosen)
        places = place_numbers(np.asarray(batch.prompts)[rows], positions)
        first = self.first.setdefault(layer, First(self._sketch(values), self.parameters.robust))
        first.add(values, directions(values.shape[-1]), places)
        first.apart.add(np.linalg.norm(heads_in_front(vectors[mask & ~chosen]), axis=-1))

    def merge(self, other: Moments) -> None:
        """Take in what another shard's state has seen."""
        self.heads = self.heads or other.heads
        for layer, first in other.first.items():
            if layer in self.first:
                self.first[layer].merge(first)
            else:
                self.first[layer] = first
        for layer, second in other.second.items():
            self.second.setdefault(layer, Second()).merge(second)

    def end_pass(self, index: int) -> None:  # noqa: ARG002
        """Fix the principal directions and the bulk that the first pass found."""
        self._check(self.first)
        count = self.parameters.principal
        principal = {layer: one.principal(count) for layer, one in self.first.items()} if count else {}
        balls = {layer: one.bulk() for layer, one in self.first.items()} if self.parameters.robust else {}
        self.fixed = Held(_Fixed(self.first, principal, balls))
        self.first = {}

    def result(self) -> xr.Dataset:
        """The Gaussians of all layers."""
        found = self.fixed.value.first or self.first
        self._check(found)
        keep, covariance = self.parameters.keep, self.parameters.covariance
        parts = {}
        for layer, first in found.items():
            parts[layer] = first_pass(first, keep, covariance)
            if layer in self.second:
                many = first.vectors.mean.ndim == 2
                parts[layer] |= second_pass(self.second[layer], first.vectors.count, keep, covariance, many)
        lead = ("kv_head",) if self.parameters.site in KV_HEAD_AXIS else ("head",)
        dataset = stacked(parts, lead)
        if self.heads:
            dataset = dataset.assign_coords({lead[0]: list(self.heads)})
        return dataset.assign_attrs(site=self.parameters.site, tokens=self._counted(), **self._notes(dataset))

    def _counted(self) -> str:
        return {
            "text": "text tokens beyond the first position",
            "all-text": "text tokens",
            "all": "tokens",
        }[self.parameters.tokens]

    def _check(self, found: dict[int | None, First]) -> None:
        where = f"gaussian.moments at {self.parameters.site} of {self.model}"
        few = [state.vectors.count for state in found.values() if state.vectors.count < 2]
        if few or not found:
            raise GausslensError(
                f"{where}: a covariance needs two {self._counted()} or more, and there were "
                f"{max(few, default=0)}; give more or longer prompts, or count others with `tokens:`"
            )
        for layer, state in found.items():
            if not np.isfinite(state.vectors.mean).all():
                at = "" if layer is None else f" in layer {layer}"
                raise GausslensError(f"{where}: activations{at} are not finite; a larger `dtype` may hold them")

    def _notes(self, dataset: xr.Dataset) -> dict[str, str]:
        """Attributes: a warning where extreme vectors own a covariance, and what a sketch cannot tell."""
        notes = {}
        owned = dataset["owned"]
        if bool(owned.any()):
            share = float(dataset["extreme_share"].where(owned).max())
            layers = (
                owned["layer"].values[owned.values.reshape(owned.sizes["layer"], -1).any(axis=1)]
                if "layer" in owned.dims
                else ()
            )
            where = f" (layers {', '.join(map(str, layers))})" if len(layers) else ""
            notes["warning"] = (
                f"a few vectors longer than 8 times the median hold up to {share:.0%} of the energy{where}: mean, "
                "covariance and spectrum there describe them, not the others; `robust: true` describes the others"
            )
        if "sketch_error" in dataset:
            notes["sketch"] = (
                f"a sketch of width {self.parameters.sketch}: rank, effective rank and entropy need the whole "
                "covariance; eigenvalues are from below, at most sketch_error too low"
            )
        return notes

    def _sketch(self, values: Floats) -> Floats | None:
        """The random matrix of the sketch, where one is asked for and is narrower than the vectors."""
        width, wanted = values.shape[-1], self.parameters.sketch
        return omega(width, wanted) if wanted is not None and wanted < width else None


def _width(site: str, info: ModelInfo) -> int:
    if site in HEAD_AXIS or site in KV_HEAD_AXIS:
        return info.d_head
    return info.d_mlp if site in ("mlp_pre", "mlp_post") else info.d_model


def estimate(parameters: MomentsParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory and disk: a float64 covariance for each layer and head, twice while shards merge.

    d = 4096 and 32 layers need 8.6 GB for resid_pre; a sketch of width 256 needs a sixteenth of that.
    """
    site = parameters.site
    per_head = site in HEAD_AXIS or site in KV_HEAD_AXIS
    heads = len(info.kv_heads if site in KV_HEAD_AXIS else info.heads) if per_head else 1
    width = _width(site, info)
    layers = 1 if site == "embed" else len(info.layers)
    sketched = parameters.sketch is not None and parameters.sketch < width
    each = width * (parameters.sketch or width) if sketched else width**2
    whole = parameters.covariance and width <= WHOLE and not sketched
    fits = 2 if parameters.robust else 1
    kept = width**2 if whole else width * (parameters.keep + 3)
    held = 2 * 8 * layers * heads * each
    second = held // 2 * fits if parameters.robust or parameters.principal else 0
    sample = 2 * 4 * layers * heads * SAMPLE * width if parameters.robust else 0
    # Eigenvalues of a matrix of this width, about 10 d^3 flops each.
    seconds = 0.0 if sketched else layers * heads * fits * 10 * float(width) ** 3 / 2e10
    return Estimate(memory=held + second + sample, disk=8 * layers * heads * kept * fits, seconds=seconds)
