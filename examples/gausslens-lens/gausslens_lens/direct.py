"""lens.direct: what each head, each MLP and the embedding give to a logit, with the final norm's divisor as it is.

The last stream is a sum of parts, x = embed + sum of heads + sum of b_O + sum of MLPs. With s = size(x) frozen, the
logit along a direction u of W_U is a sum, too:  scale ((sum of parts . centred(gain u)) / s + shift . u) + b_U . u
(Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021). u is W_U of the token that follows less
the mean of W_U over all tokens, as what is added to all logits changes nothing; of pairs, W_U of the answer less that
of the wrong one. A final soft cap is left out: logits are those before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr

from gausslens import Context, InputError, Runner, Tokens, mean_over_prompts

from .pairs import groups_of
from .parameters import DirectParameters
from .unembedding import Unembedding, refuse_difference

SUM = "a norm or a gate stands between a part and the stream, so that it is no sum of parts"


@dataclass(frozen=True)
class Row:
    """Tokens, the places at which a logit is read, and for each the token that is read and what it is set against."""

    ids: np.ndarray
    places: np.ndarray
    token: np.ndarray
    against: np.ndarray | None
    number: int | None


class Direct:
    """Contributions, averaged over the places of each prompt."""

    def __init__(self, parameters: DirectParameters, _: Context) -> None:
        self.parameters = parameters

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """The result: all parts of one prompt sum to its logit."""
        whole, info = runner.whole, runner.info
        end = Unembedding.of(whole.info, whole.weights(None))
        rows = [row for row in self._rows(runner, prompts) if len(row.places)]
        if not rows:
            raise InputError("no prompt has real text that something follows: give longer prompts")
        found = [_parts(whole, end, row, prompts) for row in rows]
        layers = [whole.info.layers.index(layer) for layer in info.layers]
        heads = [whole.info.heads.index(head) for head in info.heads]
        by_name = {name: np.stack([each[name] for each in found]) for name in found[0]}
        words = "given to the logit by"
        made = {
            **mean_over_prompts("logit", (), by_name["logit"], "the logit, less the mean or the wrong answer's"),
            **mean_over_prompts("embed", (), by_name["embed"], f"{words} what enters the first layer"),
            **mean_over_prompts("constant", (), by_name["constant"], f"{words} the shift of the final norm and b_U"),
            **mean_over_prompts("heads", ("layer", "head"), by_name["heads"][:, layers][:, :, heads], f"{words} heads"),
            **mean_over_prompts("bias", "layer", by_name["bias"][:, layers], f"{words} b_O"),
            **mean_over_prompts("mlp", "layer", by_name["mlp"][:, layers], f"{words} MLPs"),
        }
        return xr.Dataset(made, coords={"layer": list(info.layers), "head": list(info.heads)})

    def _rows(self, runner: Runner, prompts: Tokens) -> list[Row]:
        if self.parameters.given:
            groups = groups_of(self.parameters, runner, prompts)
            return [
                Row(ids, np.array([len(ids) - 1]), np.array([answer]), np.array([wrong]), None)
                for group in groups
                for ids, answer, wrong in zip(group.clean, group.answer, group.wrong, strict=True)
            ]
        rows = []
        for number in range(len(prompts)):
            ids, text = prompts.ids[number], prompts.text[number]
            places = np.flatnonzero(text[:-1])
            rows.append(Row(ids, places, ids[places + 1], None, number))
        return rows


def _parts(runner: Runner, end: Unembedding, row: Row, prompts: Tokens) -> dict[str, np.ndarray]:
    """What each part gives, averaged over the places of a row."""
    info = runner.info
    sites = ("resid_pre", "resid_post", "attn_out", "z", *(["mlp_out"] if info.d_mlp else []))
    beside = {} if row.number is None else prompts.beside([row.number])
    found = runner.forward(row.ids[None], sites=(*sites, "logits"), **beside)
    last = found[info.n_layers - 1, "resid_post"][0].double()
    end.hold(last, found["logits"][0])
    x, u = last[row.places], _directions(end, row)
    gained = u if end.gain is None else u * end.gain
    along = end.scale * end.centred(gained) / end.size(x)
    total = found[0, "resid_pre"][0].double()
    parts = {
        "embed": (total[row.places] * along).sum(-1).mean(),
        "heads": torch.zeros(info.n_layers, info.n_heads, dtype=torch.float64),
        "bias": torch.zeros(info.n_layers, dtype=torch.float64),
        "mlp": torch.zeros(info.n_layers, dtype=torch.float64),
    }
    for layer in info.layers:
        if (layer, "attn_out") in found:
            out = found[layer, "attn_out"][0].double()
            by_head, bias = _heads(runner, layer, found[layer, "z"][0].double())
            refuse_difference(end.model, f"attn_out of layer {layer}", by_head.sum(1) + bias, out, end.tolerance, SUM)
            parts["heads"][layer] = torch.einsum("phd,pd->ph", by_head[row.places], along).mean(0)
            parts["bias"][layer] = (bias * along).sum(-1).mean()
            total = total + out
        if (layer, "mlp_out") in found:
            out = found[layer, "mlp_out"][0].double()
            parts["mlp"][layer] = (out[row.places] * along).sum(-1).mean()
            total = total + out
    refuse_difference(end.model, "parts of the last stream", total, last, end.tolerance, SUM)
    parts["constant"] = _constant(end, row, u)
    logits = end.uncapped(x)
    at = torch.arange(len(row.places))
    against = logits.mean(-1) if row.against is None else logits[at, torch.as_tensor(row.against)]
    parts["logit"] = (logits[at, torch.as_tensor(row.token)] - against).mean()
    return {name: each.cpu().numpy() for name, each in parts.items()}


def _directions(end: Unembedding, row: Row) -> torch.Tensor:
    """[place, d_model]: columns of W_U that are read, less what they are set against."""
    columns = end.matrix[:, torch.as_tensor(row.token)].T
    if row.against is None:
        return columns - end.matrix.mean(1)
    return columns - end.matrix[:, torch.as_tensor(row.against)].T


def _constant(end: Unembedding, row: Row, u: torch.Tensor) -> torch.Tensor:
    """scale shift . u + b_U . u, the mean over places."""
    found = torch.zeros((), dtype=torch.float64)
    if end.shift is not None:
        found = found + end.scale * (u @ end.shift).mean()
    if end.bias is not None:
        against = end.bias.mean() if row.against is None else end.bias[torch.as_tensor(row.against)].mean()
        found = found + end.bias[torch.as_tensor(row.token)].mean() - against
    return found


def _heads(runner: Runner, layer: int, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What heads add to the stream, [position, head, d_model], and what b_O does, [d_model]."""
    weights, scale = runner.weights(layer), runner.info.facts.residual_scale
    by_head = scale * torch.einsum("phv,hvd->phd", z, weights["W_O"].double())
    bias = weights["b_O"].double() if "b_O" in weights else torch.zeros(by_head.shape[-1], dtype=torch.float64)
    return by_head, scale * bias
