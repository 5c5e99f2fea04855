"""Each captured quantity of a layer, made again from the one before it and our tensors, and how far off it may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gausslens import LayerWeights

from ..maths import attention_formulas as formulas
from ..maths import stream_formulas as stream
from ..maths.rounding import allowed, size_of_norm, size_of_product, softmax_moved, working_type

if TYPE_CHECKING:
    from gausslens import ModelInfo

    from ..loading.pretrained import PretrainedModel

# What the formulas of a site start from.
NEEDED: Mapping[str, tuple[str, ...]] = {
    "resid_pre": (),
    "q": ("resid_pre",),
    "k": ("resid_pre",),
    "v": ("resid_pre",),
    "q_rot": ("resid_pre", "q"),
    "k_rot": ("resid_pre", "k"),
    "scores": ("resid_pre", "q", "k", "q_rot", "k_rot"),
    "pattern": ("resid_pre", "q", "k", "q_rot", "k_rot", "scores"),
    "z": ("resid_pre", "q", "k", "v", "q_rot", "k_rot", "scores", "pattern"),
    "attn_out": ("z",),
    "resid_mid": ("resid_pre", "attn_out"),
    "mlp_pre": ("resid_pre", "resid_mid"),
    "mlp_post": ("resid_pre", "resid_mid", "mlp_pre"),
    "mlp_out": ("mlp_post",),
    "resid_post": ("resid_pre", "resid_mid", "attn_out", "mlp_out"),
    "logits": ("resid_post",),
}


@dataclass(frozen=True)
class Made:
    """A site made by the formulas, and what it may be off by, entry by entry."""

    what: str
    value: torch.Tensor
    bound: torch.Tensor

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that this speaks of."""
        return (self.what,)


