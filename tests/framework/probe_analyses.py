"""The analyses, edits and prompts of the probe plugin; each small enough to check by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from probes import Epochs, Failing, Lines, Matrix, Newest, Of, Power, Scale, Site, Size, Trained

import gausslens
from gausslens import HEAD_AXIS, KV_HEAD_AXIS, Batch, Context, LayerWeights, Request, StepRef, Tokens


def _axis(site: str) -> tuple[int, str] | None:
    if site in HEAD_AXIS:
        return HEAD_AXIS[site], "head"
    return (KV_HEAD_AXIS[site], "kv_head") if site in KV_HEAD_AXIS else None


def _dataset(by_layer: dict[int, np.ndarray], site: str, long_name: str) -> xr.Dataset:
    axis = _axis(site)
    dims = ("layer", axis[1]) if axis else ("layer",)
    layers = sorted(by_layer)
    values = np.stack([by_layer[layer] for layer in layers])
    data = {"value": (dims, values, {"long_name": long_name, "units": "1"})}
    return xr.Dataset(data, coords={"layer": layers})


def _kept_last(batch: Batch, site: str) -> np.ndarray:
    """The site at real tokens in float64: [token, ...], or [token, ..., head] where it has heads."""
    array = batch[site].double()
    axis = _axis(site)
    if axis:
        array = array.movedim(axis[0], -1)
    return array[batch.text].numpy()


class MeanSquare:
    """Stream, one pass: the mean square of a site over real tokens, for each layer (and head)."""

    def __init__(self, parameters: Power, context: Context) -> None:
        self.parameters = parameters
        self.total: dict[int, np.ndarray] = {}
        self.count: dict[int, int] = {}

    def request(self) -> Request:
        return Request((self.parameters.site,))

    def update(self, batch: Batch) -> None:
        kept = _kept_last(batch, self.parameters.site)
        heads = _axis(self.parameters.site) is not None
        axes = tuple(range(kept.ndim - 1)) if heads else None
        self.total[batch.layer] = self.total.get(batch.layer, 0) + np.square(kept).sum(axis=axes)
        self.count[batch.layer] = self.count.get(batch.layer, 0) + kept.size // (kept.shape[-1] if heads else 1)

    def merge(self, other: MeanSquare) -> None:
        for layer, total in other.total.items():
            self.total[layer] = self.total.get(layer, 0) + total
            self.count[layer] = self.count.get(layer, 0) + other.count[layer]

    def result(self) -> xr.Dataset:
        values = {n: np.asarray(self.parameters.scale * total / self.count[n]) for n, total in self.total.items()}
        return _dataset(values, self.parameters.site, "mean square")


class Ordered:
    """Stream in order: which prompts came when, over passes, and the norms of the twin's W_Q."""

    def __init__(self, parameters: Epochs, context: Context) -> None:
        self.passes, self.context = parameters.epochs, context
        self.seen: list[int] = []
        self.instance = id(self)

    def request(self) -> Request:
        return Request(("resid_pre",), layers=(0,), passes=self.passes, ordered=True)

    def update(self, batch: Batch) -> None:
        assert id(self) == self.instance
        self.seen += [int(p) for p in batch.prompts]

    def result(self) -> xr.Dataset:
        norm = float(self.context.weights(0).W_Q.double().norm())
        attrs = {"units": "1", "long_name": "of an ordered pass"}
        return xr.Dataset({"seen": ("feature", self.seen, attrs), "norm": ((), norm, attrs)})


class Placed:
    """Stream: how many letters the names of its variant and draw have."""

    def __init__(self, parameters: gausslens.NoParameters, context: Context) -> None:
        self.context = context

    def request(self) -> Request:
        return Request(("resid_pre",))

    def update(self, batch: Batch) -> None:
        pass

    def merge(self, other: Placed) -> None:
        pass

    def result(self) -> xr.Dataset:
        told = f"{self.context.variant} {self.context.draw}"
        return xr.Dataset({"letters": ((), float(len(told)), {"units": "1", "long_name": told})})


class Train:
    """Stream in order: a direction [layer, d_model] found by steps; with as many numbers beside it as are asked for."""

    def __init__(self, parameters: Size, context: Context) -> None:
        self.parameters, self.context = parameters, context
        self.direction: dict[int, torch.Tensor] = {}

    def request(self) -> Request:
        return Request(("resid_pre",), passes=2, ordered=True)

    def update(self, batch: Batch) -> None:
        if self.parameters.fails:
            raise ZeroDivisionError("on purpose")
        mean = batch["resid_pre"].double()[batch.text].mean(0)
        before = self.direction.get(batch.layer, torch.zeros_like(mean))
        self.direction[batch.layer] = before + 0.25 * (mean - before)

    def result(self) -> xr.Dataset:
        found = torch.stack([self.direction[n] for n in self.context.model.layers]).numpy()
        large = np.arange(self.parameters.megabytes << 18, dtype=np.float32)
        attrs = {"units": "1", "long_name": "what was trained"}
        return xr.Dataset({"direction": (("layer", "d_model"), found, attrs), "large": ("feature", large, attrs)})


