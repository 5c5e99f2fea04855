"""LoRA adapters on disk: which tensors of a base model they change, and what these become (peft's merge_and_unload)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gausslens import InputError, ModelError, did_you_mean

from ..maths import low_rank
from .checkpoint import Checkpoint, refuse_not_finite
from .config_and_tokenizer import (
    ADAPTER,
    BUILTIN,
    HUB,
    both_in,
    directory_of_builtin,
    first_line,
    is_adapter,
    where_pretrained,
)
from .fingerprint import fingerprint

if TYPE_CHECKING:
    import torch

    from gausslens import ModelSpec

    from ..families.layout import Layout, Place

FILES = ("adapter_model.safetensors", "adapter_model.bin")
# What peft puts before the names of the base's modules.
PREFIX = "base_model.model."
# Keys of the config that are read here, or that nothing in the merged weights depends on. Any other that is set is
# refused: it names a variant of LoRA whose merged weights are others.
KNOWN = frozenset({
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying",
    "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "loftq_config", "lora_alpha", "lora_bias", "lora_dropout", "lora_ga_config",
    "megatron_core", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern",
    "revision", "target_modules", "task_type", "use_dora", "use_rslora",
})  # fmt: skip
# How A and B may have begun: of other ways (pissa, olora, corda, loftq, ...) the base's own weights are changed too.
BEGUN = (None, True, False, "gaussian", "eva", "orthogonal")
NAMED = 8
# Seconds in which a pattern must be matched: some take longer than the world with a name that they do not fit.
PATIENCE = 1.0


@dataclass(frozen=True)
class Change:
    """What an adapter does to one tensor of the base: the names in its file of what is put in place of it or added.

    ``turned`` says that A and B are of an embedding, whose rows are what a linear layer reads.
    """

    whole: str | None = None
    A: str | None = None
    B: str | None = None
    magnitude: str | None = None
    added: str | None = None
    turned: bool = False
    scale: float = 1.0


class Adapter:
    """A directory with adapter_config.json: config and headers at once, tensors when asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = _read_config(directory / ADAPTER)
        self.checkpoint = Checkpoint(directory, known=FILES)
        if not self.checkpoint.tensors:
            raise ModelError(f"{directory}: no weights beside {ADAPTER}: neither {' nor '.join(FILES)}")
        self.checkpoint.refuse_integers(self.checkpoint.tensors)
        self.changes = self._changes()

    @cached_property
    def fingerprint(self) -> str:
        """What it does to any base: of its config what sets scales, and all bytes of its tensors."""
        scales = {name: change.scale for name, change in self.changes.items()}
        return fingerprint(scales, ((n, self._read(n)) for n in sorted(self.checkpoint.tensors)))

    @cached_property
    def described(self) -> str:
        """One line: how many tensors it changes, and by which rank."""
        ranks = sorted({self.checkpoint.shapes[c.A][0] for c in self.changes.values() if c.A is not None})
        of_rank = f"rank {', '.join(map(str, ranks))}" if ranks else "no low rank"
        return f"adapter {self.directory.name}: {len(self.changes)} tensors of its base are changed ({of_rank})"

    def base(self, given: str | None) -> str:
        """The directory of the model that it is for: as the run file says, else as its config does, if that is here."""
        named = str(self.config.get("base_model_name_or_path") or "")
        told = f"{self.directory} is an adapter of {named or 'a model that it does not name'}"
        if given is None:
            here = self.directory / named
            if not named or not here.is_dir():
                raise InputError(
                    f"{told}, which is no directory here: say in the model block where that is, `base: DIR` (or, to "
                    f"get it from the network, `base: {HUB}{named or 'OWNER/NAME'}`)"
                )
            given = str(here.resolve())
        if Path(given).is_dir() and is_adapter(Path(given)):
            raise InputError(f"{told}; {given}, its base, is itself an adapter: merge that first")
        return given

    def placed(self, layout: Layout, path: str) -> dict[str, Change]:
        """{tensor of the base: change}; an error where the base has none of that name, or one of another shape.

        The base may be saved with its language-model head or without: names then differ by what stands before them.
        Of a base of two stacks they are tensors of both, whichever is studied: the stack that is read reads the other.
        """
        places: dict[str, Place | None] = dict.fromkeys(layout.shapes) if layout.family.stack else {}
        places |= {p.theirs: p for places in layout.places.values() for p in places.values()}
        found: dict[str, Change] = {}
        for name, change in self.changes.items():
            theirs = same_tensor(name, places)
            if layout.tied and (theirs is None or theirs == layout.places[None]["W_E"].theirs):
                self._refuse_tied(name, theirs)
            if theirs is None:
                raise ModelError(
                    f"{self.directory}: it changes {name} {list(self._shape(change))}, and {path} has no such tensor"
                    f"{_among(name, places, layout.shapes)}: is this the model that it was trained on?"
                )
            self._refuse_other_shape(name, change, places[theirs], layout.shapes[theirs], path)
            found[theirs] = change
        return found

    def changed(self, change: Change, tensor: torch.Tensor, place: Place | None) -> torch.Tensor:
        """The tensor of the base as the adapter leaves it, in its type; ``place`` is where it is studied."""
        import torch

        if change.whole is not None:
            tensor = self._finite(change.whole).to(tensor)
        found = tensor
        if change.A is not None and change.B is not None:
            turned = change.turned or _is_turned(place)
            seen = tensor.mT if turned else tensor
            seen = low_rank.changed(seen, self._finite(change.A), self._finite(change.B), change.scale)
            if change.magnitude is not None:
                seen = low_rank.with_magnitude(seen, self._finite(change.magnitude))
            found = seen.mT if turned else seen
        if change.added is not None:
            found = tensor + change.scale * self._finite(change.added).to(tensor)
        made = found.to(tensor.dtype).contiguous()
        if not bool(torch.isfinite(made).all()) and bool(torch.isfinite(tensor).all()):
            part = change.A or change.added or change.whole
            raise ModelError(
                f"{self.checkpoint.tensors[str(part)].file}: {part}, scaled by {change.scale:.3g} (lora_alpha and r in "
                f"{ADAPTER}), makes numbers that are NaN or infinite in {made.dtype}"
            )
        return made

    def _read(self, name: str) -> torch.Tensor:
        return self.checkpoint.read(name)

    def _finite(self, name: str) -> torch.Tensor:
        found = self._read(name)
        refuse_not_finite(str(self.directory), [(name, found)])
        return found

    def _changes(self) -> dict[str, Change]:
        """{name of a tensor of the base: change}, from the names in the file."""
        found: dict[str, Change] = {}
        for key in self.checkpoint.tensors:
            module, part = _parted(key.removeprefix(PREFIX))
            if part is None:
                name, told = module.replace(".base_layer.", "."), {"whole": key}
            elif part in ("B.bias", "bias"):
                name, told = f"{module}.bias", {"added": key}
            else:
                name, told = f"{module}.weight", {"magnitude" if part == "magnitude" else part[-1]: key}
            change: Change = replace(found.get(name, Change()), **told)  # type: ignore[arg-type]
            if part is not None:
                rank, alpha = (
                    self._pattern("rank_pattern", "r", module),
                    self._pattern("alpha_pattern", "lora_alpha", module),
                )
                scale = low_rank.scale_of(alpha, int(rank), bool(self.config.get("use_rslora")))
                change = replace(change, scale=scale, turned=change.turned or part.startswith("embedding"))
            found[name] = change
        for name, change in found.items():
            self._refuse_parts(name, change)
        return found

    def _pattern(self, patterns: str, default: str, module: str) -> float:
        """Rank or alpha of a module: that of the first pattern that its name ends with, else that of all."""
        known: Mapping[str, Any] = self.config.get(patterns) or {}
        file = self.directory / ADAPTER
        if not isinstance(known, Mapping):
            raise ModelError(f"{file}: {patterns} is {known!r}: it is a table of patterns and numbers")
        value = next((v for k, v in known.items() if _ends_as(k, module, file)), self.config.get(default, 8))
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise ModelError(f"{file}: {default} of {module} is {value!r}: it is a number above 0")
        return float(value)

    def _refuse_parts(self, name: str, change: Change) -> None:
        """A and B belong together and have one rank, that of the config."""
        if change.A is None and change.B is None and change.magnitude is None:
            return
        module = name.removesuffix(".weight")
        if change.A is None or change.B is None:
            raise ModelError(f"{self.directory}: incomplete adapter: lora_A and lora_B of {module} are not both there")
        if change.magnitude is not None and change.turned:
            raise ModelError(f"{self.directory}: {module} is an embedding with a magnitude (DoRA), which is not served")
        A, B = (self.checkpoint.shapes[n] for n in (change.A, change.B))
        rank = int(self._pattern("rank_pattern", "r", module))
        if len(A) != 2 or len(B) != 2 or A[0] != B[1]:
            raise ModelError(f"{self.directory}: lora_A {list(A)} and lora_B {list(B)} of {module} make no matrix")
        if A[0] != rank:
            raise ModelError(f"{self.directory}: lora_A of {module} is {list(A)}, its rank in {ADAPTER} {rank}")

    def _shape(self, change: Change) -> tuple[int, ...]:
        """The shape of what it changes, as a linear layer or an embedding stores that."""
        shapes = self.checkpoint.shapes
        if change.A is not None and change.B is not None:
            made = (shapes[change.B][0], shapes[change.A][1])
            return made[::-1] if change.turned else made
        return shapes[change.whole or change.added or ""]

    def _refuse_other_shape(
        self, name: str, change: Change, place: Place | None, shape: tuple[int, ...], path: str
    ) -> None:
        made = self._shape(change)
        if change.A is not None and _is_turned(place):
            made = made[::-1]
        for found in (made, *([self.checkpoint.shapes[change.whole]] if change.whole else [])):
            if found != shape:
                raise ModelError(
                    f"{self.directory}: it changes {name} {list(found)}, which in {path} is {list(shape)}: is this "
                    "the model that it was trained on, with the same vocabulary?"
                )

    def _refuse_tied(self, name: str, theirs: str | None) -> None:
        """An adapter of the embedding alone would, merged, change the head as well, and the other way round."""
        if theirs is not None or "lm_head" in name:
            raise ModelError(
                f"{self.directory}: it changes {name}, and its base has one tensor for embedding and head "
                "(tie_word_embeddings): merged it would change both; merge it with peft, untie the two, and "
                "save_pretrained() the result"
            )


