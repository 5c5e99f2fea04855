"""gaussian.joint: positions of a prompt as one Gaussian over many prompts, and what they tell of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens import HEAD_AXIS, KV_HEAD_AXIS, Batch, Context, Estimate, GausslensError, ModelInfo, Request, Tokens
from gausslens.maths.moments import Floats, RunningMoments

from .bigrams import Bigrams
from .described import WHOLE, attributes
from .held import Held
from .jointly import described
from .sampling import TooFewSamples, needed
from .windows import fit

if TYPE_CHECKING:
    import xarray as xr

    from .parameters import JointParameters

# (layer, head): head None where the site has none.
Place = tuple[int | None, int | None]


class Joint:
    """Gathers the vectors of a window of each prompt, reduced to few numbers; PCA finds its axes in a first pass."""

    def __init__(self, parameters: JointParameters, context: Context) -> None:
        self.parameters = parameters
        self.context = context
        self.axes: Held[dict[Place, Floats]] = Held({})
        self.pooled: dict[Place, RunningMoments] = {}
        self.samples: dict[Place, dict[tuple[int, int], Floats]] = {}
        self.bigrams = Bigrams()

    def request(self) -> Request:
        """The site; the embeddings too where bigrams are asked for; with PCA two passes."""
        sites = {self.parameters.site} | ({"embed"} if self.parameters.bigrams else set())
        return Request(sites=tuple(sorted(sites)), passes=2 if self.parameters.reduce == "pca" else 1)

    def update(self, batch: Batch) -> None:
        """Take in the windows of a shard."""
        site, text = self.parameters.site, batch.text.cpu().numpy()
        last = self.parameters.reduce != "pca" or bool(self.axes.value)
        if "embed" in batch.arrays and self.parameters.bigrams and last:
            self.bigrams.add(batch.tokens.cpu().numpy(), text, batch.numpy("embed"))
        if site not in batch.arrays:
            return
        vectors = batch.numpy(site).astype(np.float64)
        windows = self._windows(batch.mask.cpu().numpy())
        if not windows:
            return
        stacked = np.stack([vectors[row, start : start + self.parameters.window] for row, start in windows])
        for place, values in self._by_head(batch, stacked):
            if not last:
                self.pooled.setdefault(place, RunningMoments()).add(values.reshape(-1, values.shape[-1]))
                continue
            reduced = values @ self._axes_of(place, values.shape[-1]).T
            kept = self.samples.setdefault(place, {})
            for (row, start), one in zip(windows, reduced, strict=True):
                kept[int(batch.prompts[row]), start] = one

    def merge(self, other: Joint) -> None:
        """Take in what another shard has seen."""
        self.bigrams.merge(other.bigrams)
        for place, state in other.pooled.items():
            self.pooled.setdefault(place, RunningMoments()).merge(state)
        for place, kept in other.samples.items():
            self.samples.setdefault(place, {}).update(kept)

    def end_pass(self, index: int) -> None:  # noqa: ARG002
        """Fix the axes: the leading principal directions of the tokens in the windows."""
        self.axes = Held({place: _principal(state, self.parameters.dims) for place, state in self.pooled.items()})
        self.pooled = {}

    def result(self) -> xr.Dataset:
        """The joint Gaussians of all layers and heads."""
        where = f"gaussian.joint at {self.parameters.site} of {self.context.model.name}"
        dims = self._dims()
        if not self.samples:
            raise GausslensError(
                f"{where}: no prompt is long enough for a window of {self.parameters.window} positions from position "
                f"{self.parameters.start}; give longer prompts or a smaller window"
            )
        fits = {}
        for place, kept in sorted(self.samples.items(), key=lambda item: _order(item[0])):
            # By prompt and position: so the result does not depend on how shards were cut.
            samples = np.stack([kept[key] for key in sorted(kept)])
            if not np.isfinite(samples).all():
                raise GausslensError(f"{where}: activations are not finite; a larger `dtype` may hold them")
            try:
                fits[place] = fit(samples, self.parameters.permutations, self.context.generator(f"{place}"))
            except TooFewSamples as error:
                raise GausslensError(
                    f"{where}: {error}: give {needed(dims, dims)} prompts or more of at least "
                    f"{self.parameters.start + self.parameters.window} tokens (or windows, with `every`), or reduce to "
                    "fewer `dims`"
                ) from error
        counts = {len(kept) for kept in self.samples.values()}
        axes = {place: self._axes_of(place, 0) for place in fits} if self.parameters.reduce == "pca" else {}
        dataset = described(fits, axes, self.parameters, min(counts), self._head_name())
        return self._with_bigrams(dataset)

    def _windows(self, mask: Any) -> list[tuple[int, int]]:
        """(row, first position) of each window that lies within its prompt."""
        size, step = self.parameters.window, self.parameters.every
        found = []
        for row, length in enumerate(mask.sum(axis=1).tolist()):
            # Padding is on the right: a prompt's own positions are its first ``length``.
            starts = range(self.parameters.start, length - size + 1, step or max(length, 1))
            found += [(row, start) for start in starts]
        return found

    def _by_head(self, batch: Batch, values: Floats) -> list[tuple[Place, Floats]]:
        if values.ndim == 3:
            return [((batch.layer, None), values)]
        heads = batch.kv_heads if self.parameters.site in KV_HEAD_AXIS else batch.heads
        return [((batch.layer, head), values[:, :, i]) for i, head in enumerate(heads)]

    def _head_name(self) -> str | None:
        site = self.parameters.site
        return "kv_head" if site in KV_HEAD_AXIS else "head" if site in HEAD_AXIS else None

    def _dims(self) -> int:
        return next((one.shape[-1] for kept in self.samples.values() for one in kept.values()), self.parameters.dims)

    def _axes_of(self, place: Place, width: int) -> Floats:
        """Rows that a vector is multiplied by: orthonormal, the same for all layers where they are random."""
        if self.parameters.reduce == "pca":
            return self.axes.value[place]
        if self.parameters.reduce == "none" or self.parameters.dims >= width:
            return np.eye(width)
        drawn = self.context.generator("projection").standard_normal((width, self.parameters.dims))
        found: Floats = np.linalg.qr(drawn)[0].T
        return found

    def _with_bigrams(self, dataset: xr.Dataset) -> xr.Dataset:
        if not self.bigrams.pairs:
            return dataset
        found = self.bigrams.described(self.parameters.bigrams, keep=16)
        words = {
            "bigram_times": ("times", "how often the token is followed", "tokens"),
            "bigram_successors": ("successors", "different tokens that follow it", "tokens"),
            "bigram_second_moment": ("second_moment", "mean squared length of what follows", "squared activation"),
            "bigram_trace": ("trace", "trace of the covariance of what follows", "squared activation"),
            "bigram_rank": ("rank", "rank of the covariance of what follows", "dimensions"),
            "bigram_effective_rank": ("effective_rank", "effective rank of what follows", "dimensions"),
            "bigram_spectrum": (
                "spectrum",
                "leading eigenvalues of the covariance of what follows",
                "squared activation",
            ),
        }
        variables: dict[str, Any] = {}
        for name, (key, text, units) in words.items():
            values = np.asarray(found[key], dtype=np.float64)
            variables[name] = (("first", "component_of_next")[: values.ndim], values, attributes(text, units, 0))
        variables["bigram_token"] = ("first", np.array(found["token"]), attributes("the token", "token number", 0))
        text = "share of the variance of the next embedding that knowing the token removes"
        variables["bigram_explained"] = ((), found["explained"], attributes(text, "1", 0))
        return dataset.assign(variables).assign_coords(first=[self._piece(token) for token in found["token"]])

    def _piece(self, token: int) -> str:
        tokens = self.context.tokens
        if tokens is not None:
            for ids, pieces in zip(tokens.ids, tokens.pieces, strict=True):
                places = np.flatnonzero(ids == token)
                if len(places):
                    return pieces[int(places[0])]
        return str(token)


def _principal(state: RunningMoments, dims: int) -> Floats:
    vectors: Floats = np.linalg.eigh(state.covariance)[1].T[::-1][:dims]
    # A sign of its own choosing would differ between libraries: the largest entry is positive.
    signs = np.sign(vectors[np.arange(len(vectors)), np.abs(vectors).argmax(axis=1)])
    found: Floats = vectors * signs[:, None]
    return found


def _order(place: Place) -> tuple[int, int]:
    layer, head = place
    return (-1 if layer is None else layer, -1 if head is None else head)


def estimate(parameters: JointParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """Memory: the reduced samples of all layers, and with PCA a covariance of each layer in the first pass."""
    site = parameters.site
    per_head = site in HEAD_AXIS or site in KV_HEAD_AXIS
    heads = len(info.kv_heads if site in KV_HEAD_AXIS else info.heads) if per_head else 1
    width = info.d_head if per_head else info.d_mlp if site in ("mlp_pre", "mlp_post") else info.d_model
    places = heads * (1 if site == "embed" else len(info.layers))
    dims = width if parameters.reduce == "none" else min(parameters.dims, width)
    lengths = tokens.lengths if tokens else ()
    step, room = parameters.every, parameters.start + parameters.window
    many = sum(1 + ((n - room) // step if step else 0) for n in lengths if n >= room)
    samples = 8 * places * many * parameters.window * dims
    pooled = 2 * 8 * places * width**2 if parameters.reduce == "pca" else 0
    whole = (parameters.window * dims) ** 2 if parameters.window * dims <= WHOLE else 0
    stored = 8 * places * (whole + 8 * parameters.window**2 + parameters.window * dims**2 + dims * width)
    pairs = parameters.window * (parameters.window - 1) // 2
    seconds = places * pairs * (1 + parameters.permutations) * (2e-5 + 2e-9 * many * dims**2)
    return Estimate(memory=max(samples, pooled), disk=stored, seconds=seconds)
