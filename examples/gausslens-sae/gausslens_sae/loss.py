"""sae.loss: what it costs the model's predictions to see the autoencoder's reconstruction in place of a site.

For each layer: the loss of the next token, clean, with the site reconstructed, and with the site removed;

    loss recovered = (removed - reconstructed) / (removed - clean)

and the same of KL(clean || changed), which means something in a model that predicts nothing, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gausslens import (
    Context,
    InputError,
    Intervention,
    Runner,
    StepRef,
    Tokens,
    Where,
    error_of,
    mean_over_prompts,
    variable,
)

from .statistics import recovered
from .vectors import chosen, counted, dataset, hold, of_layer, of_training

if TYPE_CHECKING:
    import xarray as xr

    from .parameters import LossParameters

Tensor = torch.Tensor
Change = Callable[[Tensor], Tensor]  # of vectors [prompt, position, d_in]


class Loss:
    """Runs each prompt clean, and for each layer with its site reconstructed and removed."""

    def __init__(self, parameters: LossParameters, context: Context) -> None:
        self.parameters, self.context = parameters, context

    def inputs(self, steps: Sequence[StepRef]) -> Sequence[StepRef]:
        return chosen(steps, self.parameters.of, self.context)

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        trained, label = of_training(self.context.inputs)
        hold(trained, self.context.model, label)
        layers, after = list(self.context.model.layers), int(trained["decoder"].attrs["after"])
        changes = {layer: self._changes(trained, layer, label) for layer in layers}
        losses = np.full((len(prompts.ids), len(layers), 3), np.nan)  # clean, reconstructed, removed
        moved = np.full((len(prompts.ids), len(layers), 2), np.nan)
        for row in range(len(prompts.ids)):
            text = torch.as_tensor(prompts.text[row])
            here = counted(text[None], after)[0]
            told = here[:-1] & text[1:]  # the next token is text, and follows what was changed
            if not bool(told.any()):
                continue
            clean, positions = self._predicted(runner, prompts, row), here.nonzero()[:, 0].tolist()
            for n, layer in enumerate(layers):
                losses[row, n, 0] = surprise(clean, prompts.ids[row], told)
                for m, change in enumerate(changes[layer]):
                    put = Intervention(trained["decoder"].attrs["site"], layer, of_vectors(change), positions=positions)
                    changed = self._predicted(runner, prompts, row, put)
                    losses[row, n, 1 + m] = surprise(changed, prompts.ids[row], told)
                    moved[row, n, m] = divergence(clean, changed, told)
        if np.isnan(losses).all():
            raise InputError(f"no prompt has two tokens of text from position {after} on: give longer prompts")
        return dataset(summary(losses, moved), layers)

    def _changes(self, trained: xr.Dataset, layer: int, label: str) -> tuple[Change, Change]:
        """What is put in place of the vectors of a layer: their reconstruction, and what stands for nothing."""
        removed = self.parameters.removed

        def reconstructed(x: Tensor) -> Tensor:
            sae, ball = of_layer(trained, layer, label, x.device)
            return torch.where(ball.holds(x)[..., None], sae.reconstruct(x), x)

        def nothing(x: Tensor) -> Tensor:
            _, ball = of_layer(trained, layer, label, x.device)
            mean = torch.tensor(trained["mean"].sel(layer=layer).values, device=x.device)
            return torch.where(ball.holds(x)[..., None], mean if removed == "mean" else torch.zeros_like(mean), x)

        return reconstructed, nothing

    def _predicted(self, runner: Runner, prompts: Tokens, row: int, *put: Intervention) -> Tensor:
        """log p of every next token, [position, token]."""
        found = runner.forward(prompts.ids[row][None], interventions=put, **prompts.beside([row]))
        return torch.log_softmax(found["logits"][0].float(), dim=-1)


def of_vectors(change: Change) -> Callable[[Tensor, Where], Tensor]:
    """A change of vectors as one of a site's array, in which the heads of a token are one vector."""
    return lambda array, _: change(array.flatten(2).float()).to(array.dtype).reshape(array.shape)


def surprise(predicted: Tensor, ids: Any, told: Tensor) -> float:
    """mean -log p of the next token, where ``told`` [position - 1] says, in nats."""
    after = torch.as_tensor(np.asarray(ids)[1:], device=predicted.device)
    each = -predicted[:-1].gather(1, after[:, None])[:, 0]
    return float(each[told.to(each.device)].double().mean())


def divergence(clean: Tensor, changed: Tensor, told: Tensor) -> float:
    """mean KL(clean || changed) of the next token, where ``told`` says, in nats."""
    here = told.to(clean.device)
    p, q = clean[:-1][here], changed[:-1][here]
    return float((p.exp() * (p - q)).sum(-1).double().mean())


def summary(losses: np.ndarray, moved: np.ndarray) -> dict[str, Any]:
    """The variables, from losses [prompt, layer, 3] (clean, reconstructed, removed) and KL [prompt, layer, 2]."""
    clean, reconstructed, removed = np.moveaxis(losses, 2, 0)
    kl, kl_removed = np.moveaxis(moved, 2, 0)
    each = {
        "loss": (clean, "mean loss of a token"),
        "loss_reconstructed": (reconstructed, "mean loss of a token with the site reconstructed"),
        "loss_removed": (removed, "mean loss of a token with the site removed"),
        "delta": (reconstructed - clean, "what the reconstruction adds to the loss"),
        "delta_removed": (removed - clean, "what removing the site adds to the loss"),
        "kl": (kl, "divergence of predictions with the site reconstructed from the clean ones"),
        "kl_removed": (kl_removed, "divergence of predictions with the site removed from the clean ones"),
    }
    made: dict[str, Any] = {}
    for name, (values, words) in each.items():
        made |= mean_over_prompts(name, "layer", values, words, "nat")
    ratios = {
        "recovered": (clean, reconstructed, removed, "loss recovered"),
        "kl_recovered": (np.zeros_like(kl), kl, kl_removed, "divergence recovered"),
    }
    for name, (*parts, words) in ratios.items():
        found = [recovered(*(part[:, n] for part in parts)) for n in range(losses.shape[1])]
        made[name] = variable("layer", [ratio for ratio, _ in found], f"{words}, 1 of a perfect reconstruction")
        made[f"{name}_se"] = error_of(name, "layer", [error for _, error in found], words)
    return made