def adapter_of(spec: ModelSpec) -> tuple[ModelSpec, Adapter | None]:
    """What a spec opens: of the directory of an adapter its base, and the adapter."""
    if spec.model is not None or not (spec.path.startswith(HUB) or Path(spec.path).is_dir()):
        return spec, None
    given = getattr(spec.parameters, "base", None)
    directory = Path(where_pretrained(spec)[0])
    if not is_adapter(directory):
        if given is not None and (directory / ADAPTER).is_file():
            raise ModelError(both_in(directory))
        if given is not None:
            raise InputError(f"{spec.path} is no adapter (it has no {ADAPTER} of its own): leave `base` out")
        return spec, None
    if getattr(spec.parameters, "gguf_file", None):
        raise InputError(f"{spec.path} is an adapter: its base is a directory, no GGUF file")
    adapter = Adapter(directory)
    place = adapter.base(given)
    base = replace(spec, path=str(directory_of_builtin(place)) if place.startswith(BUILTIN) else place)
    if not base.path.startswith(HUB) and not Path(base.path).is_dir():
        raise InputError(f"base: {base.path} is no directory with a model")
    return base, adapter


def adapter_at(directory: str) -> Adapter:
    """The adapter of a directory, read once while its files are the same."""
    path = Path(directory)
    if not (path / ADAPTER).is_file():
        raise InputError(f"{directory} is no adapter: it has no {ADAPTER}")
    marks = tuple((f.name, *(f.stat().st_size, f.stat().st_mtime_ns)) for f in sorted(path.glob("adapter_*")))
    return _cached(path, marks)