class _Reads:
    """What reads what was trained, on its own twin or the variant that is named."""

    def __init__(self, parameters: Trained, context: Context) -> None:
        self.parameters, self.context = parameters, context

    def inputs(self, steps: Sequence[StepRef]) -> list[StepRef]:
        mine = self.context.same_twin(steps)
        other = [s for s in steps if s.variant == self.parameters.variant]
        return [s for s in (mine if self.parameters.variant is None else other) if s.label == self.parameters.of]

    def direction(self, layer: int) -> torch.Tensor:
        [found] = self.context.inputs.values()
        assert not found["large"].size or np.shares_memory(found["large"].values, found["large"].values)  # read once
        place = self.context.model.layers.index(layer)
        return torch.as_tensor(found["direction"].values[place])

    def told(self, values: list[float]) -> xr.Dataset:
        return xr.Dataset({"value": ("layer", values, {"units": "1", "long_name": "along what was trained"})})


class Along(_Reads):
    """Forward: the stream of each prompt along the direction that was trained."""

    def run(self, runner: Any, prompts: Tokens) -> xr.Dataset:
        layers = self.context.model.layers
        total = dict.fromkeys(layers, 0.0)
        for ids in prompts.ids:
            seen = runner.forward(ids[None], sites=("resid_pre",))
            for n in layers:
                total[n] += float((seen[n, "resid_pre"].double() @ self.direction(n)).sum())
        return self.told([total[n] for n in layers])


class Early(Along):
    """Forward: reads its results where there are none yet."""

    def __init__(self, parameters: Trained, context: Context) -> None:
        super().__init__(parameters, context)
        self.found = dict(context.inputs)


class Beside(_Reads):
    """Weights: how much of W_Q reads the direction that was trained."""

    def layer(self, weights: LayerWeights, layer: int) -> xr.Dataset:
        along = torch.einsum("d,hde->he", self.direction(layer), weights.W_Q.double())
        return xr.Dataset({"value": ((), float(along.norm()), {"units": "1", "long_name": "along W_Q"})})


class Centred(_Reads):
    """Stream: the sum of the stream less the direction that was trained."""

    def __init__(self, parameters: Trained, context: Context) -> None:
        super().__init__(parameters, context)
        self.total: dict[int, float] = {}

    def request(self) -> Request:
        return Request(("resid_pre",))

    def update(self, batch: Batch) -> None:
        rest = batch["resid_pre"].double()[batch.text] - self.direction(batch.layer)
        self.total[batch.layer] = self.total.get(batch.layer, 0.0) + float(rest.sum())

    def merge(self, other: Centred) -> None:
        for layer, total in other.total.items():
            self.total[layer] = self.total.get(layer, 0.0) + total

    def result(self) -> xr.Dataset:
        return self.told([self.total[n] for n in self.context.model.layers])


def _newest(parameters: Newest) -> float:
    return float(sorted(Path(parameters.directory).glob("*.txt"))[-1].read_text())


def newest_digest(parameters: Newest) -> str:
    try:
        return str(_newest(parameters))
    except IndexError as error:
        raise gausslens.InputError(f"{parameters.directory} holds no file") from error


def no_digest(parameters: Newest) -> Any:
    return None if parameters.directory == "." else 1 / 0


class Filed:
    """Weights: the number that the newest file of a directory holds, which its parameters do not name."""

    def __init__(self, parameters: Newest, context: Context) -> None:
        self.value = _newest(parameters)

    def layer(self, weights: LayerWeights, layer: int) -> xr.Dataset:
        return xr.Dataset({"value": ((), self.value, {"units": "1", "long_name": "of a file"})})


def times_newest(weights: LayerWeights, parameters: Newest, generators: Any) -> dict[str, torch.Tensor]:
    return {"W_Q": weights.W_Q * _newest(parameters)}


def one_line(parameters: Newest, context: Any) -> list[gausslens.Prompt]:
    return [gausslens.Prompt((gausslens.Part("the same line"),))]


def taken_from(parameters: Trained, steps: Sequence[StepRef]) -> list[StepRef]:
    wanted = [s for s in steps if s.label == parameters.of]
    return [s for s in wanted if parameters.variant in (None, s.variant)][:1]


