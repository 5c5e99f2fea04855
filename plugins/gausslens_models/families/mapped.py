"""The table of a plain torch module, made of a mapping: plain data that says where a module has what.

A tensor is written as ``attn.c_attn.weight[q] in_out + 1``: its name below that of a layer; the part that is meant
where several are fused; how it is stored, where that is not as the mapping's ``stored`` says; what is added to it. A
site is written as ``attn.c_attn[q]`` or ``ln_2 input``: what a module gives, or what it is given.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from gausslens import HEAD_AXIS, KV_HEAD_AXIS, ModelError, did_you_mean

from .layout import Layout, Place, Sizes
from .slots import NO_ROTATION, Family, Slot, Tap

if TYPE_CHECKING:
    from ..parameters import TorchParameters

FORMS = {
    **dict.fromkeys(("W_Q", "b_Q"), "query"),
    **dict.fromkeys(("W_K", "W_V", "b_K", "b_V"), "key_value"),
    **dict.fromkeys(("W_in", "W_gate", "W_out", "W_U"), "in_out"),
    "W_O": "output",
}
_TENSOR = re.compile(
    r"(?P<name>[\w.]+)(\[(?P<part>[^\]]+)\])?(\s+(?P<stored>out_in|in_out))?(\s*\+\s*(?P<plus>[\d.]+))?"
)
_SITE = re.compile(r"(?P<module>\.|[\w.]+)(\[(?P<part>[^\]]+)\])?(\s+(?P<end>input|output))?")
# Behind each other, head by head, or group by group; halves of a gate and what it multiplies.
_PART = re.compile(r"[qkv][|*]?|[qkv][1-9]\d*|[01]/2|[01]::2")
_PARTS = "q, k, v behind each other; q|, ... head by head; q*, ... group by group; 0/2, 1/2 halves; 0::2, 1::2 in turn"
UNSHOWN = "the mapping names no module that shows q, k, v and z (what the module of W_O is given)"
NO_MODULE = "the mapping names no module that shows it"
MADE = ("q_rot", "k_rot", "scores", "pattern")


def mapped_config(parameters: TorchParameters, layout: Layout, end: int | None) -> Any:
    """What a config would say, under the names that transformers has for it."""
    facts, sizes = parameters.facts, layout.sizes
    places = layout.places[None]
    longest = layout.shapes[places["W_pos"].theirs][0] if "W_pos" in places else None
    turned = (facts.rotary_dims or sizes.d_head) / sizes.d_head
    rotary = {"rope_type": "default", "rope_theta": facts.rotary_theta, "partial_rotary_factor": turned}
    return SimpleNamespace(
        model_type="mapped",
        num_hidden_layers=len(layout.places) - 1,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        hidden_size=sizes.d_model,
        vocab_size=layout.shapes[places["W_E"].theirs][0],
        max_position_embeddings=min(filter(None, (parameters.max_positions, longest)), default=None),
        rope_parameters=rotary,
        hidden_act=facts.activation,
        attn_logit_softcapping=facts.soft_cap,
        final_logit_softcapping=facts.final_soft_cap,
        sliding_window=facts.sliding_window if facts.causal or not facts.sliding_window else facts.sliding_window - 1,
        query_norm=facts.query_norm,
        eos_token_id=end,
        **{name: getattr(facts, name) for name in _MULTIPLIERS},
    )


_MULTIPLIERS = ("embedding_scale", "residual_scale", "logit_scale")


def mapped_family(name: str, parameters: TorchParameters) -> Family:
    """A row as those of the tables: tensors, and where sites are seen."""
    facts = parameters.facts
    tensors = {ours: _slot(ours, text, parameters.stored) for ours, text in parameters.tensors.items()}
    outside = {ours: _slot(ours, text, "out_in") for ours, text in parameters.outside.items()}
    taps = dict(_taps(tensors, facts.norm_first, facts.parallel))
    taps |= {site: _tap(site, text) for site, text in parameters.sites.items()}
    watched = {"q", "k", "v", "z"} <= taps.keys() and taps["z"].end == "in"
    lacking = {} if watched else dict.fromkeys(MADE, UNSHOWN)
    lacking |= {
        site: UNSHOWN if site in HEAD_AXIS or site in KV_HEAD_AXIS else NO_MODULE
        for site in ("q", "k", "v", "z", "attn_out", "resid_mid", "mlp_pre", "mlp_post", "mlp_out")
        if site not in taps
    }
    if facts.position != "rotary":
        lacking |= {"q_rot": NO_ROTATION, "k_rot": NO_ROTATION}
    return Family(
        name=name,
        model_types=("mapped",),
        layers=parameters.layers,
        attention="",
        tensors=tensors,
        taps=taps,
        outside=outside,
        lacking=lacking,
        position=facts.position,
        watched=watched,
        epsilon=facts.norm_epsilon,
        epsilon_of_config=False,
        norm=facts.norm,
        norm_first=facts.norm_first,
        causal=facts.causal,
        pairs=facts.rotary_pairs,
        scale=facts.scale or "",
        multipliers={name: (name, 1) for name in _MULTIPLIERS},
        query_norm=facts.query_norm_over,
        query_norm_bare="query_norm",
        query_norm_late=facts.query_norm_late,
        parallel=facts.parallel,
    )


def mapped_layout(
    family: Family, parameters: TorchParameters, parameters_of: Mapping[str, torch.Tensor], path: str
) -> Layout:
    """Where our tensors are; ``parameters_of`` has each parameter under all its names, the first of which is taken."""
    first: dict[int, str] = {}
    for name, held in parameters_of.items():
        first.setdefault(id(held), name)
    known = {name: first[id(held)] for name, held in parameters_of.items()}
    shapes = {name: tuple(parameters_of[name].shape) for name in first.values()}
    places: dict[int | None, dict[str, Place]] = {None: _placed(family.outside, "", known, path)}
    for layer in range(_count_layers(family.layers, known, path)):
        places[layer] = _placed(family.tensors, f"{family.layers}.{layer}.", known, path)
    _refuse_shared(places, path)
    tied = "W_U" in places[None] and places[None]["W_U"].theirs == places[None]["W_E"].theirs
    claimed = {place.theirs for of_layer in places.values() for place in of_layer.values()}
    unclaimed = tuple(sorted(set(shapes) - claimed))
    _refuse_unclaimed(unclaimed, family.layers, parameters.ignored, path)
    n_layers = len(places) - 1
    sizes = _sizes(parameters, shapes[places[None]["W_E"].theirs], path)
    layout = Layout(family, sizes, places, shapes, unclaimed, tied, ("",) * n_layers, (False,) * n_layers)
    _refuse_shapes(layout, parameters, path)
    return layout


def seen_where_called(family: Family, parameters: TorchParameters, path: str, called: Collection[str]) -> Family:
    """The family with sites at modules that a pass calls: a tensor may be used without its module.

    What attention or MLP adds is then seen at the module around it (nn.MultiheadAttention); others are lacking.
    """
    numbers = {
        name.removeprefix(f"{family.layers}.").split(".")[0] for name in called if name.startswith(family.layers)
    }
    stack = [f"{family.layers}.{n}" for n in sorted(numbers) if n.isdigit()]

    def shows(module: str) -> bool:
        return all((f"{layer}.{module}" if module else layer) in called for layer in stack)

    taps, lacking = dict(family.taps), dict(family.lacking)
    for site, tap in family.taps.items():
        if shows(tap.module):
            continue
        never = f"a pass never calls {family.layers}.N.{tap.module}"
        if site in parameters.sites:
            raise ModelError(f"{path}: {never}, at which the mapping sees {site}")
        parts = tap.module.split(".")
        around = (".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
        found = next(filter(shows, around), None) if site in ("attn_out", "mlp_out") else None
        if found is None:
            del taps[site]
            lacking[site] = f"{never}: {NO_MODULE}"
        else:
            taps[site] = Tap(found, "out")
    watched = family.watched and {"q", "k", "v", "z"} <= taps.keys()
    lacking = lacking if watched else dict.fromkeys(MADE, UNSHOWN) | lacking
    return replace(family, taps=taps, lacking=lacking, watched=watched)


def _refuse_unclaimed(unclaimed: Sequence[str], layers: str, ignored: Sequence[str], path: str) -> None:
    """Tensors of layers are ours, or the mapping says that they are not."""
    inside = [name for name in unclaimed if name.startswith(f"{layers}.")]
    left = [name for name in inside if not any(part in name for part in ignored)]
    if left:
        module = left[0].removeprefix(f"{layers}.").partition(".")[2].rpartition(".")[0]
        raise ModelError(
            f"{path}: the mapping names no {', '.join(left[:8])}: say in `tensors` what they are; or in `ignored`, by "
            f"parts of their names, that they are none of ours, as experts and their router are: [{module}]"
        )
    idle = next((part for part in ignored if not any(part in name for name in unclaimed)), None)
    if idle is not None:
        raise ModelError(f"{path}: ignored: no tensor that the mapping leaves has {idle!r} in its name")


def _slot(ours: str, text: str, stored: str) -> Slot:
    match = _TENSOR.fullmatch(text.strip())
    if match is None:
        raise ModelError(f"mapping: {ours}: {text!r} is not written as NAME[part] out_in + 1, of which NAME is needed")
    part = _part(ours, match["part"])
    turned = (match["stored"] or stored) == "in_out" and ours.startswith("W_") and ours not in ("W_E", "W_pos")
    return Slot(match["name"], FORMS.get(ours, "as is"), part, turned, float(match["plus"] or 0))


def _tap(site: str, text: str) -> Tap:
    match = _SITE.fullmatch(text.strip())
    if match is None:
        raise ModelError(f"mapping: {site}: {text!r} is not written as MODULE[part] input (or output), or .")
    module = "" if match["module"] == "." else match["module"]
    return Tap(module, "in" if match["end"] == "input" else "out", _part(site, match["part"]))


def _part(ours: str, part: str | None) -> str:
    if part and not _PART.fullmatch(part):
        raise ModelError(f"mapping: {ours}: there is no part {part!r}; parts are {_PARTS}")
    return part or ""


def _taps(tensors: Mapping[str, Slot], norm_first: bool, parallel: bool) -> Iterator[tuple[str, Tap]]:
    """Where sites are seen if the mapping does not say it: at the modules that hold the tensors."""

    def module(ours: str) -> str | None:
        name = tensors[ours].tensor if ours in tensors else ""
        return name.removesuffix(".weight") if name.endswith(".weight") else None

    pre = "W_gate" if "W_gate" in tensors else "W_in"
    mid = (("ln2.w", "in") if norm_first else ("ln1.w", "out")) if not parallel else ("", "")
    for site, ours, end in (
        *(("q", "W_Q", "out"), ("k", "W_K", "out"), ("v", "W_V", "out"), ("z", "W_O", "in")),
        ("attn_out", "ln1_post.w" if "ln1_post.w" in tensors else "W_O", "out"),
        ("resid_mid", *mid),
        *(("mlp_pre", pre, "out"), ("mlp_post", "W_out", "in")),
        ("mlp_out", "ln2_post.w" if "ln2_post.w" in tensors else "W_out", "out"),
    ):
        found = module(ours)
        if found is not None:
            yield site, Tap(found, end, tensors[ours].part if end == "out" else "")


def _count_layers(layers: str, known: Collection[str], path: str) -> int:
    stack = re.compile(rf"{re.escape(layers)}\.(\d+)\.")
    numbers = {int(match[1]) for name in known if (match := stack.match(name))}
    if numbers != set(range(len(numbers))) or not numbers:
        lists = sorted({re.split(r"\.\d+\.", name)[0] for name in known if re.search(r"\.\d+\.", name)})
        found = f"; lists of layers in it: {', '.join(lists)}" if lists else "; it has no list of layers"
        raise ModelError(f"{path}: no parameters are called {layers}.0, {layers}.1, ...{found}")
    return len(numbers)


def _placed(slots: Mapping[str, Slot], prefix: str, known: Mapping[str, str], path: str) -> dict[str, Place]:
    for ours, slot in slots.items():
        if prefix + slot.tensor not in known:
            near = did_you_mean(prefix + slot.tensor, list(known))
            beside = [n for n in known if n.startswith(prefix)] if prefix else [n for n in known if ".0." not in n]
            raise ModelError(
                f"{path}: the module has no parameter {prefix}{slot.tensor}, which the mapping calls {ours}{near}; "
                f"there are {', '.join(sorted(beside)[:16])}"
            )
    return {ours: Place(known[prefix + slot.tensor], slot) for ours, slot in slots.items()}


def _refuse_shared(places: Mapping[int | None, Mapping[str, Place]], path: str) -> None:
    """A parameter that is two of ours could not be edited as one of them."""
    seen: dict[tuple[str, str], str] = {}
    for layer, of_layer in places.items():
        for ours, place in of_layer.items():
            here = ours if layer is None else f"{ours} of layer {layer}"
            before = seen.setdefault((place.theirs, place.slot.part), here)
            if before != here and {before, here} != {"W_E", "W_U"}:
                raise ModelError(f"{path}: {place.theirs} is both {before} and {here}: only W_E and W_U may be one")


def _sizes(parameters: TorchParameters, embedding: tuple[int, ...], path: str) -> Sizes:
    d_model, heads = parameters.d_model or embedding[-1], parameters.n_heads
    if parameters.d_head is None and d_model % heads:
        raise ModelError(f"{path}: n_heads {heads} does not divide d_model {d_model}: say d_head")
    kv_heads = parameters.n_kv_heads or heads
    if heads % kv_heads:
        raise ModelError(f"{path}: n_kv_heads {kv_heads} does not divide n_heads {heads}")
    return Sizes(heads, kv_heads, parameters.d_head or d_model // heads, d_model)


def _refuse_shapes(layout: Layout, parameters: TorchParameters, path: str) -> None:
    """Every tensor as we cut it must have the shape that the sizes say; None stands for any."""
    s, d_mlp = layout.sizes, parameters.d_mlp
    kv = (s.kv_heads, s.d_head)
    expected: dict[str, tuple[int | None, ...]] = {
        "W_Q": (s.heads, s.d_model, s.d_head),
        **dict.fromkeys(("W_K", "W_V"), (s.kv_heads, s.d_model, s.d_head)),
        "W_O": (s.heads, s.d_head, s.d_model),
        "b_Q": (s.heads, s.d_head),
        **dict.fromkeys(("b_K", "b_V"), kv),
        **dict.fromkeys(("W_in", "W_gate"), (s.d_model, d_mlp)),
        "W_out": (d_mlp, s.d_model),
        **dict.fromkeys(("b_in", "b_gate"), (d_mlp,)),
        **dict.fromkeys(("b_O", "b_out", "ln1.w", "ln1.b", "ln2.w", "ln2.b", "ln_final.w", "ln_final.b"), (s.d_model,)),
        **dict.fromkeys(("W_E", "W_pos"), (None, s.d_model)),
        "W_U": (s.d_model, None),
    }
    for of_layer in layout.places.values():
        for ours, place in of_layer.items():
            shape = layout.shapes[place.theirs]
            wanted = expected.get(ours, (None,) * len(shape))
            seen = _seen(layout, place)
            if seen is None or len(seen) != len(wanted) or any(w not in (None, n) for n, w in zip(seen, wanted)):  # noqa: B905
                as_cut = "cannot be cut" if seen is None else f"is {_written(seen)} as it is cut"
                raise ModelError(
                    f"{path}: {place.theirs} has shape {list(shape)}: as {ours}, stored "
                    f"{'in_out' if place.slot.turned else 'out_in'}{', part ' * bool(place.slot.part)}"
                    f"{place.slot.part}, it {as_cut}, and should be {_written(wanted)} for n_heads {s.heads}, "
                    f"n_kv_heads {s.kv_heads}, d_head {s.d_head}, d_model {s.d_model}"
                )


def _seen(layout: Layout, place: Place) -> tuple[int, ...] | None:
    """The shape of our tensor; None where it cannot be cut so, or where something is left over."""
    empty, s = torch.empty(layout.shapes[place.theirs], device="meta"), layout.sizes
    fused = place.slot.part in ("q", "k", "v") and place.slot.form in ("query", "key_value")
    turned = empty.mT if place.slot.turned and empty.ndim > 1 else empty
    if fused and turned.shape[0] != (s.heads + 2 * s.kv_heads) * s.d_head:
        return None
    try:
        return tuple(layout.view(place, empty).shape)
    except (RuntimeError, IndexError):
        return None


def _written(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('any' if n is None else str(n) for n in shape)}]"
