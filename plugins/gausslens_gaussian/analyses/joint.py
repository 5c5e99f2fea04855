"""gaussian.joint: positions of a prompt as one Gaussian over many prompts, and what they tell of each other."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Batch, Context, Estimate, GausslensError, ModelInfo, Request, Tokens, attributes, site, variable
from gausslens.maths.moments import Arrays, Floats, RunningMoments, arrays_of, packed, parted, put_each, unpacked
from gausslens.maths.on_device import Values, along, placed, wide

from ..maths.bigrams import Bigrams
from ..maths.geometry import leading, random_projection
from ..maths.information_from_samples import Information, TooFewSamples, information_bias, needed
from ..maths.window_gaussian import WindowGaussian, fit_window
from ..parameters import WHOLE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..parameters import JointParameters

# (layer, head): head None where the site has none.
Place = tuple[int | None, int | None]


class _Axes(dict[Place, Floats]):
    """Rows that vectors are multiplied by, fixed by the first pass: the copies for shards share them."""

    def __deepcopy__(self, memo: dict[int, object]) -> _Axes:
        return self


class Joint:
    """Gathers the vectors of a window of each prompt, reduced to few numbers; PCA finds its axes in a first pass."""

    def __init__(self, parameters: JointParameters, context: Context) -> None:
        self.parameters = parameters
        self.context = context
        self.axes = _Axes()
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
        last = self.parameters.reduce != "pca" or bool(self.axes)
        if "embed" in batch.arrays and self.parameters.bigrams and last:
            self.bigrams.add(batch.tokens.cpu().numpy(), text, batch.numpy("embed"))
        if site not in batch.arrays:
            return
        windows = self._windows(batch.mask.cpu().numpy())
        if not windows:
            return
        rows, starts = np.array(windows).T[:, :, None]
        stacked = wide(batch.values(site)[rows, starts + np.arange(self.parameters.window)])
        for place, values in self._by_head(batch, stacked):
            if not last:
                flat = values.reshape(-1, values.shape[-1])
                self.pooled.setdefault(place, RunningMoments()).add(placed(flat))
                continue
            reduced = along(values, self._axes_of(place, values.shape[-1]))
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

    def state(self) -> Arrays:
        """All that was seen, and the axes of the first pass."""
        samples = {(*place, *key): {"x": one} for place, kept in self.samples.items() for key, one in kept.items()}
        parts = {"axes": self.axes, "pooled": self.pooled, "samples": packed(samples), "bigrams": self.bigrams.state()}
        return arrays_of(parts)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what ``state`` gave. A copy of what a pass began with has the axes, and shares them."""
        parts = parted(state)
        self.axes = self.axes or _Axes({literal_eval(place): rows for place, rows in parts.get("axes", {}).items()})
        self.pooled = put_each(RunningMoments, parts.get("pooled", {}))
        self.samples = {}
        for (layer, head, prompt, start), one in unpacked(parts.get("samples", {})).items():
            self.samples.setdefault((layer, head), {})[prompt, start] = one["x"]
        self.bigrams.restore(parts["bigrams"])

    def end_pass(self, index: int) -> None:  # noqa: ARG002
        """Fix the axes: the leading principal directions of the tokens in the windows."""
        dims = self.parameters.dims
        self.axes = _Axes({place: _principal(state, dims) for place, state in self.pooled.items()})
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
                fits[place] = fit_window(samples, self.parameters.permutations, self.context.generator(f"{place}"))
            except TooFewSamples as error:
                raise GausslensError(
                    f"{where}: {error}: give {needed(dims, dims)} prompts or more of at least "
                    f"{self.parameters.start + self.parameters.window} tokens (or windows, with `every`), or reduce to "
                    "fewer `dims`"
                ) from error
        counts = {len(kept) for kept in self.samples.values()}
        axes = {place: self._axes_of(place, 0) for place in fits} if self.parameters.reduce == "pca" else {}
        dataset = _dataset(fits, axes, self.parameters, min(counts))
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

    def _by_head(self, batch: Batch, values: Values) -> list[tuple[Place, Values]]:
        if values.ndim == 3:
            return [((batch.layer, None), values)]
        heads = site(self.parameters.site).heads(batch)
        return [((batch.layer, head), values[:, :, i]) for i, head in enumerate(heads)]

    def _dims(self) -> int:
        return next((one.shape[-1] for kept in self.samples.values() for one in kept.values()), self.parameters.dims)

    def _axes_of(self, place: Place, width: int) -> Floats:
        """Rows that a vector is multiplied by: orthonormal, the same for all layers where they are random."""
        if self.parameters.reduce == "pca":
            return self.axes[place]
        dims = width if self.parameters.reduce == "none" else self.parameters.dims
        return random_projection(width, dims, self.context.generator("projection"))

    def _with_bigrams(self, dataset: xr.Dataset) -> xr.Dataset:
        if not self.bigrams.pairs:
            return dataset
        found = self.bigrams.statistics(self.parameters.bigrams, keep=16)
        variables: dict[str, Any] = {}
        for name, (key, text, units) in _OF_BIGRAMS.items():
            values = np.asarray(found[key], dtype=np.float64)
            dims = ("first", "component_of_next")[: values.ndim]
            variables[name] = variable(dims, values, text, units, against=False)
        tokens = np.array(found["token"])
        variables["bigram_token"] = variable("first", tokens, "the token", "token number", against=False)
        text = "share of the variance of the next embedding that knowing the token removes"
        variables["bigram_explained"] = variable((), found["explained"], text, against=False)
        if self.parameters.followers:
            variables |= self._of_followers(found["token"])
        return dataset.assign(variables).assign_coords(first=[self._piece(token) for token in found["token"]])

    def _of_followers(self, tokens: list[int]) -> dict[str, Any]:
        """How much the most frequent followers hold, and the angles between what follows each token."""
        many = self.parameters.followers
        covered = self.bigrams.covered(many)
        made = {
            f"followers_{name}": variable((), covered[name], text.format(many=many), against=False)
            for name, text in _OF_FOLLOWERS.items()
        }
        _, following = self.bigrams.followers(0)
        angles = np.array([self.bigrams.angles(token, following) for token in tokens]).reshape(-1, 3)
        for (name, text), values in zip(_OF_ANGLES.items(), angles.T, strict=True):
            made[f"bigram_{name}"] = variable("first", values, text, against=False)
        return made

    def _piece(self, token: int) -> str:
        tokens = self.context.tokens
        if tokens is not None:
            for ids, pieces in zip(tokens.ids, tokens.pieces, strict=True):
                places = np.flatnonzero(ids == token)
                if len(places):
                    return pieces[int(places[0])]
        return str(token)


