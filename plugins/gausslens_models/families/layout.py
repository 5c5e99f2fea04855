"""Which tensor of a checkpoint holds which of ours, and how it is cut: always a view, which can be written through."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gausslens import ModelError, did_you_mean

from . import refused
from .decoders import DECODERS
from .encoders import ENCODERS
from .hybrids import HYBRIDS
from .latent import LATENT, PRODUCTS
from .mixtures import MIXTURES
from .relative import RELATIVE
from .slots import Family, Slot
from .stored_names import Stored
from .table import TABLE
from .two_stacks import TWO_STACKS

FAMILIES = (*TABLE, *DECODERS, *MIXTURES, *ENCODERS, *RELATIVE, *LATENT, *HYBRIDS)
# Older checkpoints call the gain and bias of a norm so.
_OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))


class Refused(ModelError):
    """A type, or a config, that is not served for a reason of its own."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model's attention; of latent attention the rank of keys and values, and what heads share."""

    heads: int
    kv_heads: int
    d_head: int
    d_model: int
    d_value: int = 0
    latent: tuple[int, int] = (0, 0)

    @property
    def value(self) -> int:
        """The width of the value of a head, where it is another than that of its query."""
        return self.d_value or self.d_head

    def of(self, form: str) -> int:
        """How many heads a fused or projected axis of this form has."""
        return self.kv_heads if form == "key_value" else self.heads


@dataclass(frozen=True)
class Place:
    """One tensor of ours: its name in the checkpoint, and the slot that says how it is cut."""

    theirs: str
    slot: Slot