def taken_out(weights: LayerWeights, parameters: Trained, generators: Any) -> dict[str, torch.Tensor]:
    [found] = weights.inputs.values()
    direction = torch.as_tensor(found["direction"].sel(layer=weights.layer).values)
    direction = (direction / direction.norm()).to(weights.W_Q.dtype)
    return {"W_Q": weights.W_Q - torch.einsum("d,k,hke->hde", direction, direction, weights.W_Q)}


class Spread:
    """Stream, two passes: the variance of a site about the mean that the first pass found."""

    def __init__(self, parameters: Site, context: Context) -> None:
        self.site = parameters.site
        self.mean: dict[int, float] = {}
        self.total: dict[int, float] = {}
        self.count: dict[int, int] = {}

    def request(self) -> Request:
        return Request((self.site,), passes=2)

    def update(self, batch: Batch) -> None:
        kept = batch[self.site].double()[batch.text].numpy()
        centred = np.square(kept - self.mean[batch.layer]) if self.mean else kept
        self.total[batch.layer] = self.total.get(batch.layer, 0.0) + float(centred.sum())
        self.count[batch.layer] = self.count.get(batch.layer, 0) + kept.size

    def merge(self, other: Spread) -> None:
        for layer, total in other.total.items():
            self.total[layer] = self.total.get(layer, 0.0) + total
            self.count[layer] = self.count.get(layer, 0) + other.count[layer]

    def end_pass(self, index: int) -> None:
        assert index == 0
        self.mean = {layer: total / self.count[layer] for layer, total in self.total.items()}
        self.total, self.count = {}, {}

    def result(self) -> xr.Dataset:
        layers = sorted(self.total)
        attrs = {"units": "1"}
        return xr.Dataset(
            {
                "mean": ("layer", [self.mean[n] for n in layers], attrs | {"long_name": "mean"}),
                "variance": (
                    "layer",
                    [self.total[n] / self.count[n] for n in layers],
                    attrs | {"long_name": "variance"},
                ),
            },
            coords={"layer": layers},
        )


class RowSums:
    """Stream in blocks of rows: how many query rows of real tokens there are, and the sum of their patterns."""

    def __init__(self, parameters: gausslens.NoParameters, context: Context) -> None:
        self.sums: dict[int, np.ndarray] = {}

    def request(self) -> Request:
        return Request(("pattern",))

    def update(self, batch: Batch) -> None:
        pattern = batch["pattern"].double()
        text = batch.text[:, batch.rows : batch.rows + pattern.shape[2]]
        rows = pattern.sum(-1).movedim(1, -1)[text].sum(0).numpy()
        self.sums[batch.layer] = self.sums.get(batch.layer, 0.0) + rows

    def merge(self, other: RowSums) -> None:
        for layer, sums in other.sums.items():
            self.sums[layer] = self.sums.get(layer, 0.0) + sums

    def result(self) -> xr.Dataset:
        return _dataset(self.sums, "pattern", "sum of patterns over real query rows")


class AllLayers:
    """Stream of all layers at once: how much each layer adds to the residual stream, mean square."""

    def __init__(self, parameters: gausslens.NoParameters, context: Context) -> None:
        self.total: dict[int, float] = {}
        self.count = 0

    def request(self) -> Request:
        return Request(("resid_pre",))

    def update(self, batches: tuple[Batch, ...]) -> None:
        for early, late in pairwise(batches):
            step = (late["resid_pre"].double() - early["resid_pre"].double())[early.text]
            self.total[early.layer] = self.total.get(early.layer, 0.0) + float(step.square().sum())
        self.count += int(batches[0].text.sum()) * batches[0]["resid_pre"].shape[-1]

    def merge(self, other: AllLayers) -> None:
        self.count += other.count
        for layer, total in other.total.items():
            self.total[layer] = self.total.get(layer, 0.0) + total

    def result(self) -> xr.Dataset:
        values = {layer: np.asarray(total / self.count) for layer, total in self.total.items()}
        return _dataset(values, "resid_pre", "mean square of what a layer adds")


class Copy:
    """Stream into the store: the site as it is, NaN where there is no token."""

    def __init__(self, parameters: Site, context: Context) -> None:
        self.site, self.context = parameters.site, context
        info, tokens = context.model, context.tokens
        self.place = {layer: number for number, layer in enumerate(info.layers)}
        self.width = max(tokens.lengths)
        shape = (len(info.layers), len(tokens), self.width, info.d_model)
        attrs = {"long_name": self.site, "units": "1"}
        context.bulk.create("site", ("layer", "prompt", "position", "d_model"), shape, "float32", attrs)

    def request(self) -> Request:
        return Request((self.site,))

    def update(self, batch: Batch) -> None:
        values = batch.numpy(self.site)
        for row, prompt in enumerate(batch.prompts):
            n = int(batch.mask[row].sum())
            self.context.bulk.write("site", (self.place[batch.layer], int(prompt), slice(0, n)), values[row, :n])

    def merge(self, other: Copy) -> None:
        pass

    def result(self) -> xr.Dataset:
        lengths = ("prompt", list(self.context.tokens.lengths), {"long_name": "tokens", "units": "1"})
        return xr.Dataset({"tokens": lengths})


