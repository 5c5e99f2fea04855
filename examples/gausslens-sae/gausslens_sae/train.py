"""sae.train: an autoencoder for each layer in view, trained on the vectors of a site as they come by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens import Batch, Context, Estimate, InputError, ModelInfo, Request, Tokens, variable
from gausslens.maths.moments import arrays_of, parted

from .training import Recipe, Training
from .vectors import counted, dataset, heads_of, vectors, width

if TYPE_CHECKING:
    from collections.abc import Mapping

    import xarray as xr

    from .parameters import TrainParameters

TIMES_WIDER = 4  # features for each dimension where their number is not given
SPEED = 2e10  # multiplications and additions in a second, of one core
COPIES = 5  # of the weights: themselves, their gradients, Adam's two, and what is handed out


class Train:
    """A training for each layer; it sees the shards in order, and is never merged."""

    def __init__(self, parameters: TrainParameters, context: Context) -> None:
        self.parameters, self.context = parameters, context
        self.trainings: dict[int, Training] = {}

    def request(self) -> Request:
        return Request(sites=(self.parameters.site,), passes=self.parameters.passes, ordered=True)

    def update(self, batch: Batch) -> None:
        assert batch.layer is not None  # all sites that it knows are of a layer
        x = vectors(batch, self.parameters.site, counted(batch.text, self.parameters.after))
        if batch.layer not in self.trainings:
            self.trainings[batch.layer] = self._fresh(batch.layer, x.shape[1])
        self.trainings[batch.layer].feed(x)

    def _fresh(self, layer: int, wide: int) -> Training:
        return Training(recipe(self.parameters, wide), self.context.generator(f"layer {layer}"))

    def state(self) -> Mapping[str, np.ndarray]:
        return arrays_of({layer: training.state() for layer, training in self.trainings.items()})

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        wide = width(self.parameters.site, self.context.model)
        for layer, arrays in parted(state).items():
            self.trainings[int(layer)] = self._fresh(int(layer), wide).restore(arrays)

    def result(self) -> xr.Dataset:
        layers = sorted(self.trainings)
        found = [self.trainings[layer] for layer in layers]
        for training in found:
            training.finish()
        if not found or any(training.now is None for training in found):
            raise InputError(f"no prompt has text at position {self.parameters.after} or later: give longer prompts")
        return dataset(self._weights(found) | self._story(found), layers)

    def _weights(self, found: list[Training]) -> dict[str, Any]:
        """The artefacts that other steps read."""
        made = [training.trained() for training in found]
        balls = [training.ball for training in found if training.ball is not None]
        p = self.parameters
        facts: dict[str, Any] = {"site": p.site, "k": made[0].k, "after": p.after, "kind": p.decoder}
        if heads := heads_of(p.site, self.context.model):
            facts["heads"] = heads

        def stacked(dims: tuple[str, ...], arrays: list[Any], words: str, **more: Any) -> Any:
            values = np.stack([np.asarray(array, dtype=np.float32) for array in arrays])
            return variable(("layer", *dims), values, words, against=False, **more)

        rows = "decoder, of which each row has length 1"
        return {
            "encoder": stacked(("d_in", "feature"), [sae.encoder.cpu() for sae in made], "encoder"),
            "encoder_bias": stacked(("feature",), [sae.encoder_bias.cpu() for sae in made], "bias of the encoder"),
            "decoder": stacked(("feature", "d_in"), [sae.decoder.cpu() for sae in made], rows, **facts),
            "decoder_bias": stacked(("d_in",), [sae.decoder_bias.cpu() for sae in made], "bias of the decoder"),
            "mean": stacked(("d_in",), [training.spread.mean for training in found], "mean of the vectors seen"),
            "centre": stacked(("d_in",), [ball.centre.cpu() for ball in balls], "geometric median of the first buffer"),
            "radius": stacked(
                (), [ball.radius for ball in balls], "distance from the centre up to which vectors count"
            ),
        }

    def _story(self, found: list[Training]) -> dict[str, Any]:
        """How the training went."""
        curves = np.stack([training.curve() for training in found])
        seen = "variance explained of the stream as it was seen, in the last tenth of the steps"
        return {
            "variance_explained": variable("layer", [training.variance_explained() for training in found], seen),
            "dead": variable("layer", [training.dead() for training in found], "share of features silent at the end"),
            "left_out": variable("layer", [training.left_out() for training in found], "share of vectors too far away"),
            "curve": variable(("layer", "step"), curves, "variance explained of each batch", against=False),
        }


def recipe(parameters: TrainParameters, wide: int) -> Recipe:
    """How an autoencoder of vectors so wide is trained."""
    features = parameters.features or TIMES_WIDER * wide
    return Recipe(
        features=features,
        k=min(parameters.k, features),
        learning_rate=parameters.learning_rate,
        batch=parameters.batch,
        epochs=parameters.epochs,
        buffer=parameters.buffer,
        dead_after=parameters.dead_after,
        auxiliary=parameters.auxiliary,
        auxiliary_weight=parameters.auxiliary_weight,
        outliers=parameters.outliers,
        frozen=parameters.decoder == "frozen",
    )


def estimate(parameters: TrainParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """The buffer and the weights in memory, the weights on disk, and the steps in seconds, six products a vector."""
    seen = sum(int(text[parameters.after :].sum()) for text in tokens.text) if tokens is not None else 0
    wide = width(parameters.site, info)
    weights = 2 * 4 * wide * recipe(parameters, wide).features
    held = 2 * 4 * wide * min(parameters.buffer, seen)
    steps = seen * parameters.passes * parameters.epochs
    layers = len(info.layers)
    seconds = layers * steps * 6 * weights / 8 / SPEED
    return Estimate(memory=layers * (COPIES * weights + held), disk=layers * weights, seconds=seconds)