@dataclass(frozen=True)
class Left:
    """A comparison that cannot be made, and why."""

    what: str
    sites: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Sides:
    """Which tokens are there, as queries and as keys [prompt, position].

    ``memory`` [prompt, key, d_model] is what keys and values read, if not the stream: what the encoder gives.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    memory: torch.Tensor | None = None

    def to(self, dtype: torch.dtype) -> Sides:
        """The same with numbers of this type."""
        return self if self.memory is None else Sides(self.queries, self.keys, self.memory.to(dtype))


@dataclass(frozen=True)
class At:
    """One layer: what was captured of it, and its tensors, in the type that they are judged in."""

    model: PretrainedModel
    layer: int
    arrays: Mapping[str, torch.Tensor]
    weights: LayerWeights
    sides: Sides

    @property
    def info(self) -> ModelInfo:
        """The facts of the model."""
        return self.model.info

    def made(self, what: str, value: torch.Tensor, size: torch.Tensor | float, width: int) -> Made:
        """A site, with what a sum of this width may be off by."""
        return Made(what, value, allowed(value, size, width, self.model.dtype))


def layer_of(at: At) -> Iterator[Made | Left]:
    """All of a layer. What the family says is not proved, or what cannot be made, is left out with the reason."""
    unproved: Mapping[str, str] = at.info.facts.get("unproved", {})
    for step in (_projections, _attention, _attention_out, _mlp, _stream):
        for made in step(at):
            if made.what in unproved:
                yield Left(made.what, made.sites, unproved[made.what])
            elif isinstance(made, Left) or made.what in at.arrays:
                yield made


def embedding_of(model: PretrainedModel, ids: torch.Tensor, outside: LayerWeights) -> Iterator[Made | Left]:
    """The stream before the first layer."""
    unproved: Mapping[str, str] = model.info.facts.get("unproved", {})
    reason = unproved.get("embed") or stream.not_written(outside, model.info)
    if reason:
        yield Left("resid_pre of layer 0", ("resid_pre",), reason)
        return
    value = stream.embedded(ids, outside, model.info, working_type(model.dtype), model.waves())
    size = value.abs().amax(-1, keepdim=True)
    yield Made("resid_pre", value, allowed(value, size, 2, model.dtype))


def head_of(
    model: PretrainedModel, resid: torch.Tensor, outside: LayerWeights
) -> Iterator[Left | tuple[slice, torch.Tensor, torch.Tensor]]:
    """(tokens, logits, what they may be off by) of some rows of the last stream; or the final hidden state at once."""
    info, dtype = model.info, model.dtype
    unproved: Mapping[str, str] = info.facts.get("unproved", {})
    named, activation = _activation(model)
    if "logits" in unproved or ("W_head" in outside and activation is None):
        yield Left("logits from weights", ("logits",), unproved.get("logits", named))
        return
    read = stream.head_input(resid, outside, info, activation or torch.nn.Identity())
    size = size_of_norm(resid, read) if read.shape == resid.shape else read.abs().amax(-1, keepdim=True).expand_as(read)
    if not model.headed:
        yield slice(None), read, allowed(read, size, read.shape[-1], dtype)
        return
    for some, value, summed in stream.logits(read, size, outside, info):
        yield some, value, allowed(value, summed, read.shape[-1], dtype)


def _projections(at: At) -> Iterator[Made]:
    """q, k and v of the stream; k and v of what the encoder gives, where they are of that."""
    asked = [letter for letter in "QKV" if letter.lower() in at.arrays]
    if not asked:
        return
    read = formulas.attention_input(at.arrays["resid_pre"], at.weights, at.info)
    size = size_of_norm(at.arrays["resid_pre"], read)
    for letter in asked:
        if letter != "Q" and at.sides.memory is not None:
            read, size = at.sides.memory, at.sides.memory.abs()
        value = formulas.projected(read, at.weights, letter)
        summed = size_of_product(size, at.weights[f"W_{letter}"], "ptd,hde->pthe") + _bias(at.weights, f"b_{letter}")
        yield at.made(letter.lower(), value, summed, at.info.d_model)


def _attention(at: At) -> Iterator[Made | Left]:
    """What is made of q, k and v: positions, scores, pattern, head outputs."""
    arrays, info = at.arrays, at.info
    if not {"q", "k"} <= arrays.keys():
        return
    met = []
    for letter in "QK":
        value, name = arrays[letter.lower()], f"{letter.lower()}_rot"
        value = formulas.positioned(value, at.weights, letter, at.layer, info)
        yield at.made(name, value, value.abs().amax(-1, keepdim=True), info.d_head)
        met.append(arrays.get(name, value))
    q, k = met
    if info.facts.position == "disentangled":
        yield from (
            Left(name, (name,), "scores have terms of positions beside q . k") for name in ("scores", "pattern")
        )
        found = at.made("pattern", arrays["pattern"], 1.0, info.d_head) if "pattern" in arrays else None
    else:
        yield from (made := _scores_and_pattern(at, q, k))
        found = next((one for one in made if one.what == "pattern"), None)
    if found is not None and {"z", "v"} <= arrays.keys():
        yield _head_outputs(at, found.bound.to(arrays["v"].dtype))


def _scores_and_pattern(at: At, q: torch.Tensor, k: torch.Tensor) -> list[Made]:
    """Scores of q and k as they meet, and the pattern of these."""
    arrays, info = at.arrays, at.info
    outside = at.weights if "W_distance" in at.weights else LayerWeights(at.model, None)
    distance = formulas.distance_term(at.sides.queries.shape[1], info, outside)
    value = formulas.scores(q, k, at.layer, info, at.sides.keys, distance)
    if distance is not None and "scores" in arrays:
        value = formulas.levelled(value, arrays["scores"])
    squares = torch.einsum("pqhe,pkhe->phqk", q.square(), k[:, :, list(info.kv_of_head)].square())
    size = squares.sqrt() * abs(info.facts.scale(at.layer))
    scores = at.made("scores", value, size if distance is None else size + distance.abs().to(size), info.d_head)
    if "pattern" not in arrays:
        return [scores]
    pattern = formulas.pattern(arrays.get("scores", value), at.weights).to(value.dtype)
    moved = torch.where(value.isfinite(), scores.bound, 0.0).amax(-1, keepdim=True)
    plain = at.made("pattern", pattern, 0.0, pattern.shape[-1])
    return [scores, Made("pattern", pattern, plain.bound + softmax_moved(pattern, moved))]


def _head_outputs(at: At, off: torch.Tensor) -> Made:
    """z of the captured pattern, whose entries may be off by so much: a fused kernel has a pattern of its own."""
    pattern, v = at.arrays["pattern"], formulas.clipped(at.arrays["v"], at.info)[:, :, list(at.info.kv_of_head)]
    mixing = "phqk,pkhe->pqhe"
    value = torch.einsum(mixing, pattern, v)
    made = at.made("z", value, size_of_product(pattern, v, mixing), v.shape[1])
    return Made("z", value, made.bound + torch.einsum(mixing, off, v.abs()))


def _attention_out(at: At) -> Iterator[Made | Left]:
    """What attention adds to the stream."""
    if not {"z", "attn_out"} <= at.arrays.keys():
        return
    z = at.arrays["z"]
    if "W_gate_z" in at.weights:
        if "resid_pre" not in at.arrays:
            yield Left("attn_out", ("attn_out",), "what gates the heads is not seen")
            return
        z = formulas.gated(z, formulas.attention_input(at.arrays["resid_pre"], at.weights, at.info), at.weights)
    value = formulas.attention_output(z, at.weights, at.info)
    if {"ln1_post.w", "z_norm.w", "W_gate_z"} & set(at.weights.names):
        size = value.abs().amax(-1, keepdim=True)
    else:
        size = size_of_product(z, at.weights["W_O"], "pthe,hed->ptd") + _bias(at.weights, "b_O")
    yield at.made("attn_out", value, size, at.info.n_heads * at.info.d_head)


def _mlp(at: At) -> Iterator[Made | Left]:
    """The MLP: before its activation, after it, and what it adds."""
    arrays, weights = at.arrays, at.weights
    asked = [name for name in ("mlp_pre", "mlp_post", "mlp_out") if name in arrays]
    if not ({"W_in", "W_out"} <= set(weights.names) and weights["W_out"].ndim == 2):
        yield from (Left(name, (name,), "some layers have no MLP of one W_in and one W_out") for name in asked)
        return
    before = "resid_pre" if at.info.facts.parallel else "resid_mid"
    if "mlp_pre" in asked and before not in arrays:
        yield from (Left(name, (name,), f"{before} is not seen") for name in asked if name != "mlp_out")
    elif "mlp_pre" in asked:
        yield from _before_and_after_activation(at, arrays[before])
    if {"mlp_post", "mlp_out"} <= arrays.keys():
        value = stream.mlp_output(arrays["mlp_post"], weights, at.info)
        if "ln2_post.w" in weights:
            size = value.abs().amax(-1, keepdim=True)
        else:
            size = _size_of_linear(arrays["mlp_post"], weights, "out")
        yield at.made("mlp_out", value, size, arrays["mlp_post"].shape[-1])


def _before_and_after_activation(at: At, resid: torch.Tensor) -> Iterator[Made | Left]:
    read = stream.mlp_input(resid, at.weights, at.info)
    size = size_of_norm(resid, read)
    gated = "W_gate" in at.weights
    first = "gate" if gated else "in"
    pre = stream.linear(read, at.weights, first)
    yield at.made("mlp_pre", pre, _size_of_linear(size, at.weights, first), at.info.d_model)
    if "mlp_post" not in at.arrays:
        return
    named, activation = _activation(at.model)
    if activation is None or "alpha_p" in at.weights:
        yield Left(
            "mlp_post", ("mlp_post",), named if activation is None else "its activation learns numbers of its own"
        )
        return
    pre = at.arrays["mlp_pre"]
    up = stream.linear(read, at.weights, "in") if gated else None
    # An activation's own rounding is of the size of what it is given.
    of_post = pre.abs()
    if up is not None:
        of_post = of_post * up.abs() + activation(pre).abs() * _size_of_linear(size, at.weights, "in")
    post = stream.mlp_post(pre, up, activation)
    if "mlp_norm.w" in at.weights:
        post = formulas.normed(post, at.weights, "mlp_norm", at.info)
        of_post = size_of_norm(post, post) + post.abs().amax(-1, keepdim=True)
    yield at.made("mlp_post", post, of_post, at.info.d_model)


def _stream(at: At) -> Iterator[Made | Left]:
    """The stream after attention, and after the layer."""
    arrays = at.arrays
    whole = ("resid_pre", ("attn_out", "mlp_out")) if at.info.facts.parallel else ("resid_mid", ("mlp_out",))
    for name, (start, parts), norm in (
        ("resid_mid", ("resid_pre", ("attn_out",)), "ln1"),
        ("resid_post", whole, "ln2"),
    ):
        if name not in arrays:
            continue
        unseen = [s for s in (start, *parts) if s not in arrays]
        if unseen:
            yield Left(name, (name,), f"some layers lack {unseen[0]}")
            continue
        value = stream.added(arrays[start], tuple(arrays[p] for p in parts), at.weights, norm, at.info)
        size = arrays[start].abs() + sum(arrays[p].abs() for p in parts)
        if not at.info.facts.norm_first and f"{norm}.w" in at.weights:
            total = arrays[start] + sum(arrays[p] for p in parts)
            size = size_of_norm(total, value) + value.abs().amax(-1, keepdim=True)
        yield at.made(name, value, size, len(parts) + 1)


def _size_of_linear(size: torch.Tensor, weights: LayerWeights, name: str) -> torch.Tensor:
    return size_of_product(size, weights[f"W_{name}"], "pti,io->pto") + _bias(weights, f"b_{name}")


def _bias(weights: LayerWeights, name: str) -> torch.Tensor | float:
    return weights[name].abs() if name in weights else 0.0


def _activation(model: PretrainedModel) -> tuple[str, stream.Activation | None]:
    """The function of the MLP by the name that the config gives it; or why there is none."""
    from transformers.activations import ACT2FN

    name = model.info.facts.get("activation")
    if name is None or name not in ACT2FN:
        return "its activation is not known" if name is None else f"transformers has no activation {name}", None
    return name, ACT2FN[name]
