"""Loader `transformers`: local directories, GGUF files, hub ids and live modules, run by plain transformers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gausslens import HEAD_AXIS, KV_HEAD_AXIS, SITES, ModelError, ModelSpec, site

from ..families.layout import Layout, Place, families_of, make_layout
from ..families.refused import advice
from ..families.slots import STREAM
from .adapter import adapter_of, same_tensor
from .checkpoint import Checkpoint, refuse_not_finite
from .code_of_module import digest_of_hooks, is_constant, parts, put_parts
from .config_and_tokenizer import (
    LIVE,
    directory_of_builtin,
    quiet_transformers,
    read_config,
    refuse_quantised,
    where_pretrained,
)
from .fingerprint import fingerprint, of_stack
from .skeleton import BUFFERS, NO_SITE, by_transformers, tensor_of, tensors_of
from .turns import turn_of
from .weights import CheckpointModel

if TYPE_CHECKING:
    import torch

    from gausslens import Twin

    from ..capture.by_layer import ByLayer
    from ..families.slots import Family, Tap
    from .adapter import Adapter

# Bytes of a block of the vocabulary, where memory has room for it.
BLOCK = 2**25


class PretrainedModel(CheckpointModel):
    """A model that can run. Weights are read from files until the module is built, from the module afterwards."""

    attention: str | None = None  # the implementation to build with; None leaves it to the checkpoint

    def __init__(self, spec: ModelSpec, name: str | None = None, adapter: Adapter | None = None) -> None:
        self._module: Any = spec.model
        self._looked_at: set[str] = set()  # parameters that were seen to be finite
        self.absent: frozenset[str] = frozenset()  # parameters that no file has: transformers drew them
        self.by_layer: ByLayer | None = None  # where its weights are read a part at a time
        super().__init__(spec, name, adapter)

    @property
    def module(self) -> Any:
        """The transformers model, built when first asked for."""
        if self._module is None and self.exceeds:
            from ..capture.by_layer import ByLayer

            self.by_layer = ByLayer(self)
            self._module = self.by_layer.module
            self.by_layer.watch()
        elif self._module is None:
            self._module = self._load()
            self._hold_against_files(self._module)
            self.merge_adapter(self._module)
        return self._module

    @property
    def exceeds(self) -> bool:
        """Whether its weights are more than the memory that they may take: they are then read a part at a time."""
        most = self.spec.max_memory
        if most is None or self.spec.model is not None:
            return False
        return self.info.weight_bytes * (1 + self.spec.twins) > most

    @property
    def room(self) -> int:
        """What streams between layers may take of the memory: half of what its largest part leaves."""
        if self.by_layer is None or self.spec.max_memory is None:
            return 0
        return max(0, self.spec.max_memory - self.by_layer.held()[0]) // 2

    @property
    def room_for_block(self) -> int:
        """And what a block of embedding or head and of logits may take: as much as layers do, which are not there then.

        Where a layer is small, it may be larger: many small blocks take longer.
        """
        if self.by_layer is None or self.spec.max_memory is None:
            return 0
        held, _ = self.by_layer.held()
        return max(0, min(self.spec.max_memory - self.room, max(held, BLOCK)) - self.by_layer.bytes(self.by_layer.rest))

    @cached_property
    def module_layout(self) -> Layout:
        """Where our tensors are in the module: its parameters' names may have another prefix than the files'."""
        return make_layout(self.layout.family, self.config, self._shapes(), self.spec.path, self.headed)

    @property
    def headed(self) -> bool:
        """Whether there is a language-model head."""
        if self.spec.model is not None:
            return self.stack != "encoder" and self.spec.model.get_output_embeddings() is not None
        return super().headed

    def tensor(self, layer: int | None, name: str) -> torch.Tensor:
        """One tensor: of the module where it is in memory, else of the files."""
        if self.by_layer is not None and (layer is None or self.by_layer.serving != layer):
            return super().tensor(layer, name)
        if (self._module is None and self.checkpoint is not None) or name in self.layout.products(layer):
            return super().tensor(layer, name)
        layout = self.module_layout
        place = layout.places[layer][name]
        theirs = self.parameter(place.theirs)
        if theirs.is_meta:  # device_map left it on disk
            return super().tensor(layer, name)
        if place.theirs not in self._looked_at:
            refuse_not_finite(self.spec.path, [(place.theirs, theirs)])
            self._looked_at.add(place.theirs)
        return layout.ours(place, theirs, theirs.dtype)

    def _stored(self, name: str) -> torch.Tensor:
        """A tensor from the file; of those outside the layers each once, while edits of them are made."""
        kept = None if self.by_layer is None else self.by_layer.outside
        if kept is None or all(place.theirs != name for place in self.layout.places[None].values()):
            return super()._stored(name)
        if name not in kept:
            kept[name] = super()._stored(name).to(self.dtype)
        return kept[name]

    def waves(self) -> torch.Tensor | None:
        """The table of positions that are waves, of the checkpoint, else of the module."""
        name = self.layout.table_of_waves
        return super().waves() if self.checkpoint is not None or name is None else self.parameter(name)

    def parameter(self, name: str) -> torch.Tensor:
        """A parameter of the module by its name."""
        with turn_of(self.module):  # a pass of another thread may have exchanged it
            return tensor_of(self.module, name).detach()

    def check_finite(self) -> None:
        """Refuse a module that has NaN or infinite parameters, by name: it would run all the same."""
        refuse_not_finite(self.spec.path, self.module.named_parameters())

    def owners(self) -> Owners:
        """Which modules of the studied stack hold each parameter."""
        return owners_of(self.module, others=self._other_stack())

    @property
    def body(self) -> Any:
        """The module of the stack whose layers are studied; of a model of one stack all of it."""
        module = self.module
        return (
            module if self.stack is None else module.get_encoder() if self.stack == "encoder" else module.get_decoder()
        )

    def _other_stack(self) -> Any:
        """The modules of the stack that is not studied."""
        if self.stack is None:
            return ()
        other = self.module.get_decoder() if self.stack == "encoder" else self.module.get_encoder()
        return () if other is self.body else other.modules()

    def place_to_edit(self, layer: int | None, name: str) -> Place:
        """Where an edit of ours is written into the module, or why it is not."""
        factors = self.module_layout.products(layer).get(name)
        if factors is not None:
            raise ModelError(
                f"{self.name}: {name} is a product: no edit of it reaches the model that runs; edit its factors "
                f"{', '.join(factors)}"
            )
        place = self.module_layout.places[layer][name]
        self.check_editable(place, name)
        return place

    def check_editable(self, place: Place, name: str) -> None:
        """Refuse edits that would not reach the model that runs: here all do."""

    @property
    def device(self) -> torch.device:
        """Where token numbers go in."""
        if self.exceeds:
            import torch

            return torch.device(self.spec.device)
        weight: torch.Tensor = self.module.get_input_embeddings().weight
        return weight.device

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The sites that some layer has, and those of the whole model."""
        lost = [set(self.info.lacking.get(n, {})) for n in self.info.layers]
        everywhere = set.intersection(*lost) if lost else set()
        return tuple(name for name in SITES if name not in everywhere and self._shows(name))

    def _shows(self, name: str) -> bool:
        if site(name).whole:
            return name != "logits" or self.headed
        # What has heads and is seen at no module, the attention function sees.
        return name in self.taps or (self.layout.family.watched and (name in HEAD_AXIS or name in KV_HEAD_AXIS))

    @cached_property
    def taps(self) -> dict[str, Tap]:
        """Where the sites of a layer are seen."""
        found = STREAM | self.layout.family.taps
        for key, value, taps, _ in self.layout.family.when:
            if getattr(self.config, key, None) == value:
                found |= taps
        return found

    @property
    def embedding(self) -> Any:
        """The module whose output the stream starts from: the embedding, or what widens it."""
        places = self.module_layout.places[None]
        if "W_project_in" in places:
            return self.module.get_submodule(places["W_project_in"].theirs.removesuffix(".weight"))
        return self.body.get_input_embeddings()

    def layer_module(self, layer: int) -> Any:
        """The module of a layer."""
        theirs = next(iter(self.module_layout.places[layer].values())).theirs
        family = self.module_layout.family
        stack = f"{family.layers}.{family.stored_layer(layer)}."
        head, _, _ = theirs.partition(stack)
        return self.module.get_submodule((head + stack).rstrip("."))

    def save(self, directory: Path, twin: Twin) -> str:
        """Write a twin into an empty directory, as a checkpoint of transformers; the fingerprint of what is there."""
        from .writing import write_twin

        return write_twin(self, directory, twin)

    def held(self) -> Mapping[str, torch.Tensor]:
        """The tensors of the module, where it is in memory: closing it has them read again."""
        if self._module is None or self.by_layer is not None:
            return {}
        constant = [(path, one) for path, one in self._module.named_modules() if is_constant(one)]
        buffers = {f"{path}.{leaf}": b for path, one in constant for leaf, b in one._buffers.items() if b is not None}
        return tensors_of(self._module) | buffers

    def code(self) -> Mapping[str, Any]:
        """What the module computes with beside its tensors, where it is in memory; which module it is, too."""
        if self._module is None or self.by_layer is not None:
            return {}
        return {"object": id(self._module), **parts(self._module)}

    def put_code(self, before: Mapping[str, Any]) -> None:
        """Put back what ``code`` gave before, of a module that is not read from files."""
        put_parts(self._module, {name: value for name, value in before.items() if name != "object"})

    def close(self) -> None:
        """Let go of the module."""
        super().close()
        self._module, self.by_layer = self.spec.model, None
        self.__dict__.pop("module_layout", None)

    def model_class(self) -> Any:
        """The class of the module, or the one that would be built."""
        return type(self.spec.model) if self.spec.model is not None else super().model_class()

    def _config(self) -> Any:
        return self.spec.model.config if self.spec.model is not None else read_config(self.spec)

    def _checkpoint(self) -> Checkpoint | None:
        if self.spec.model is not None or self._is_gguf():
            return None
        return super()._checkpoint()

    def _layout(self) -> Layout:
        if self.checkpoint is not None:
            return super()._layout()
        self.families = families_of(self.config, self.spec.path, self._shapes(), self.headed, stack=self.stack)
        return make_layout(self.families[0], self.config, self._shapes(), self.spec.path, self.headed)

    def read_as(self, family: Family) -> None:
        """Read the tensors by the table of another family."""
        layout = self.layout
        found = make_layout(family, self.config, layout.shapes, self.spec.path, self.headed, layout.stored)
        self.layout = found if self.checkpoint is None else self._held_against_class(found)
        for made in ("info", "sites", "taps", "module_layout"):
            self.__dict__.pop(made, None)

    def _fingerprint(self) -> str:
        if self.checkpoint is not None:
            return super()._fingerprint()
        return of_stack(module_fingerprint(self.module), self.stack)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {n: tuple(p.shape) for n, p in tensors_of(self.module).items()}

    def _is_gguf(self) -> bool:
        return Path(self.spec.path).suffix == ".gguf" or bool(getattr(self.spec.parameters, "gguf_file", None))

    def _load(self) -> Any:
        module, self.absent = self.built(self.model_class())
        return module

    def built(self, model_class: Any) -> tuple[Any, frozenset[str]]:
        """A module of a class with the tensors of the files, and the names of those that no file has."""
        import torch

        name, arguments = where_pretrained(self.spec)
        arguments |= {} if self.text is None else self.text.arguments
        device_map = getattr(self.spec.parameters, "device_map", None)
        layout = self.__dict__.get("layout")  # a GGUF file is laid out as the module that is made of it
        with by_transformers(self.spec.path, "load this model"):
            module, report = model_class.from_pretrained(
                name,
                dtype=self.dtype,
                device_map=device_map,
                # What cannot be watched is seen in eager attention, and some families choose it when they are built.
                attn_implementation=self.attention or ("eager" if layout and not layout.family.watched else None),
                output_loading_info=True,
                variant=self.checkpoint.variant if self.checkpoint is not None else None,
                **arguments,
            )
        if self.text is not None:
            self.text.forget_prefixes(module)
        absent = frozenset(map(str, report.get("missing_keys") or ()))
        self._refuse_lost(report, layout)
        if self.dtype is torch.float64:  # the other implementations of experts multiply nothing wider than float32
            with quiet_transformers():
                module.set_experts_implementation("eager")
        module.eval().requires_grad_(False)
        return module if device_map else module.to(self.spec.device), absent

    def _refuse_lost(self, report: Mapping[str, Any], layout: Layout | None) -> None:
        """Tensors that sites go through and no file has."""
        waves = layout is not None and "embed_positions" in layout.family.ignored  # the class makes them itself
        unread = (*NO_SITE, "embed_positions") if waves else NO_SITE
        for what in ("missing_keys", "mismatched_keys"):
            needed = sorted(str(n) for n in report.get(what) or () if not any(part in str(n) for part in unread))
            if needed:
                found = ", ".join(needed[:8])
                raise ModelError(f"{self.spec.path}: {what.replace('_keys', '')} in the checkpoint: {found}")

    def _hold_against_files(self, module: Any) -> None:
        """What was loaded must be what the headers were read of: rows of each tensor are compared."""
        if self.checkpoint is None or "layout" not in vars(self):
            return
        loaded = self.module_layout
        shapes = loaded.shapes
        theirs = {
            place.theirs: loaded.places[layer][ours].theirs
            for layer, places in self.layout.places.items()
            for ours, place in places.items()
            if ours in loaded.places[layer] and place.slot == loaded.places[layer][ours].slot
        }
        same = {n for n, m in theirs.items() if n in self.checkpoint.tensors and self.layout.shapes[n] == shapes[m]}
        parameters = tensors_of(module)
        for name, start, rows in self.checkpoint.samples(same):
            parameter = parameters[theirs[name]]
            held = parameter if parameter.is_meta else parameter[start : start + len(rows)].cpu()
            if not parameter.is_meta and not held.allclose(rows.to(held), rtol=0, atol=0, equal_nan=True):
                file = self.checkpoint.tensors[name].file.name
                raise ModelError(
                    f"{self.spec.path}: {name} of {file} is not what transformers loaded: it has read another file, or "
                    "the files have changed since they were looked at"
                )

    def merge_adapter(self, module: Any, names: Collection[str] | None = None) -> None:
        """Put what the adapter makes of the base's tensors (of these names) into the module, which has the base's."""
        if self.adapter is None:
            return
        places = {
            place.theirs: (place, self.module_layout.places[layer][ours].theirs)
            for layer, placed in self.layout.places.items()
            for ours, place in placed.items()
        }
        parameters = dict(module.named_parameters())
        for theirs, change in self.changes.items():
            # Of two stacks the one that is not studied has no places: its names are the file's.
            place, name = places.get(theirs) or (None, same_tensor(theirs, parameters))
            if names is not None and name not in names:
                continue
            parameter = parameters[str(name)]
            if parameter.is_meta:
                raise ModelError(f"{theirs} is not in memory (device_map): an adapter needs all weights there")
            parameter.data.copy_(self.adapter.changed(change, parameter.data, place))


