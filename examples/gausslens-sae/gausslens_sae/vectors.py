"""From a site to vectors and back: which tokens count, and which autoencoder another step has trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import xarray as xr

from gausslens import Batch, Context, InputError, ModelInfo, StepRef, site

from .autoencoder import Autoencoder, Ball

TRAINED = "sae.train"


def width(name: str, info: ModelInfo) -> int:
    """How wide a vector of a site is, those of all heads in view side by side."""
    _, heads, wide = site(name).vectors(info)
    return heads * wide


def heads_of(name: str, info: ModelInfo) -> list[int]:
    """The numbers of the heads in view whose vectors are side by side; none of a site without heads."""
    return list(site(name).heads(info)) if {"head", "kv_head"} & set(site(name).dims) else []


def hold(trained: xr.Dataset, info: ModelInfo, label: str) -> None:
    """Refuse an autoencoder of other heads than those in view: their vectors may be as wide, and are not the same."""
    facts = trained["decoder"].attrs
    heads, here = np.atleast_1d(facts.get("heads", [])).tolist(), heads_of(facts["site"], info)
    if heads and heads != here:
        of, view = (", ".join(map(str, each)) for each in (heads, here))
        raise InputError(f"{label} is an autoencoder of heads {of}, here are {view}: give both steps the same heads:")
    if trained.sizes["d_in"] != (wide := width(facts["site"], info)):
        raise InputError(
            f"{label} is an autoencoder of vectors of {trained.sizes['d_in']} numbers, here they have {wide}"
        )


def counted(text: torch.Tensor, after: int) -> torch.Tensor:
    """Which tokens [prompt, position] count: those of real text, from a position on."""
    found = text.clone()
    found[:, :after] = False
    return found


def vectors(batch: Batch, name: str, here: torch.Tensor) -> torch.Tensor:
    """The vectors [sample, d_in] of a site at these tokens [prompt, position], prompt by prompt."""
    return batch[name].flatten(2)[here].detach().float()


def chosen(steps: Sequence[StepRef], label: str, context: Context) -> list[StepRef]:
    """The training of this label on the same twin; refused where there is none."""
    found = [step for step in context.same_twin(steps) if step.label == label and step.analysis == TRAINED]
    if not found:
        known = sorted({step.label for step in steps if step.analysis == TRAINED})
        there = f"there is {', '.join(known)}" if known else f"there is none: add a step {{use: {TRAINED}}}"
        raise InputError(f"of: no step {label!r} of {TRAINED} stands before this one on this variant; {there}")
    return found[:1]


def of_layer(trained: xr.Dataset, layer: int, label: str, device: torch.device) -> tuple[Autoencoder, Ball]:
    """The autoencoder of a layer, and the vectors that it is of, from what sae.train found."""
    if layer not in trained["layer"].values:
        has = ", ".join(map(str, trained["layer"].values))
        raise InputError(f"{label} has no autoencoder of layer {layer}, but of {has}: give both steps the same layers:")
    here = trained.sel(layer=layer)
    names = ("encoder", "encoder_bias", "decoder", "decoder_bias", "centre")
    encoder, encoder_bias, decoder, decoder_bias, centre = (
        torch.tensor(here[name].values, device=device) for name in names
    )
    sae = Autoencoder(encoder, encoder_bias, decoder, decoder_bias, int(trained["decoder"].attrs["k"]))
    return sae, Ball(centre, float(here["radius"]))


def of_training(inputs: Mapping[StepRef, xr.Dataset]) -> tuple[xr.Dataset, str]:
    """What the one step that was chosen has found, and its label."""
    [(step, trained)] = inputs.items()
    return trained, step.label


def dataset(values: Mapping[str, object], layers: Sequence[int]) -> xr.Dataset:
    """A dataset of these variables over these layers."""
    return xr.Dataset(dict(values), coords={"layer": np.array(layers)})
