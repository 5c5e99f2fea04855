"""Training an autoencoder on vectors as they come: a buffer that is shuffled, Adam, and what is kept of the way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from gausslens.maths.moments import arrays_of, parted, put_arrays

from .autoencoder import (
    Autoencoder,
    Ball,
    Tensor,
    across_rows,
    ball_of,
    beginning,
    loss,
    mean_distance,
    unit_rows,
)
from .statistics import Floats, Spread

BETAS, EPSILON = (0.9, 0.999), 6.25e-10  # of Adam, as Gao et al. have them
TENSORS = ("encoder", "encoder_bias", "decoder", "decoder_bias")
LAST = 0.1  # the share of the steps, at the end, that what was seen of the stream is averaged over


@dataclass(frozen=True)
class Recipe:
    """How an autoencoder is trained; fields as in the parameters of sae.train."""

    features: int
    k: int
    learning_rate: float
    batch: int
    epochs: int
    buffer: int
    dead_after: int
    auxiliary: int
    auxiliary_weight: float
    outliers: float | None
    frozen: bool


class Training:
    """One autoencoder on its way. ``feed`` it vectors, ``finish``, and read ``trained()``."""

    def __init__(self, recipe: Recipe, generator: np.random.Generator) -> None:
        self.recipe, self.generator = recipe, generator
        self.waiting: list[Tensor] = []
        self.count = 0
        self.scale = 1.0
        self.now: Autoencoder | None = None
        self.quiet = torch.zeros(0, dtype=torch.int64)  # for each feature: samples since it last fired
        self.errors: list[float] = []  # of each step: mean |x - x^|^2, before it, in the units of the data
        self.ball: Ball | None = None
        self.spread = Spread()  # of the vectors that count
        self.seen = 0

    def feed(self, x: Tensor) -> None:
        """Take in vectors [sample, d_in], and train on the buffer whenever it is full."""
        if self.quiet.device != x.device:
            self._to(x.device)
        self.waiting.append(x.detach().float())
        self.count += len(x)
        while self.count >= self.recipe.buffer:
            whole = torch.cat(self.waiting)
            self.waiting, self.count = [whole[self.recipe.buffer :]], len(whole) - self.recipe.buffer
            self._learn(whole[: self.recipe.buffer])

    def state(self) -> dict[str, np.ndarray]:
        """All that it goes on from, as plain arrays; where its generator is, as text."""
        numbers = {"count": self.count, "scale": self.scale, "seen": self.seen, "errors": np.array(self.errors)}
        found = arrays_of(numbers | {"spread": self.spread})
        found["generator"] = np.array(json.dumps(self.generator.bit_generator.state))
        tensors = {"quiet": self.quiet} | {f"waiting/{i}": x for i, x in enumerate(self.waiting)}
        if self.ball is not None:
            tensors["centre"], found["radius"] = self.ball.centre, np.array(self.ball.radius)
        if self.now is not None:
            tensors |= {f"now/{name}": getattr(self.now, name) for name in TENSORS}
            for i, moved in self.adam.state_dict()["state"].items():
                tensors |= {f"adam/{i}/{name}": tensor for name, tensor in moved.items()}
        return found | {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> Training:
        """Take up what ``state`` gave; it is on the CPU until vectors come from elsewhere."""
        inner = parted(arrays)
        self.count, self.seen, self.scale = int(arrays["count"]), int(arrays["seen"]), float(arrays["scale"])
        self.errors = arrays["errors"].tolist()
        put_arrays(self.spread, inner["spread"])
        self.generator.bit_generator.state = json.loads(str(arrays["generator"]))
        waiting = inner.get("waiting", {})
        self.waiting = [torch.from_numpy(waiting[str(i)]) for i in range(len(waiting))]
        self.quiet = torch.from_numpy(arrays["quiet"])
        if "centre" in arrays:
            self.ball = Ball(torch.from_numpy(arrays["centre"]), float(arrays["radius"]))
        if "now" in inner:
            now = {name: torch.from_numpy(array) for name, array in inner["now"].items()}
            self._moved_by_adam(Autoencoder(**now, k=self.recipe.k))
            held = {int(i): own for i, own in parted(inner["adam"]).items()}
            states = {i: {name: torch.from_numpy(array) for name, array in own.items()} for i, own in held.items()}
            self.adam.load_state_dict(self.adam.state_dict() | {"state": states})
        return self

    def _to(self, device: torch.device) -> None:
        """Take what was restored to where the vectors are."""
        self.waiting, self.quiet = [x.to(device) for x in self.waiting], self.quiet.to(device)
        if self.ball is not None:
            self.ball = replace(self.ball, centre=self.ball.centre.to(device))
        if self.now is not None:
            for name in TENSORS:
                tensor = getattr(self.now, name)
                tensor.data = tensor.data.to(device)
            self.adam.load_state_dict(self.adam.state_dict())  # which takes its own after them

    def finish(self) -> None:
        """Train on what is left in the buffer."""
        if self.count:
            self._learn(torch.cat(self.waiting))
        self.waiting, self.count = [], 0

    def trained(self) -> Autoencoder:
        """The autoencoder, in the units of the data."""
        assert self.now is not None, "nothing was fed"
        with torch.no_grad():
            made = self.now.in_units_of(self.scale)
        return replace(made, encoder=made.encoder.detach(), decoder=made.decoder.detach())

    def curve(self) -> Floats:
        """Variance explained [step] of each batch, before it was learnt from: of the variance of all that was seen."""
        return 1 - np.array(self.errors) / self.spread.variance()

    def variance_explained(self) -> float:
        """The mean of the last tenth of the curve: of the stream as it was seen."""
        return float(self.curve()[-max(1, round(LAST * len(self.errors))) :].mean())

    def left_out(self) -> float:
        """The share of vectors that were too far away to count."""
        return 1 - self.spread.n / self.seen

    def dead(self) -> float:
        """The share of features that have not fired for ``dead_after`` samples."""
        return float((self.quiet >= self.recipe.dead_after).double().mean())

    def _learn(self, x: Tensor) -> None:
        with torch.inference_mode(False), torch.enable_grad():
            x = x.clone()  # what an engine computed in inference mode cannot be differentiated
            if self.ball is None:
                self.ball = ball_of(x, self.recipe.outliers)
            self.seen += len(x)
            x = x[self.ball.holds(x)]
            self.spread.add(x.double().cpu().numpy())
            if self.now is None:
                self._begin(x, self.ball.centre)
            for _ in range(self.recipe.epochs):
                order = torch.from_numpy(self.generator.permutation(len(x))).to(x.device)
                for chosen in torch.split(order, self.recipe.batch):
                    self._step(x[chosen] / self.scale)

    def _begin(self, x: Tensor, centre: Tensor) -> None:
        """Unit and directions, from the first vectors; and Adam."""
        self.scale = mean_distance(x, centre) or 1.0
        drawn = self.generator.standard_normal((self.recipe.features, x.shape[1])).astype(np.float32)
        now = beginning(torch.from_numpy(drawn).to(x.device), centre / self.scale, self.recipe.k)
        self.quiet = torch.zeros(self.recipe.features, dtype=torch.int64, device=x.device)
        self._moved_by_adam(now)

    def _moved_by_adam(self, now: Autoencoder) -> None:
        moved = [now.encoder, now.encoder_bias, now.decoder_bias] + ([] if self.recipe.frozen else [now.decoder])
        self.adam = torch.optim.Adam(
            [tensor.requires_grad_() for tensor in moved], lr=self.recipe.learning_rate, betas=BETAS, eps=EPSILON
        )
        self.now = now

    def _step(self, x: Tensor) -> None:
        now, recipe = self.now, self.recipe
        assert now is not None
        silent = self.quiet >= recipe.dead_after
        total, residual, fired = loss(now, x, silent, recipe.auxiliary, recipe.auxiliary_weight)
        self.adam.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            if now.decoder.grad is not None:
                now.decoder.grad.copy_(across_rows(now.decoder.grad, now.decoder))
            self.adam.step()
            if not recipe.frozen:
                now.decoder.copy_(unit_rows(now.decoder))
        self.quiet = torch.where(fired, 0, self.quiet + len(x))
        self.errors.append(float(residual.square().sum(1).mean()) * self.scale**2)