def open_pretrained(spec: ModelSpec) -> PretrainedModel:
    """Open a directory, a GGUF file, a hub id, or a live module passed from Python."""
    if spec.path.startswith(LIVE) and spec.model is None:
        raise ModelError(f"{spec.path} stands for a model passed from Python: give it as model=")
    spec, adapter = adapter_of(spec)
    model = LiveModel(spec) if spec.model is not None else PretrainedModel(spec, adapter=adapter)
    if model.layout.family.read_as:
        _prove_reading(model)
    return model


def _prove_reading(model: PretrainedModel) -> None:
    """Of a type that no table names: take the first family that is proved to say what the model computes, or refuse."""
    from ..capture.engine import TransformersEngine

    failed = []
    for family in model.families:
        try:
            model.read_as(family)
            wrong = [f for f in TransformersEngine().prove(model) if not f.holds]
        except (ModelError, RuntimeError, AttributeError, KeyError) as error:
            failed.append(f"{family.read_as}: {str(error).splitlines()[0]}")
            continue
        if not wrong:
            return
        failed.append(f"{family.read_as}: {wrong[0].what} differs by {wrong[0].difference:.2g}")
    name = getattr(model.config, "model_type", "")
    raise ModelError(
        f"{model.spec.path}: no table names the model type {name!r}; its tensors are laid out as in others, but what "
        f"it computes is not what these would ({'; '.join(failed[:4])}){advice(model.config)}"
    )