def _principal(state: RunningMoments, dims: int) -> Floats:
    vectors = leading(state.covariance, dims)
    # A sign of its own choosing would differ between libraries: the largest entry is positive.
    signs = np.sign(vectors[np.arange(len(vectors)), np.abs(vectors).argmax(axis=1)])
    found: Floats = vectors * signs[:, None]
    return found


def _order(place: Place) -> tuple[int, int]:
    layer, head = place
    return (-1 if layer is None else layer, -1 if head is None else head)


_PAIR = ("position", "position_other")
# For each pair of positions: the field of Information, its long name, its units.
_OF_PAIRS = {
    "mutual_information": ("value", "mutual information, corrected for the sample size (NaN on the diagonal)", "nat"),
    "mutual_information_plugin": ("plugin", "mutual information as fitted, too high by its bias", "nat"),
    "mutual_information_se": ("standard_error", "standard error of the mutual information", "nat"),
    "mutual_information_low": ("low", "lower end of the 95 % interval of the mutual information", "nat"),
    "mutual_information_high": ("high", "upper end of the 95 % interval of the mutual information", "nat"),
    "mutual_information_p": ("p", "share of permutations of the prompts that give as much", "1"),
}
# For each token that is followed often: the key of Bigrams.statistics, its long name, its units.
_OF_BIGRAMS = {
    "bigram_times": ("times", "how often the token is followed", "tokens"),
    "bigram_successors": ("successors", "different tokens that follow it", "tokens"),
    "bigram_second_moment": ("second_moment", "mean squared length of what follows", "squared activation"),
    "bigram_trace": ("trace", "trace of the covariance of what follows", "squared activation"),
    "bigram_rank": ("rank", "rank of the covariance of what follows", "dimensions"),
    "bigram_effective_rank": ("effective_rank", "effective rank of what follows", "dimensions"),
    "bigram_spectrum": ("spectrum", "leading eigenvalues of the covariance of what follows", "squared activation"),
}
# How much of what follows a token its most frequent followers hold: the key of Bigrams.covered, its long name.
_OF_FOLLOWERS = {
    "held": "share of what follows a token that its {many} most frequent followers hold, as counted",
    "often": "share of tokens behind one whose {many} most frequent followers hold over 0.9, as counted",
    "smoothed": "share of what follows a token that its {many} most frequent followers hold, smoothed",
    "often_smoothed": "share of tokens behind one whose {many} most frequent followers hold over 0.9, smoothed",
    "held_out": "share of tokens that are among the {many} most frequent followers, counted without themselves",
}
# Of what follows each token: what Bigrams.angles gives, in its order.
_OF_ANGLES = {
    "cosine": "mean cosine of two different embeddings that follow, by how often they do",
    "leading": "share of the leading eigenvalue of the second moment of what follows",
    "leading_apart": "what that would be were all that follows orthogonal",
}
# Dimensions, the number of a fit, and attributes.
_Of = tuple[tuple[str, ...], Callable[[Any], Any], dict[str, Any]]
_OF_WINDOWS: dict[str, _Of] = {
    "entropy": (
        ("position",),
        lambda f: f.entropy,
        attributes("entropy of each position after reduction, corrected for the sample size", "nat", against=True),
    ),
    "conditional_entropy": (
        ("step",),
        lambda f: f.conditional_entropy,
        attributes("entropy of a position given the one before", "nat"),
    ),
    "explained": (
        ("step",),
        lambda f: f.explained,
        attributes("share of the variance of a position that the one before explains linearly"),
    ),
    "transition": (
        ("step", "component", "component_before"),
        lambda f: f.transition,
        attributes("matrix of the regression on the position before", against=False),
    ),
    "decay": (("lag",), lambda f: f.decay, attributes("mean mutual information at a distance", "nat")),
    "decay_rate": ((), lambda f: f.rate, attributes("how fast it decays (NaN: too little to fit)", "nat/position")),
}