@dataclass(frozen=True)
class Layout:
    """All tensors of a model, by layer (None: outside the layers) and name."""

    family: Family
    sizes: Sizes
    places: Mapping[int | None, Mapping[str, Place]]
    shapes: Mapping[str, tuple[int, ...]]
    unclaimed: tuple[str, ...] = ()
    tied: bool = False
    kinds: tuple[str, ...] = ()
    mixed: tuple[bool, ...] = ()
    stored: Mapping[str, Stored] = field(default_factory=dict)

    def products(self, layer: int | None) -> dict[str, tuple[str, ...]]:
        """The tensors of a layer that are products of others, and their factors."""
        places = self.places[layer]
        known = PRODUCTS.items() if self.family.latent else ()
        return {name: factors for name, factors in known if name not in places and set(factors) <= places.keys()}

    def names(self, layer: int | None) -> tuple[str, ...]:
        """The tensors of a layer, or those outside the layers."""
        return (*self.places[layer], *self.products(layer))

    @property
    def table_of_waves(self) -> str | None:
        """The tensor that holds positions that are waves, where there is one: nothing of it is learned."""
        side = "encoder" if self.family.stack == "encoder" else "decoder"
        known = self.shapes if self.family.waves is not None else ()
        return next((name for name in known if name.endswith(f"{side}.embed_positions.weight")), None)

    @property
    def in_files(self) -> set[str]:
        """The names in the files of all tensors that are read."""
        found: set[str] = set()
        for places in self.places.values():
            for place in places.values():
                found |= set(self.stored[place.theirs].names if place.theirs in self.stored else (place.theirs,))
        return found

    def ours(self, place: Place, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Our tensor from the checkpoint's: a view of it, where neither type nor ``plus`` changes it."""
        found = self.view(place, tensor).to(dtype)
        return found + place.slot.plus if place.slot.plus else found

    def view(self, place: Place, tensor: torch.Tensor) -> torch.Tensor:
        """Our tensor as a view of the checkpoint's (without ``plus``): what is written to it, changes that."""
        slot, sizes = place.slot, self.sizes
        seen = tensor.mT if slot.turned and tensor.ndim > 1 else tensor
        if slot.form in ("query", "key_value"):
            cut = split(seen, 0, slot.form, slot.part, sizes)
            return cut.transpose(1, 2) if cut.ndim == 3 else cut
        if slot.form == "output":
            return torch.unflatten(seen, 1, (sizes.heads, sizes.value)).permute(1, 2, 0)
        if slot.form == "in_out":
            return split(seen, -2, slot.form, slot.part, sizes).mT
        if slot.form == "row":
            return seen[0]
        if slot.part:
            return split(seen, -1, slot.form, slot.part, sizes)
        return seen[slot.skip :] if slot.skip else seen

    def write(self, place: Place, stored: torch.Tensor, ours: torch.Tensor) -> torch.Tensor | None:
        """Write our tensor (without ``plus``) into the checkpoint's; its view there, if there is one.

        Heads that lie apart from each other have no view: each number goes to where the cut finds it.
        """
        view = self.view(place, stored)
        if view.untyped_storage().data_ptr() == stored.untyped_storage().data_ptr():
            return view.copy_(ours)
        where = self.view(place, torch.arange(stored.numel(), device=stored.device).view(stored.shape))
        stored.view(-1)[where.reshape(-1)] = ours.reshape(-1).to(stored)
        return None


def split(tensor: torch.Tensor, axis: int, form: str, part: str, sizes: Sizes) -> torch.Tensor:
    """Cut one axis: the part of a fused one, and heads from features where the form has heads.

    A view, but for parts that lie apart from each other ("q*" with several groups, "q4").
    """
    axis = axis % tensor.ndim
    if form in ("query", "key_value"):
        return _heads(tensor, axis, form, part, sizes)
    if "::" in part:
        index, step = map(int, part.split("::"))
        return torch.unflatten(tensor, axis, (-1, step)).select(axis + 1, index)
    if part in ("latent", "shared"):
        start = 0 if part == "latent" else sizes.latent[0]
        return tensor.narrow(axis, start, sizes.latent[part == "shared"])
    if part:
        index, count = map(int, part.split("/"))
        width = tensor.shape[axis] // count
        return tensor.narrow(axis, index * width, width)
    return tensor


def _heads(tensor: torch.Tensor, axis: int, form: str, part: str, sizes: Sizes) -> torch.Tensor:
    """An axis of features as [head, d_head]."""
    heads, kv_heads, d_head = sizes.heads, sizes.kv_heads, sizes.d_head
    letter, how = part[:1], part[1:]
    if how == "|":
        return torch.unflatten(tensor, axis, (sizes.of(form), 3, d_head)).select(axis + 1, "qkv".index(letter))
    if how == "&":
        return torch.unflatten(tensor, axis, (heads, 2, d_head)).select(axis + 1, "qg".index(letter))
    if how == "^":
        own = d_head - sizes.latent[1]
        apart = torch.unflatten(tensor, axis, (heads, own + sizes.value))
        return apart.narrow(axis + 1, 0 if letter == "k" else own, own if letter == "k" else sizes.value)
    if how == "*":
        group = heads // kv_heads
        apart = torch.unflatten(tensor, axis, (kv_heads, group + 2, d_head))
        if letter == "q":
            return apart.narrow(axis + 1, 0, group).flatten(axis, axis + 1)
        return apart.select(axis + 1, group + "kv".index(letter))
    if how:
        apart = torch.unflatten(tensor, axis, (int(how), 3, heads // int(how), d_head))
        return apart.select(axis + 1, "qvk".index(letter)).flatten(axis, axis + 1)
    if part:
        start, width = {"q": (0, heads), "k": (heads, kv_heads), "v": (heads + kv_heads, kv_heads)}[part]
        tensor = tensor.narrow(axis, start * d_head, width * d_head)
    return torch.unflatten(tensor, axis, (sizes.of(form), d_head))


def is_known(model_type: str) -> bool:
    """Whether a type is served, or refused for a reason of its own."""
    return model_type in refused.REFUSED or any(model_type in f.model_types for f in (*FAMILIES, *TWO_STACKS))


def family_of(
    config: Any, path: str, names: Iterable[str] = (), bridged: bool = False, stack: str | None = None
) -> Family:
    """The family of a config, or an error that says where the known ones are, and what nobody claims.

    The error names the loader that shows something nevertheless, unless the model is ``bridged``: opened by it. Of a
    model of two stacks ``stack`` says which.
    """
    model_type = getattr(config, "model_type", "")
    rows = [family for family in TWO_STACKS if model_type in family.model_types]
    if rows:
        return _of_stack(rows, config, path, stack)
    if stack:
        told = refused.reason(config) or f"the model type {model_type!r} is one stack of layers: leave `stack:` out"
        raise Refused(f"{path}: {told}")
    for family in FAMILIES:
        if model_type in family.model_types:
            reason = family.reason(family.refused, config)
            if reason:
                raise Refused(f"{path}: {reason}")
            return family
    reason, advice = refused.reason(config), "" if bridged else refused.advice(config)
    if reason:
        raise Refused(f"{path}: {reason}{advice}")
    near = did_you_mean(model_type, [t for f in FAMILIES for t in f.model_types])
    unclaimed = sorted(names)
    told = f"; nobody claims {_listed(unclaimed)}" if unclaimed else ""
    raise ModelError(
        f"{path}: the model type {model_type!r} is not one whose weights gausslens knows{near}; docs/models.md lists "
        f"them{advice}{told}"
    )


def _of_stack(rows: Sequence[Family], config: Any, path: str, stack: str | None) -> Family:
    """The row of a stack; what has one alone (an encoder without its decoder, or the other way round) has no others."""
    model_type = config.model_type
    alone = (getattr(config, "architectures", None) or [""])[0]
    if alone.endswith("ForCausalLM"):
        raise Refused(f"{path}: {alone} is the decoder of a {model_type} without its encoder, which no row reads")
    if stack is None:
        raise Refused(
            f"{path}: the model type {model_type!r} has two stacks of layers: say which is studied, in `model:`, "
            "`stack: encoder`, `stack: decoder` (attention of the target to itself) or `stack: cross` (to the source)"
        )
    if alone.endswith("EncoderModel") and stack != "encoder":
        raise Refused(f"{path}: {alone} has no decoder: `stack: encoder` is what it has")
    family = next(family for family in rows if family.stack == stack)
    return family if getattr(config, "tie_word_embeddings", True) else _untied(family)


def _untied(family: Family) -> Family:
    """Where nothing is tied a stack reads an embedding of its own, and nothing reads the one that stacks share."""
    shared = family.outside["W_E"]
    own = replace(shared, tensor="|".join(reversed(shared.tensor.split("|"))))
    return replace(family, outside={**family.outside, "W_E": own})


def families_of(
    config: Any,
    path: str,
    shapes: Mapping[str, tuple[int, ...]],
    headed: bool,
    stored: Mapping[str, Stored] | None = None,
    stack: str | None = None,
) -> tuple[Family, ...]:
    """The family of a config; of a type that no table names, each that its tensors could be of by names and shapes.

    Such a family has ``read_as``: it must be proved before it is used, as what its tensors do, they do not tell.
    """
    try:
        return (family_of(config, path, shapes, stack=stack),)
    except Refused:
        raise
    except ModelError as unlisted:
        name = getattr(config, "model_type", "")
        could = tuple(
            replace(family, name=f"{name}, read as {family.name} by its structure", read_as=family.name)
            for family in FAMILIES
            if _fits(family, config, shapes, path, headed, stored)
        )
        if not could:
            raise unlisted
        return could


def _fits(
    family: Family,
    config: Any,
    shapes: Mapping[str, tuple[int, ...]],
    path: str,
    headed: bool,
    stored: Mapping[str, Stored] | None,
) -> bool:
    """Whether a family's slots match all tensors of a checkpoint, and none of them is left over."""
    try:
        return not make_layout(family, config, shapes, path, headed, stored).unclaimed
    except (ModelError, AttributeError):  # a config without layers or heads is of none
        return False


def make_layout(
    family: Family,
    config: Any,
    shapes: Mapping[str, tuple[int, ...]],
    path: str,
    headed: bool,
    stored: Mapping[str, Stored] | None = None,
) -> Layout:
    """Match the tensors of a checkpoint against the table of its family; refuse what is missing, odd or unknown.

    ``headed`` says that the model has a language-model head: where the config ties it, W_U is W_E turned. ``stored``
    says under which names a file holds tensors that transformers renames or stacks on loading.
    """
    config, headed = family.viewed(config), headed and family.stack != "encoder"
    sizes = sizes_of(config)
    table, family = family, family.as_stored(shapes)
    layered, outside = _sorted_by_layer(family, shapes, path)
    n_layers = int(config.num_hidden_layers)
    places: dict[int | None, dict[str, Place]] = {}
    claimed: set[str] = set()
    kinds = tuple(family.kind(config, layer) for layer in range(n_layers))
    mixed = tuple(family.is_mixed(layered.get(layer, {})) for layer in range(n_layers))
    for layer in range(n_layers):
        slots = family.slots(kinds[layer], mixed[layer])
        places[layer] = dict(_placed(slots, layered.get(family.stored_layer(layer), {})))
        claimed |= {p.theirs for p in places[layer].values()}
    beyond = n_layers + int(getattr(config, "num_nextn_predict_layers", None) or 0)  # heads for tokens further on
    _refuse_missing(family, places, kinds, mixed, layered, beyond, path)
    tied = headed and bool(getattr(config, "tie_word_embeddings", False))
    places[None] = {}
    for ours, slot in _behind(family, config, path):
        theirs = _found(slot.tensor.split("|"), outside)
        if theirs is not None:
            places[None][ours] = Place(outside[theirs], slot)
            claimed.add(outside[theirs])
        elif ours not in family.optional or (ours == "W_U" and headed and not tied):
            raise ModelError(f"{path}: the checkpoint has no {slot.tensor} ({ours})")
    head = places[None].get("W_U")
    tied = tied and (head is None or head.theirs == places[None]["W_E"].theirs)
    if tied:
        places[None]["W_U"] = Place(places[None]["W_E"].theirs, Slot(places[None]["W_E"].slot.tensor, "in_out"))
    ignored = {n for n in shapes if any(part in n for part in family.ignored)}
    ignored |= {n for layer in range(n_layers, beyond) for n in layered.get(layer, {}).values()}
    unclaimed = tuple(sorted(set(shapes) - claimed - ignored))
    layout = Layout(table, sizes, places, shapes, unclaimed, tied, kinds, mixed, stored or {})
    _refuse_unknown(layout, layered, unclaimed, path)
    _refuse_shapes(layout, path)
    return layout


def _behind(family: Family, config: Any, path: str) -> Iterator[tuple[str, Slot]]:
    """The slots outside the layers, each with the number of rows that are nobody's."""
    for ours, slot in family.outside.items():
        if slot.behind:
            row = getattr(config, slot.behind, None)
            if row is None or int(row) < 0:
                raise ModelError(f"{path}: {slot.behind} is {row} in its config: positions begin in the row behind it")
            slot = replace(slot, skip=int(row) + 1, behind="")
        yield ours, slot


def _found(known: list[str], outside: Mapping[str, str]) -> str | None:
    """The first of these names that is there, with nothing before it or with some prefix."""
    for name in known:
        if name in outside:
            return name
        prefixed = next((n for n in outside if n.endswith(f".{name}")), None)
        if prefixed is not None:
            return prefixed
    return None


def sizes_of(config: Any) -> Sizes:
    """The sizes that a config tells; head_dim is not always hidden size over heads."""
    heads = int(config.num_attention_heads)
    d_model = int(config.hidden_size)
    if getattr(config, "kv_lora_rank", None):
        shared = int(config.qk_rope_head_dim)
        widths = int(config.qk_nope_head_dim) + shared, d_model, int(config.v_head_dim)
        return Sizes(heads, heads, *widths, (int(config.kv_lora_rank), shared))
    multi_query = getattr(config, "multi_query", None)
    if multi_query is not None and not getattr(config, "new_decoder_architecture", False):
        kv_heads = 1 if multi_query else heads
    else:
        kv_heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None) or heads
    return Sizes(heads, int(kv_heads), int(getattr(config, "head_dim", None) or d_model // heads), d_model)


def _sorted_by_layer(
    family: Family, shapes: Mapping[str, tuple[int, ...]], path: str
) -> tuple[dict[int, dict[str, str]], dict[str, str]]:
    """{layer: {name below the layer: name}} and {name: name} of the rest."""
    pattern = re.compile(rf"^(.*?\.)?{re.escape(family.layers)}\.(\d+)\.(.+)$")
    # What lies in one layer and serves all of them is outside.
    shared = tuple(s.tensor for s in family.outside.values() if s.tensor.startswith(f"{family.layers}."))
    layered: dict[int, dict[str, str]] = {}
    outside: dict[str, str] = {}
    prefixes: dict[str, str] = {}
    for name in shapes:
        match = pattern.match(name)
        if match is None or (shared and name.endswith(shared)):
            outside[_renamed(name)] = name
            continue
        prefixes.setdefault(match[1] or "", name)
        layered.setdefault(int(match[2]), {})[_renamed(match[3])] = name
    if len(prefixes) > 1:
        raise ModelError(f"{path}: the checkpoint has several stacks of layers: {', '.join(prefixes.values())}")
    return layered, outside


def _renamed(name: str) -> str:
    for old, new in _OLD_NAMES:
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _placed(slots: Mapping[str, Slot], found: Mapping[str, str]) -> Iterator[tuple[str, Place]]:
    """The places of a layer's tensors; of a fused one that the file holds in parts, each part is whole."""
    for ours, slot in slots.items():
        for theirs in slot.tensor.split("|"):
            if theirs in found:
                yield ours, Place(found[theirs], slot)
            elif f"{theirs}#{slot.part}" in found:
                yield ours, Place(found[f"{theirs}#{slot.part}"], replace(slot, part=""))


def _refuse_missing(
    family: Family,
    places: Mapping[int | None, Mapping[str, Place]],
    kinds: tuple[str, ...],
    mixed: tuple[bool, ...],
    layered: Mapping[int, Mapping[str, str]],
    beyond: int,
    path: str,
) -> None:
    sorts = list(zip(kinds, mixed, strict=True))
    anywhere = {(sorts[layer], o) for layer in range(len(kinds)) for o in places[layer]}
    missing = [
        f"{family.layers}.{layer}.{slot.tensor}"
        for layer, sort in enumerate(sorts)
        for o, slot in family.slots(*sort).items()
        if o not in places[layer] and ((sort, o) in anywhere or not family.may_lack(o, sort[1]))
        if not (layer in family.unnormed and o.startswith("ln1."))
    ]
    if missing:
        unknown = sorted(set(layered.get(0, {})) - {s.tensor for s in family.slots(*sorts[0]).values()})
        raise ModelError(f"{path}: incomplete checkpoint: {_listed(missing)} missing" + _among(unknown))
    extra = sorted(n for n in layered if n >= beyond)
    if extra:
        raise ModelError(f"{path}: the checkpoint has layer {extra[0]}, the config says {len(kinds)} layers")


def _refuse_unknown(
    layout: Layout, layered: Mapping[int, Mapping[str, str]], unclaimed: tuple[str, ...], path: str
) -> None:
    inside = {theirs for names in layered.values() for theirs in names.values()}
    unknown = [n for n in unclaimed if n in inside]
    if unknown:
        raise ModelError(
            f"{path}: not a layout of {layout.family.name} that gausslens knows; nobody claims {_listed(unknown)}"
        )


def _refuse_shapes(layout: Layout, path: str) -> None:
    """Compare shapes with the config, on meta tensors: nothing is read."""
    s = layout.sizes
    expected = {
        "W_Q": (s.heads, s.d_model, s.d_head),
        "W_K": (s.kv_heads, s.d_model, s.d_head),
        "W_V": (s.kv_heads, s.d_model, s.value),
        "W_O": (s.heads, s.value, s.d_model),
    }
    for places in layout.places.values():
        for ours, place in places.items():
            shape = layout.shapes[place.theirs]
            try:
                seen = tuple(layout.view(place, torch.empty(shape, device="meta")).shape)
            except (RuntimeError, IndexError):
                seen = ()
            if not seen or expected.get(ours, seen) != seen:
                raise ModelError(
                    f"{path}: {place.theirs} has shape {list(shape)}, which does not fit {s.heads} heads over "
                    f"{s.kv_heads} key/value heads of {s.d_head} in {s.d_model} dimensions, as the config says"
                )


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _among(unknown: list[str]) -> str:
    return f"; in layer 0 nobody claims {_listed(unknown)}" if unknown else ""