class Norm:
    """Weights: the squared Frobenius norm of each head of a matrix."""

    def __init__(self, parameters: Matrix, context: Context) -> None:
        self.matrix = parameters.matrix

    def layer(self, weights: LayerWeights, layer: int) -> xr.Dataset:
        squares = weights[self.matrix].double().square().sum((-1, -2)).numpy()
        dim = "kv_head" if self.matrix in ("W_K", "W_V") else "head"
        return xr.Dataset({"norm": (dim, squares, {"long_name": f"squared norm of {self.matrix}", "units": "1"})})


class NextToken:
    """Forward: the mean loss of the next token of each prompt, and of the model without the variant's edits."""

    def __init__(self, parameters: gausslens.NoParameters, context: Context) -> None:
        pass

    def run(self, runner: gausslens.Runner, prompts: Tokens) -> xr.Dataset:
        losses = {name: [_loss(runner, ids, name == "base") for ids in prompts.ids] for name in ("loss", "base")}
        attrs = {"units": "nat", "long_name": "mean loss of the next token"}
        return xr.Dataset({name: ("prompt", values, attrs) for name, values in losses.items()})


def _loss(runner: gausslens.Runner, ids: np.ndarray, base: bool) -> float:
    logits = runner.forward(ids[None], base=base)["logits"][0, :-1].double()
    return float(torch.nn.functional.cross_entropy(logits, torch.as_tensor(ids[1:])))


class Doubled:
    """Derived: twice a result of the same twin."""

    def __init__(self, parameters: Of, context: Context) -> None:
        self.of = parameters.of

    def inputs(self, steps: Any) -> list[StepRef]:
        return [step for step in steps if step.label == self.of]

    def compute(self, inputs: dict[StepRef, xr.Dataset]) -> xr.Dataset:
        [dataset] = inputs.values()
        return xr.Dataset({name: (2 * v).assign_attrs(v.attrs) for name, v in dataset.data_vars.items()})


class MeanOverAll:
    """Derived, once for the run: the mean of a result over all twins."""

    def __init__(self, parameters: Of, context: Context) -> None:
        self.of = parameters.of

    def inputs(self, steps: Any) -> list[StepRef]:
        return [step for step in steps if step.label == self.of]

    def compute(self, inputs: dict[StepRef, xr.Dataset]) -> xr.Dataset:
        ordered = [inputs[ref] for ref in sorted(inputs, key=repr)]
        mean = sum(d["value"] for d in ordered) / len(ordered)
        return xr.Dataset({"value": mean.assign_attrs(ordered[0]["value"].attrs)})


class Draws:
    """Stream that draws: one number of the step's own generator."""

    def __init__(self, parameters: gausslens.NoParameters, context: Context) -> None:
        self.drawn = float(context.generator("x").normal())

    def request(self) -> Request:
        return Request(("resid_pre",))

    def update(self, batch: Batch) -> None:
        pass

    def merge(self, other: Draws) -> None:
        pass

    def result(self) -> xr.Dataset:
        return xr.Dataset({"drawn": ((), self.drawn, {"long_name": "a standard normal draw", "units": "1"})})


class Fails(MeanSquare):
    """Stream that fails where it is told to."""

    def __init__(self, parameters: Failing, context: Context) -> None:
        super().__init__(Power(site="resid_pre"), context)
        self.failing = parameters
        self._fail("init")

    def _fail(self, at: str) -> None:
        if self.failing.at == at:
            raise RuntimeError(f"told to fail at {at}")

    def request(self) -> Request:
        self._fail("request")
        return super().request()

    def update(self, batch: Batch) -> None:
        if batch.layer == self.failing.layer:
            self._fail("update")
        super().update(batch)

    def merge(self, other: MeanSquare) -> None:
        self._fail("merge")
        super().merge(other)

    def result(self) -> xr.Dataset:
        self._fail("result")
        return super().result()


def scaled(weights: LayerWeights, parameters: Scale, generators: Any) -> dict[str, torch.Tensor]:
    return {"W_Q": weights.W_Q * parameters.alpha}


def redrawn(weights: LayerWeights, parameters: Any, generators: Any) -> dict[str, torch.Tensor]:
    return {name: weights.initial(name) for name in ("W_Q", "W_K", "W_V", "W_O")}


def lines(parameters: Lines, context: Any) -> list[gausslens.Prompt]:
    return [gausslens.Prompt((gausslens.Part(line),)) for line in parameters.lines]