# Beside the information of each pair what the determinant of their covariance says.
_OF_DETERMINANTS: dict[str, _Of] = {
    "block_determinant": (
        _PAIR,
        lambda f: f.block_determinants,
        attributes(
            "log of the absolute determinant of the covariance between two positions", "log variance", against=False
        ),
    ),
    "determinant_correlation": (
        (),
        lambda f: f.determinant_correlation,
        attributes("rank correlation of that with the mutual information, over pairs of positions"),
    ),
}


def _dataset(
    fits: Mapping[Place, WindowGaussian], axes: Mapping[Place, Floats], parameters: JointParameters, count: int
) -> xr.Dataset:
    """Variables [layer, head, ...]; ``axes`` are the principal directions where vectors were reduced by them."""
    window, start, head = parameters.window, parameters.start, site(parameters.site).heads_dim
    positions = np.arange(start, start + window) if parameters.every is None else np.arange(window)
    dims = next(iter(fits.values())).covariance.shape[1]
    lag, components = np.arange(1, window), np.arange(dims)
    values = dict(_OF_WINDOWS)
    for name, (field, text, units) in _OF_PAIRS.items():
        if field != "p" or parameters.permutations:
            values[name] = (_PAIR, _matrix(field), attributes(text, units, against=name == "mutual_information"))
    if window * dims <= WHOLE:
        blocks = ("position", "component", "position_other", "component_other")
        attrs = attributes("joint covariance", "squared activation", against=False)
        values["covariance"] = (blocks, lambda f: f.covariance, attrs)
    if parameters.determinants:
        values |= _OF_DETERMINANTS
    dataset = _stacked(fits, values, head)
    bias = information_bias(count, dims, dims)
    text = "what was subtracted from each mutual information"
    extra: dict[str, Any] = {
        "count": variable((), np.int64(count), "windows", "windows", against=False),
        "mutual_information_bias": variable((), bias, text, "nat", against=False),
    }
    if axes:
        attrs = attributes("principal directions that vectors were reduced to; their signs mean nothing", against=False)
        dataset = dataset.merge(_stacked(axes, {"axes": (("component", "feature"), lambda a: a, attrs)}, head))
        for one in dataset.data_vars.values():
            # Each variant has principal directions of its own: its numbers are not those of a twin's frame.
            one.attrs["against"] = 0
    coords = {"position": positions, "position_other": positions, "step": positions[1:], "lag": lag}
    coords |= dict.fromkeys(("component", "component_before"), components)
    coords |= {"component_other": components} if "covariance" in dataset else {}
    how = {"pca": "leading principal directions", "random": "a fixed random projection", "none": "nothing"}
    frame = "this variant's own" if axes else "one for all variants"
    return (
        dataset.assign(extra)
        .assign_coords(coords)
        .assign_attrs(site=parameters.site, reduced_by=how[parameters.reduce], reduced_to=dims, frame=frame)
    )


def _matrix(field: str) -> Callable[[WindowGaussian], Floats]:
    """[position, position] of one number of each pair; NaN on the diagonal."""

    def of(found: WindowGaussian) -> Floats:
        size = len(found.information)
        values = np.full((size, size), np.nan)
        for i in range(size):
            for j in range(i + 1, size):
                one = found.information[i][j]
                assert isinstance(one, Information)
                values[i, j] = values[j, i] = getattr(one, field)
        return values

    return of


def _stacked(parts: Mapping[Place, Any], values: Mapping[str, _Of], head: str | None) -> xr.Dataset:
    layers = list(dict.fromkeys(layer for layer, _ in parts))
    heads = list(dict.fromkeys(one for _, one in parts))
    variables = {}
    for name, (dims, of, attrs) in values.items():
        array = np.stack([np.stack([np.asarray(of(parts[layer, one])) for one in heads]) for layer in layers])
        lead: tuple[str, ...] = ("layer", head or "head")
        if head is None:
            array, lead = array[:, 0], lead[:1]
        if layers == [None]:
            array, lead = array[0], lead[1:]
        variables[name] = ((*lead, *dims), array, attrs)
    dataset = xr.Dataset(variables)
    coords = ({} if layers == [None] else {"layer": layers}) | ({head: heads} if head else {})
    return dataset.assign_coords(coords)


def estimate(parameters: JointParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """Memory: the reduced samples of all layers, and with PCA a covariance of each layer in the first pass."""
    layers, heads, width = site(parameters.site).vectors(info)
    places = layers * heads
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
    return Estimate(memory=max(samples, pooled), disk=stored, seconds=seconds, result=seconds)