def open_builtin(spec: ModelSpec) -> PretrainedModel:
    """Open a model that comes with gausslens, by its name."""
    return PretrainedModel(replace(spec, path=str(directory_of_builtin(spec.path))), spec.path)


class LiveModel(PretrainedModel):
    """A module that the caller holds; it is never changed for longer than a run, and never let go of."""

    def __init__(self, spec: ModelSpec) -> None:
        import torch

        if not isinstance(spec.model, torch.nn.Module) or not hasattr(spec.model, "config"):
            plain = isinstance(spec.model, torch.nn.Module)
            said = ", or say with mapping= where it has what (docs/models.md, A plain torch module)" if plain else ""
            raise ModelError(f"{type(spec.model).__name__} is not a transformers model: pass one, or a directory{said}")
        refuse_quantised(spec.model.config, spec.path)
        _refuse_not_itself(spec.model, spec.path)
        super().__init__(spec)
        self.dtype = next(spec.model.parameters()).dtype


def _refuse_not_itself(module: Any, path: str) -> None:
    """Refuse a module that is compiled, whose layers peft has wrapped, or whose tensors are elsewhere."""
    if hasattr(module, "_orig_mod"):
        raise ModelError(f"{path}: is compiled, and nothing can be seen in it: pass what was, its _orig_mod")
    found = next((name for name, _ in module.named_parameters() if ".lora_" in name or ".base_layer." in name), None)
    if found is not None:
        raise ModelError(
            f"{path}: holds an adapter that is not merged ({found}): pass what its merge_and_unload() gives, or save "
            "it with save_pretrained(DIR) and open that, as `model: {path: DIR, base: ...}` or as the edit model.lora"
        )
    empty = next((name for name, parameter in module.named_parameters() if parameter.is_meta), None)
    if empty is not None:
        raise ModelError(f"{path}: {empty} is not in memory (on the device meta): load the module whole")


