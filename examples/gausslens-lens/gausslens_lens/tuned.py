"""lens.tuned: an affine map for each layer, trained so that the stream there, read as the last one, predicts what the
model predicts; and lens.tuned-loss: how well it does so on other prompts.

lens_n(x) = unembedding(x + x A_n + b_n), A and b from 0, minimising the mean of KL(p || lens_n)
(Belrose et al., "Eliciting Latent Predictions from Transformers with the Tuned Lens", 2023; here with Adam).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr

from gausslens import Batch, Context, InputError, Request, Runner, StepRef, Tokens, variable
from gausslens.maths.moments import arrays_of, parted

from .logit import by_depth, streams_of
from .parameters import TunedLossParameters, TunedParameters
from .unembedding import Unembedding

# The units of both lenses on held-out prompts.
WORDS = {
    "tuned_kl": ("KL divergence of the tuned lens from the model's own distribution", "nat"),
    "logit_kl": ("the same of the logit lens", "nat"),
    "gained": ("KL divergence of the logit lens less that of the tuned lens", "nat"),
}


@dataclass
class Translator:
    """A and b of one layer, with the optimiser that moves them."""

    matrix: torch.Tensor
    offset: torch.Tensor
    optimiser: torch.optim.Adam

    @classmethod
    def fresh(cls, width: int, device: torch.device, rate: float) -> Translator:
        """The logit lens: nothing is added."""
        tensors = [torch.zeros(*shape, device=device, requires_grad=True) for shape in ((width, width), (width,))]
        return cls(tensors[0], tensors[1], torch.optim.Adam(tensors, lr=rate))

    def state(self) -> dict[str, np.ndarray]:
        """A, b and what Adam holds of each."""
        tensors = {"matrix": self.matrix, "offset": self.offset}
        for i, held in self.optimiser.state_dict()["state"].items():
            tensors |= {f"adam/{i}/{name}": tensor for name, tensor in held.items()}
        return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}

    @classmethod
    def restored(cls, arrays: Mapping[str, np.ndarray], rate: float) -> Translator:
        """What ``state`` gave, on the CPU."""
        held = {int(i): own for i, own in parted(parted(arrays).get("adam", {})).items()}
        states = {i: {name: torch.from_numpy(array) for name, array in own.items()} for i, own in held.items()}
        tensors = [torch.from_numpy(arrays[name]).requires_grad_() for name in ("matrix", "offset")]
        made = cls(tensors[0], tensors[1], torch.optim.Adam(tensors, lr=rate))
        made.optimiser.load_state_dict(made.optimiser.state_dict() | {"state": states})
        return made

    def on(self, device: torch.device) -> Translator:
        """The same where the stream is."""
        if self.matrix.device != device:
            for tensor in (self.matrix, self.offset):
                tensor.data = tensor.data.to(device)
            self.optimiser.load_state_dict(self.optimiser.state_dict())  # which takes its own after them
        return self

    def step(self, end: Unembedding, x: torch.Tensor, wanted: torch.Tensor, rate: float) -> float:
        """One step on streams [token, d_model] towards log probabilities [token, vocabulary]; the loss before it."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        with torch.enable_grad():
            lens = torch.log_softmax(end.logits(x + x @ self.matrix + self.offset), dim=-1)
            loss = (wanted.exp() * (wanted - lens)).sum(-1).mean()
            self.matrix.grad, self.offset.grad = torch.autograd.grad(loss, (self.matrix, self.offset))
        self.optimiser.step()
        return float(loss.detach())