@lru_cache(maxsize=4)
def _cached(directory: Path, marks: object) -> Adapter:  # noqa: ARG001
    return Adapter(directory)


def _read_config(file: Path) -> dict[str, Any]:
    """The config of an adapter; what is no LoRA, or one of a kind that merges otherwise, is refused by name."""
    try:
        config = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file}: cannot be read: {first_line(error)}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file}: holds a {type(config).__name__}, not the settings of an adapter by name")
    kind = config.get("peft_type")
    merge = "merge it into its base with peft (merge_and_unload) and save_pretrained() that to a new directory"
    if kind != "LORA":
        raise ModelError(f"{file}: holds an adapter of type {kind}, which is not LORA: {merge}, if it can be merged")
    other = sorted(key for key, value in config.items() if value and key not in KNOWN)
    if other:
        raise ModelError(f"{file}: is a LoRA with {', '.join(other[:NAMED])}, which gausslens does not know: {merge}")
    begun = config.get("init_lora_weights")
    if begun not in BEGUN:
        raise ModelError(
            f"{file}: is a LoRA that began with init_lora_weights: {begun!r}, which changes the weights of its base: "
            f"convert it to a plain one (peft's path_initial_model_for_weight_conversion), or {merge}"
        )
    return dict(config)


def _ends_as(pattern: str, module: str, file: Path) -> bool:
    """Whether a module's name ends so, at a dot, as peft asks; ``regex`` can be stopped, ``re`` cannot."""
    import regex

    try:
        return regex.match(rf"(.*\.)?({pattern})$", module, timeout=PATIENCE) is not None
    except TimeoutError:
        why = f"is not matched with {module} in {PATIENCE:g} s: write it simpler"
    except regex.error as error:
        why = f"is no regular expression: {error}"
    raise ModelError(f"{file}: the pattern {pattern[: NAMED * NAMED]!r} {why}")


def _parted(key: str) -> tuple[str, str | None]:
    """(module, part) of a tensor in the file of an adapter: "A", "B", ...; or (name, None) of one that is whole."""
    found = re.fullmatch(r"(.+)\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)(\.weight|\.bias)?", key)
    if found is None:
        if "lora_" in key or "trainable_tokens" in key or "modules_to_save" in key:
            raise ModelError(f"{key}: an adapter's tensor that gausslens does not know")
        return key, None
    part = {"magnitude_vector": "magnitude"}.get(found[2], found[2])
    return found[1], f"{part}.bias" if found[3] == ".bias" else part


def _is_turned(place: Place | None) -> bool:
    """Whether the base stores it as [reads, writes]; the stack of two that is not studied has linear layers alone."""
    return place is not None and place.slot.turned


def same_tensor(name: str, places: Iterable[str]) -> str | None:
    """The tensor of that name, or with more or fewer modules before it."""
    known = set(places)
    if name in known:
        return name
    ends = [n for n in known if n.endswith(f".{name}") or name.endswith(f".{n}")]
    return ends[0] if len(ends) == 1 else None


def _among(name: str, places: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """What is meant, perhaps, with its shape; or that it is there and no site goes through it."""
    if name in shapes:
        return " that a site goes through"
    near = did_you_mean(name, list(places))
    return f" ({near.lstrip(':; ')})" if near else ""
