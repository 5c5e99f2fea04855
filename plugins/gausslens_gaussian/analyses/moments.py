"""gaussian.moments: the Gaussian of what flows through a site, for each layer and head, and how Gaussian it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Batch, Context, Estimate, GausslensError, ModelInfo, Request, Tokens, merge_each, site, variable
from gausslens.maths.moments import Arrays, Floats, RunningMoments, arrays_of, parted, put_arrays
from gausslens.maths.on_device import Placed, of_tokens, samples
from gausslens.maths.spectra import anisotropy, effective_rank, rank, spectrum, support_entropy

from ..maths.geometry import leading
from ..maths.information_from_samples import entropy_bias
from ..maths.lengths import OWNED, RunningLengths, lengths
from ..maths.normality import RunningShape, directions, kurtosis_law, normality_p, skewness_sd
from ..maths.robust import SAMPLE, Ball, Sample, ball, place_numbers
from ..maths.sketch import RunningSketch, omega
from ..parameters import WHOLE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..parameters import MomentsParameters

Vectors = RunningMoments | RunningSketch
# A variable as ``gausslens.variable`` makes it, with the dimensions after those of layer and head.
Variable = tuple[tuple[str, ...], Any, dict[str, Any]]
_SQUARE = "squared activation"


class FirstPass:
    """Of one layer: mean and covariance (or a sketch of it), lengths, and shape along fixed random directions.

    Vectors come as [..., token, d], heads in front.
    """

    def __init__(self, omega: Floats | None = None, robust: bool = False) -> None:
        self.vectors = _running(omega)
        self.lengths = RunningLengths()
        self.lengths_left_out = RunningLengths()
        self.shape = RunningShape()
        self.sample = Sample() if robust else None

    def add(self, values: Placed, directions: Floats, places: NDArray[np.uint64]) -> None:
        """Take in the vectors that count."""
        self.lengths.add(lengths(values))
        self.vectors.add(values)
        self.shape.along(values, directions)
        if self.sample is not None:
            self.sample.add(places, values)

    def merge(self, other: FirstPass) -> None:
        """Take in what another shard has seen."""
        self.lengths.merge(other.lengths)
        self.lengths_left_out.merge(other.lengths_left_out)
        self.shape.merge(other.shape)
        self.vectors.merge(other.vectors)  # type: ignore[arg-type]  # both whole or both sketches
        if self.sample is not None and other.sample is not None:
            self.sample.merge(other.sample)

    def bulk(self) -> list[Ball]:
        """Where the bulk is, for each head."""
        assert self.sample is not None
        values = self.sample.values
        return [ball(values[:, head]) for head in range(values.shape[1])] if values.ndim == 3 else [ball(values)]

    def principal(self, count: int) -> Floats:
        """The leading directions [..., direction, d] of the covariance."""
        if isinstance(self.vectors, RunningSketch):
            return self.vectors.covariance(count).directions
        return leading(self.vectors.covariance, count)


class SecondPass:
    """Of one layer: the shape along the leading directions, and the moments of the bulk."""

    def __init__(self) -> None:
        self.shape = RunningShape()
        self.bulk: dict[int, Vectors] = {}  # by place of the head

    def add(
        self, values: Placed, directions: Floats | None, balls: Sequence[Ball], omega: Floats | None = None
    ) -> None:
        """Take in the vectors that count."""
        if directions is not None:
            self.shape.along(values, directions)
        for place, where in enumerate(balls):
            own = values[place] if values.ndim == 3 else values
            self.bulk.setdefault(place, _running(omega)).add(samples(own, where.holds(own)))

    def merge(self, other: SecondPass) -> None:
        """Take in what another shard has seen."""
        self.shape.merge(other.shape)
        merge_each(self.bulk, other.bulk)


@dataclass
class _Fixed:
    """What the first pass found, for the second. It is not changed any more, so the copies for shards share it."""

    first: dict[int | None, FirstPass] = field(default_factory=dict)
    principal: dict[int | None, Floats] = field(default_factory=dict)
    balls: dict[int | None, list[Ball]] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, object]) -> _Fixed:
        return self


class Moments:
    """Streams mean and covariance; one state for each layer that was seen, made when it is first seen."""

    def __init__(self, parameters: MomentsParameters, context: Context) -> None:
        self.parameters = parameters
        self.model = context.model.name
        self.heads: tuple[int, ...] = ()
        self.first: dict[int | None, FirstPass] = {}
        self.second: dict[int | None, SecondPass] = {}
        self.fixed = _Fixed()

    def request(self) -> Request:
        """One site, in every layer in view; a second pass for principal directions and the bulk."""
        twice = self.parameters.principal or self.parameters.robust
        return Request(sites=(self.parameters.site,), passes=2 if twice else 1)

    def update(self, batch: Batch) -> None:
        """Take in the vectors of a batch's tokens."""
        name, layer, fixed = self.parameters.site, batch.layer, self.fixed
        text, mask = batch.text.cpu().numpy(), batch.mask.cpu().numpy()
        chosen = _counted(self.parameters.tokens, text, mask)
        vectors = batch.values(name)
        values = of_tokens(vectors, chosen)
        if values.ndim == 3:
            self.heads = site(name).heads(batch)
        if fixed.first:
            state = self.second.setdefault(layer, SecondPass())
            state.add(values, fixed.principal.get(layer), fixed.balls.get(layer, []), self._sketch(values))
            return
        rows, positions = np.nonzero(chosen)
        places = place_numbers(np.asarray(batch.prompts)[rows], positions)
        first = self.first.setdefault(layer, FirstPass(self._sketch(values), self.parameters.robust))
        first.add(values, directions(values.shape[-1]), places)
        first.lengths_left_out.add(lengths(of_tokens(vectors, mask & ~chosen)))

    def merge(self, other: Moments) -> None:
        """Take in what another shard's state has seen."""
        self.heads = self.heads or other.heads
        merge_each(self.first, other.first)
        merge_each(self.second, other.second)

    def state(self) -> Arrays:
        """All that was seen, by paths as ``first/3/vectors/scatter``."""
        found = arrays_of({"first": self.first, "second": self.second, "fixed": self.fixed.first})
        # Omega is made again: it is as large as all the rest.
        return {path: array for path, array in found.items() if not path.endswith("/omega")} | {
            "heads": np.array(self.heads, dtype=np.int64)
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what ``state`` gave. A copy of what a pass began with has the fixed part, and shares it."""
        parts = {name: {_layer(n): arrays for n, arrays in parted(of).items()} for name, of in parted(state).items()}
        self.heads = tuple(state["heads"].tolist())
        self.first = {layer: self._first(arrays) for layer, arrays in parts.get("first", {}).items()}
        self.second = {layer: self._second(arrays) for layer, arrays in parts.get("second", {}).items()}
        if not self.fixed.first:
            self._fix({layer: self._first(arrays) for layer, arrays in parts.get("fixed", {}).items()})

    def _first(self, arrays: Arrays) -> FirstPass:
        made = FirstPass(robust=self.parameters.robust)
        put_arrays(made, arrays)
        made.vectors = self._vectors(parted(arrays)["vectors"])
        return made

    def _second(self, arrays: Arrays) -> SecondPass:
        made = SecondPass()
        put_arrays(made.shape, parted(arrays)["shape"])
        for place, vectors in parted(parted(arrays).get("bulk", {})).items():
            made.bulk[int(place)] = self._vectors(vectors)
        return made

    def _vectors(self, arrays: Arrays) -> Vectors:
        made = _running(self._sketch(arrays["mean"]) if "product" in arrays else None)
        put_arrays(made, arrays)
        return made

    def end_pass(self, index: int) -> None:  # noqa: ARG002
        """Fix the principal directions and the bulk that the first pass found."""
        self._check(self.first)
        self._fix(self.first)
        self.first = {}

    def _fix(self, first: dict[int | None, FirstPass]) -> None:
        count = self.parameters.principal
        principal = {layer: one.principal(count) for layer, one in first.items()} if count else {}
        balls = {layer: one.bulk() for layer, one in first.items()} if self.parameters.robust else {}
        self.fixed = _Fixed(first, principal, balls)

    def result(self) -> xr.Dataset:
        """The Gaussians of all layers."""
        found = self.fixed.first or self.first
        self._check(found)
        keep, covariance = self.parameters.keep, self.parameters.covariance
        parts = {}
        for layer, first in found.items():
            parts[layer] = _of_first_pass(first, keep, covariance)
            if layer in self.second:
                many = first.vectors.mean.ndim == 2
                parts[layer] |= _of_second_pass(self.second[layer], first.vectors.count, keep, covariance, many)
        head = site(self.parameters.site).heads_dim or "head"
        dataset = _stacked(parts, head)
        if self.heads:
            dataset = dataset.assign_coords({head: list(self.heads)})
        return dataset.assign_attrs(site=self.parameters.site, tokens=self._tokens_in_words(), **self._notes(dataset))

    def _tokens_in_words(self) -> str:
        return {
            "text": "text tokens beyond the first position",
            "all-text": "text tokens",
            "all": "tokens",
        }[self.parameters.tokens]

    def _check(self, found: dict[int | None, FirstPass]) -> None:
        where = f"gaussian.moments at {self.parameters.site} of {self.model}"
        few = [state.vectors.count for state in found.values() if state.vectors.count < 2]
        if few or not found:
            raise GausslensError(
                f"{where}: a covariance needs two {self._tokens_in_words()} or more, and there were "
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

    def _sketch(self, values: Placed) -> Floats | None:
        """The random matrix of the sketch, where one is asked for and is narrower than the vectors."""
        width, wanted = values.shape[-1], self.parameters.sketch
        return omega(width, wanted) if wanted is not None and wanted < width else None


def _layer(name: str) -> int | None:
    return None if name == "None" else int(name)


def _running(omega: Floats | None) -> Vectors:
    return RunningMoments() if omega is None else RunningSketch(omega)


def _counted(tokens: str, text: NDArray[np.bool_], mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which tokens [prompt, position] count: see the parameter ``tokens``."""
    if tokens == "all":
        return mask
    chosen = text & mask
    if tokens == "text":
        chosen = chosen.copy()
        chosen[:, :1] = False
    return chosen


def _of_first_pass(first: FirstPass, keep: int, covariance: bool) -> dict[str, Variable]:
    """The plain fit, lengths, and how normal it is along random directions."""
    vectors = first.vectors
    count, width = vectors.count, vectors.mean.shape[-1]
    variables: dict[str, Variable] = {
        # With heads in front these two are the same for all of them, and have no such axis.
        "count": variable((), np.int64(count), "vectors counted", "tokens", against=False),
        "count_per_dimension": variable((), count / width, "vectors for each dimension", against=False),
        "mean": variable("feature", vectors.mean, "mean vector", "activation"),
    }
    if isinstance(vectors, RunningSketch):
        variables |= _of_sketch(vectors, keep)
    else:
        variables |= _of_covariance(vectors, keep, covariance)
    return variables | _of_lengths(first) | _of_shape(first.shape)


def _of_second_pass(second: SecondPass, count: int, keep: int, covariance: bool, heads: bool) -> dict[str, Variable]:
    """The shape along the leading directions, and the fit of the bulk; ``heads``: there is an axis of heads."""
    variables: dict[str, Variable] = {}
    if second.shape.count:
        skewness, kurtosis = second.shape.skewness, second.shape.kurtosis
        p = normality_p(skewness, kurtosis, second.shape.count)
        where = "along each leading principal direction"
        variables |= {
            "principal_skewness": variable("direction", skewness, f"skewness {where}", against=False),
            "principal_kurtosis": variable("direction", kurtosis, f"excess kurtosis {where}", against=False),
            "principal_p": variable("direction", p, f"p {where} under a Gaussian", against=False),
        }
    if second.bulk:
        variables |= _of_bulk([second.bulk[place] for place in sorted(second.bulk)], count, keep, covariance, heads)
    return variables


def _of_covariance(vectors: RunningMoments, keep: int, covariance: bool) -> dict[str, Variable]:
    matrix = vectors.covariance
    values = spectrum(matrix)
    width = values.shape[-1]
    text = "what so few vectors add to the entropy of a full-rank Gaussian: subtract it"
    kept = values[..., : min(keep, width)]
    diagonal = np.diagonal(matrix, axis1=-2, axis2=-1)
    variables: dict[str, Variable] = _of_spectrum(values) | {
        "entropy_bias": variable((), entropy_bias(vectors.count, width), text, "nat", against=False),
        "spectrum": variable("component", kept, "leading eigenvalues of the covariance", _SQUARE, against=False),
        "variance": variable("feature", diagonal, "variance of each coordinate", _SQUARE),
    }
    if covariance and width <= WHOLE:
        variables["covariance"] = variable(("feature", "feature_other"), matrix, "covariance", _SQUARE)
    elif covariance:
        variables["directions"] = _directions(leading(matrix, keep))
    return variables


def _of_spectrum(values: Floats, prefix: str = "") -> dict[str, Variable]:
    """What the eigenvalues of a whole covariance tell."""
    of = " of the bulk" if prefix else ""
    within = f"Gaussian entropy within the support of that rank{of}"
    made: dict[str, Variable] = {
        "trace": variable((), values.sum(axis=-1), f"trace of the covariance{of}", _SQUARE),
        "effective_rank": variable(
            (), effective_rank(values), f"effective rank exp(H(lambda/trace)){of}", "dimensions"
        ),
        "anisotropy": variable((), anisotropy(values), f"share of the leading eigenvalue{of}"),
        "rank": variable((), rank(values), f"numerical rank of the covariance{of}", "dimensions", against=False),
        "entropy": variable((), support_entropy(values), within, "nat"),
    }
    return {f"{prefix}{name}": one for name, one in made.items()}


def _of_sketch(vectors: RunningSketch, keep: int, prefix: str = "") -> dict[str, Variable]:
    found = vectors.covariance(keep)
    trace = vectors.variance.sum()
    share = found.eigenvalues[0] / trace if trace > 0 else 0.0
    of = " of the bulk" if prefix else ""
    leading_ones = f"leading eigenvalues of the covariance{of}, from below"
    error = f"no eigenvalue{of} is more than this above what is given"
    rest = f"variance of each coordinate{of} that the directions do not hold"
    made: dict[str, Variable] = {
        "trace": variable((), trace, f"trace of the covariance{of}", _SQUARE),
        "anisotropy": variable((), share, f"share of the leading eigenvalue{of}, from below"),
        "spectrum": variable("component", found.eigenvalues, leading_ones, _SQUARE, against=False),
        "sketch_error": variable((), found.error, error, _SQUARE, against=False),
        "variance": variable("feature", vectors.variance, f"variance of each coordinate{of}", _SQUARE),
        "directions": _directions(found.directions),
        "rest": variable("feature", found.rest, rest, _SQUARE),
    }
    return {f"{prefix}{name}": one for name, one in made.items()}


def _directions(rows: Floats) -> Variable:
    return variable(("component", "feature"), rows, "leading eigenvectors of the covariance; their signs mean nothing")


def _of_lengths(first: FirstPass) -> dict[str, Variable]:
    lengths, others = first.lengths, first.lengths_left_out
    many, share = lengths.extremes()
    theirs = others.mean if others.count else np.full_like(lengths.mean, np.nan)
    text = "mean length of the vectors left out (NaN: there were none)"
    return {
        "length_mean": variable((), lengths.mean, "mean length of the vectors", "activation"),
        "length_sd": variable((), lengths.sd, "spread of the length", "activation"),
        "extremes": variable((), many, "vectors longer than 8 times the median length", "tokens", against=False),
        "extreme_share": variable((), share, "share of the energy that these vectors hold", against=False),
        "owned": variable((), share > OWNED, "a few extreme vectors own the covariance"),
        "apart_count": variable((), np.int64(others.count), "vectors left out", "tokens", against=False),
        "apart_length_mean": variable((), theirs, text, "activation", against=False),
    }


def _of_shape(shape: RunningShape) -> dict[str, Variable]:
    skewness, kurtosis, count = shape.skewness, shape.kurtosis, shape.count
    p = normality_p(skewness, kurtosis, count)
    beyond = np.where(np.isnan(p).any(axis=-1), np.nan, np.mean(p < 0.05, axis=-1))
    mean, sd = kurtosis_law(count)
    where = "along each of 64 fixed random directions"
    text = "share of random directions with p below 0.05; of a Gaussian 0.05 (NaN: under 20 vectors)"
    return {
        "skewness": variable("projection", skewness, f"skewness {where}", against=False),
        "kurtosis": variable("projection", kurtosis, f"excess kurtosis {where}", against=False),
        "normality_p": variable("projection", p, f"p {where} under a Gaussian", against=False),
        "kurtosis_mean": variable((), kurtosis.mean(axis=-1), "mean excess kurtosis, random directions", order=4),
        "not_normal": variable((), beyond, text),
        "skewness_null_sd": variable((), skewness_sd(count), "sd of the skewness of a Gaussian", against=False),
        "kurtosis_null_mean": variable((), mean, "mean excess kurtosis of a Gaussian", against=False),
        "kurtosis_null_sd": variable((), sd, "sd of the excess kurtosis of a Gaussian", against=False),
    }


def _of_bulk(bulk: Sequence[Vectors], count: int, keep: int, covariance: bool, heads: bool) -> dict[str, Variable]:
    def each(values: list[Any]) -> Any:
        return np.stack(values) if heads else values[0]

    means = each([state.mean for state in bulk])
    left_out = each([1 - state.count / count for state in bulk])
    variables: dict[str, Variable] = {
        "outlier_share": variable((), left_out, "share of the vectors that are not of the bulk"),
        "robust_mean": variable("feature", means, "mean vector of the bulk", "activation"),
    }
    if isinstance(bulk[0], RunningSketch):
        return variables | _of_sketch(bulk[0], keep, "robust_")
    matrices = each([state.covariance for state in bulk])
    values = spectrum(matrices)
    text = "leading eigenvalues of the covariance of the bulk"
    variables |= _of_spectrum(values, "robust_")
    variables["robust_spectrum"] = variable("component", values[..., :keep], text, _SQUARE, against=False)
    if covariance and values.shape[-1] <= WHOLE:
        text = "covariance of the bulk"
        variables["robust_covariance"] = variable(("feature", "feature_other"), matrices, text, _SQUARE)
    return variables


def _stacked(parts: Mapping[int | None, dict[str, Variable]], head: str) -> xr.Dataset:
    """The dataset of all layers, which are taken from ``parts``; of a site of the whole model (layer None), without a
    layer dimension.

    An axis before those that a variable names is that of the heads; all axes but heads and layers are numbered.
    """
    layers = sorted(parts, key=lambda layer: -1 if layer is None else layer)
    variables = {}
    for name, (dims, values, attrs) in list(parts[layers[0]].items()):
        inner = (head, *dims) if np.ndim(values) > len(dims) else dims
        if layers == [None]:
            variables[name] = (inner, values, attrs)
        else:
            first = np.asarray(values)
            joined = np.empty((len(layers), *first.shape), first.dtype)
            for place, layer in enumerate(layers):  # each goes as it is put in: covariances are most of the memory
                joined[place] = parts[layer].pop(name)[1]
            variables[name] = (("layer", *inner), joined, attrs)
    dataset = xr.Dataset(variables)
    axes = {str(name): np.arange(size) for name, size in dataset.sizes.items() if name not in (head, "layer")}
    return dataset.assign_coords(axes if layers == [None] else {**axes, "layer": np.array(layers)})


def estimate(parameters: MomentsParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Memory and disk: a float64 covariance for each layer and head, twice while shards merge.

    d = 4096 and 32 layers need 8.6 GB for resid_pre; a sketch of width 256 needs a sixteenth of that.
    """
    layers, heads, width = site(parameters.site).vectors(info)
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
    state = (held + second + sample) // 2
    return Estimate(held + second + sample, 8 * layers * heads * kept * fits, seconds, state, result=seconds)