def module_fingerprint(module: Any) -> str:
    """The fingerprint of a module in memory: its config, its parameters, and hooks that the caller hung on it."""
    with turn_of(module):
        parameters = sorted(module.named_parameters(), key=lambda item: item[0])
        hooks = digest_of_hooks(module)
    return fingerprint(module.config.to_dict() | hooks, parameters)


@dataclass(frozen=True)
class Owners:
    """Which modules hold each parameter (several where it is tied), and which of them is the head."""

    holding: Mapping[str, Sequence[tuple[torch.nn.Module, str]]]
    head: Any

    def of(self, name: str, role: str) -> list[tuple[torch.nn.Module, str]]:
        """Who holds a parameter: all, or as W_U the head alone, or as W_E all others."""
        return [(m, leaf) for m, leaf in self.holding[name] if not role or (m is self.head) == (role == "W_U")]


def owners_of(module: Any, head: Any = None, others: Iterable[Any] = ()) -> Owners:
    """Every module that holds a parameter, under each of its names; the head is given, or transformers knows it.

    The ``others`` are left out: an edit does not reach them.
    """
    by_parameter: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    names: dict[str, int] = {}
    out = set(others)
    for path, owner in module.named_modules():
        if owner in out:
            continue
        for leaf in BUFFERS & owner._buffers.keys():
            name = f"{path}.{leaf}" if path else leaf
            by_parameter[id(owner._buffers[leaf])], names[name] = [(owner, leaf)], id(owner._buffers[leaf])
        for leaf, parameter in owner._parameters.items():
            if parameter is not None:
                by_parameter.setdefault(id(parameter), []).append((owner, leaf))
                names[f"{path}.{leaf}" if path else leaf] = id(parameter)
    head = module.get_output_embeddings() if head is None and hasattr(module, "get_output_embeddings") else head
    return Owners({name: by_parameter[key] for name, key in names.items()}, head)
