"""gaussian.moments: the Gaussian of what flows through a site, for each layer and head, in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import HEAD_AXIS, KV_HEAD_AXIS, Batch, Context, Estimate, GausslensError, ModelInfo, Request, Tokens

from .covariance import RunningMoments, anisotropy, effective_rank, rank, spectrum, support_entropy

if TYPE_CHECKING:
    from .parameters import MomentsParameters

# Up to this width the whole covariance is stored; beyond it, the diagonal and the leading directions.
WHOLE = 1024


class Moments:
    """Streams mean and covariance; one state for each layer that was seen, made when it is first seen."""

    def __init__(self, parameters: MomentsParameters, context: Context) -> None:
        self.parameters = parameters
        self.vectors: dict[int | None, RunningMoments] = {}
        self.lengths: dict[int | None, RunningMoments] = {}
        self.heads: tuple[int, ...] = ()
        self.model = context.model.name

    def request(self) -> Request:
        """One site, in every layer in view."""
        return Request(sites=(self.parameters.site,))

    def update(self, batch: Batch) -> None:
        """Take in the vectors of a batch's tokens."""
        site = self.parameters.site
        counted = (batch.text if self.parameters.tokens == "text" else batch.mask).cpu().numpy()
        values = batch.numpy(site)[counted].astype(np.float64)
        if values.ndim == 3:  # [token, head, d_head]: heads side by side
            self.heads = batch.kv_heads if site in KV_HEAD_AXIS else batch.heads
            values = np.ascontiguousarray(values.swapaxes(0, 1))
        self.lengths.setdefault(batch.layer, RunningMoments()).add(np.linalg.norm(values, axis=-1, keepdims=True))
        self.vectors.setdefault(batch.layer, RunningMoments()).add(values)

    def merge(self, other: Moments) -> None:
        """Take in what another shard's state has seen."""
        self.heads = self.heads or other.heads
        for mine, theirs in ((self.vectors, other.vectors), (self.lengths, other.lengths)):
            for layer, state in theirs.items():
                mine.setdefault(layer, RunningMoments()).merge(state)

    def end_pass(self, index: int) -> None:
        """Nothing to fix: there is one pass."""

    def result(self) -> xr.Dataset:
        """The Gaussians of all layers."""
        few = {layer: state.count for layer, state in self.vectors.items() if state.count < 2}
        if few or not self.vectors:
            raise GausslensError(
                f"gaussian.moments at {self.parameters.site} of {self.model}: a covariance needs two {self._counted()} "
                f"or more, and there were {max(few.values(), default=0)}; give more or longer prompts"
            )
        layers = sorted(self.vectors, key=lambda layer: -1 if layer is None else layer)
        parts = [self._one(layer) for layer in layers]
        if layers == [None]:  # a site of the whole model has no layers
            return parts[0]
        # Stacked by hand: every layer has the same variables, and xarray's concat compares all coordinates.
        stacked = {
            name: (("layer", *parts[0][name].dims), np.stack([p[name].values for p in parts]), parts[0][name].attrs)
            for name in parts[0].data_vars
        }
        return xr.Dataset(stacked, coords={**parts[0].coords, "layer": np.array(layers)}, attrs=parts[0].attrs)

    def _counted(self) -> str:
        return "text tokens" if self.parameters.tokens == "text" else "tokens"

    def _one(self, layer: int | None) -> xr.Dataset:
        state, lengths = self.vectors[layer], self.lengths[layer]
        covariance = state.covariance
        values = spectrum(covariance)
        keep = min(self.parameters.keep, values.shape[-1])
        lead: tuple[str, ...] = ()
        coords: dict[str, Any] = {"component": np.arange(keep), "feature": np.arange(values.shape[-1])}
        if values.ndim == 2:
            lead = ("kv_head" if self.parameters.site in KV_HEAD_AXIS else "head",)
            coords[lead[0]] = np.array(self.heads)
        square = "squared activation"
        variables = {
            "count": ((), np.int64(state.count), _attrs("vectors counted", "tokens", against=0)),
            "trace": (lead, values.sum(axis=-1), _attrs("trace of the covariance", square)),
            "effective_rank": (
                lead,
                effective_rank(values),
                _attrs("effective rank exp(H(lambda/trace))", "dimensions"),
            ),
            "anisotropy": (lead, anisotropy(values), _attrs("share of the leading eigenvalue", "1")),
            "rank": (lead, rank(values), _attrs("numerical rank of the covariance", "dimensions", against=0)),
            "entropy": (
                lead,
                support_entropy(values),
                _attrs("Gaussian entropy within the support of that rank", "nat"),
            ),
            "length_mean": (lead, lengths.mean[..., 0], _attrs("mean length of the vectors", "activation")),
            "length_sd": (lead, np.sqrt(lengths.covariance[..., 0, 0]), _attrs("spread of the length", "activation")),
            "spectrum": (
                (*lead, "component"),
                values[..., :keep],
                _attrs("leading eigenvalues of the covariance", square, against=0),
            ),
            "mean": ((*lead, "feature"), state.mean, _attrs("mean vector", "activation")),
            "variance": (
                (*lead, "feature"),
                np.diagonal(covariance, axis1=-2, axis2=-1),
                _attrs("variance of each coordinate", square),
            ),
        }
        if self.parameters.covariance and values.shape[-1] <= WHOLE:
            coords["feature_other"] = coords["feature"]
            variables["covariance"] = ((*lead, "feature", "feature_other"), covariance, _attrs("covariance", square))
        elif self.parameters.covariance:
            directions = np.swapaxes(np.linalg.eigh(covariance)[1][..., ::-1][..., :keep], -1, -2)
            variables["directions"] = (
                (*lead, "component", "feature"),
                directions,
                _attrs("leading eigenvectors of the covariance; their signs mean nothing", "1"),
            )
        return xr.Dataset(variables, coords=coords, attrs={"site": self.parameters.site, "tokens": self._counted()})


def _attrs(long_name: str, units: str, against: int | None = None) -> dict[str, Any]:
    """``against=0`` leaves a variable out of comparisons with a null."""
    return {"long_name": long_name, "units": units} | ({} if against is None else {"against": against})


def estimate(parameters: MomentsParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory and disk: a float64 covariance for each layer and head, twice while shards merge."""
    site = parameters.site
    per_head = site in HEAD_AXIS or site in KV_HEAD_AXIS
    heads = len(info.kv_heads if site in KV_HEAD_AXIS else info.heads) if per_head else 1
    width = info.d_head if per_head else info.d_mlp if site in ("mlp_pre", "mlp_post") else info.d_model
    layers = 1 if site == "embed" else len(info.layers)
    whole = 8 * layers * heads * width**2
    kept = whole if parameters.covariance and width <= WHOLE else 8 * layers * heads * width * (parameters.keep + 2)
    return Estimate(memory=2 * whole, disk=kept)