class Tuned:
    """Translators of the layers in view, trained on the stream as it comes."""

    def __init__(self, parameters: TunedParameters, context: Context) -> None:
        self.parameters, self.context = parameters, context
        self.layers = context.model.layers
        self.translators: dict[int, Translator] = {}
        self.end: Unembedding | None = None
        self.losses: list[dict[int, list[float]]] = [{}]
        self.generator = context.generator("tokens")
        self.seen = 0

    def request(self) -> Request:
        """The stream before each layer, and what the model makes of it in the end."""
        return Request(("resid_pre", "logits"), passes=self.parameters.passes, ordered=True)

    def update(self, batches: Sequence[Batch]) -> None:
        """One step for each layer."""
        if self.end is None:
            self.end = Unembedding.of(self.context.model, self.context.weights(None), torch.float32)
        [last] = [batch for batch in batches if batch.layer is None]
        places = np.flatnonzero(last.text.flatten().cpu().numpy())
        rows = np.sort(self.generator.permutation(places)[: self.parameters.tokens])
        if not len(rows):
            return
        wanted = torch.log_softmax(last["logits"].flatten(0, 1)[rows].detach().float(), dim=-1)
        rate = self._rate(len(last.prompts))
        for batch in batches:
            if batch.layer is None:
                continue
            x = batch["resid_pre"].flatten(0, 1)[rows].detach().float().clone()
            if batch.layer not in self.translators:
                self.translators[batch.layer] = Translator.fresh(x.shape[1], x.device, self.parameters.rate)
            loss = self.translators[batch.layer].on(x.device).step(self.end, x, wanted, rate)
            self.losses[-1].setdefault(batch.layer, []).append(loss)

    def state(self) -> Mapping[str, np.ndarray]:
        """The translators, the losses of each pass, and where the generator and the rate are."""
        losses = [{layer: np.array(kl) for layer, kl in held.items()} for held in self.losses]
        parts = {"of": {n: each.state() for n, each in self.translators.items()}, "losses": dict(enumerate(losses))}
        text = json.dumps(self.generator.bit_generator.state)
        return arrays_of({**parts, "seen": self.seen, "passes": len(losses), "generator": np.array(text)})

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take up what ``state`` gave."""
        parts = parted(state)
        rate, losses = self.parameters.rate, parted(parts.get("losses", {}))
        self.translators = {int(n): Translator.restored(own, rate) for n, own in parted(parts.get("of", {})).items()}
        passes = [losses.get(str(i), {}) for i in range(int(state["passes"]))]
        self.losses = [{int(n): kl.tolist() for n, kl in held.items()} for held in passes]
        self.generator.bit_generator.state = json.loads(str(state["generator"]))
        self.seen = int(state["seen"])

    def end_pass(self, _: int) -> None:
        """The losses of the next pass are kept by themselves."""
        self.losses.append({})

    def result(self) -> xr.Dataset:
        """The translators, and the loss of each pass while it was trained."""
        if not self.translators:
            raise InputError("no prompt has real text to train on")
        losses = [held for held in self.losses if held]
        kl = [[float(np.mean(held[layer])) for layer in self.layers] for held in losses]
        held = [self.translators[layer] for layer in self.layers]
        matrices = torch.stack([each.matrix.detach() for each in held]).cpu().numpy()
        offsets = torch.stack([each.offset.detach() for each in held]).cpu().numpy()
        dims = ("layer", "d_model", "feature")
        return xr.Dataset(
            {
                "matrix": variable(dims, matrices, "A of the translators: x A is added to x", against=False),
                "offset": variable(("layer", "feature"), offsets, "b of the translators", against=False),
                "training_kl": variable(("pass", "layer"), kl, "KL while it was trained", "nat", against=False),
            },
            coords={"layer": list(self.layers)},
        )

    def _rate(self, prompts: int) -> float:
        """Falls to 0 along a straight line over all passes."""
        assert self.context.tokens is not None  # a stream has prompts
        share = self.seen / (len(self.context.tokens) * self.parameters.passes)
        self.seen += prompts
        return self.parameters.rate * (1 - share)


class TunedLoss:
    """Both lenses on these prompts."""

    def __init__(self, parameters: TunedLossParameters, context: Context) -> None:
        self.parameters, self.context = parameters, context

    def inputs(self, steps: Sequence[StepRef]) -> list[StepRef]:
        """The translators of this variant and draw."""
        found = [step for step in self.context.same_twin(steps) if step.label == self.parameters.of]
        if not found:
            raise InputError(f"of: there is no step {self.parameters.of!r} before it on this variant")
        return found

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """By depth, for the layers that were trained; behind the last layer there is nothing to translate."""
        [trained] = self.context.inputs.values()
        layers = [int(n) for n in trained["layer"].values if int(n) in runner.info.layers]
        whole = runner.whole
        end = Unembedding.of(whole.info, whole.weights(None))
        maps = [
            (torch.as_tensor(here["matrix"].values).double(), torch.as_tensor(here["offset"].values).double())
            for here in (trained.sel(layer=layer) for layer in layers)
        ]
        values = {name: np.full((len(prompts), len(layers) + 1), np.nan) for name in WORDS}
        for number in range(len(prompts)):
            kept = torch.as_tensor(prompts.text[number])
            if not bool(kept.any()):
                continue
            streams, logits = streams_of(whole, prompts.ids[number], prompts.beside([number]), layers)
            end.hold(streams[-1], logits)
            wanted = torch.log_softmax(logits[kept].double(), dim=-1)
            for at, stream in enumerate(streams):
                x = stream[kept].double()
                tuned = x + x @ maps[at][0].to(x.device) + maps[at][1].to(x.device) if at < len(maps) else x
                both = [_kl(wanted, end.logits(each)) for each in (tuned, x)]
                values["tuned_kl"][number, at], values["logit_kl"][number, at] = both
                values["gained"][number, at] = both[1] - both[0]
        return by_depth(values, WORDS, layers, whole.info.n_layers)


def _kl(wanted: torch.Tensor, logits: torch.Tensor) -> float:
    lens = torch.log_softmax(logits, dim=-1)
    return float((wanted.exp() * (wanted - lens)).sum(-1).mean())
