"""The blocks of a run file: the host's own keys of each, and the names and parameters of plugins that they hold."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ..contract.digests_and_seeds import canonical
from ..contract.errors import near
from ..contract.parameters import NO_PATH, Parameters, former_names
from ..contract.reference import resolve
from ..guard import Guard
from ..plugins.host import in_one_line
from ..runs.study import WHOLE_RUN as WHOLE_RUN
from .check_parameters import checked, names_at, with_current_names
from .nodes import Node
from .problems import Problems, RunFileErrors, instead, shortened
from .wording import name_pattern

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..contract.descriptors import Owned
    from ..plugins.host import Host

FORMAT = 1
MOST_DRAWS = 10_000
GROUPS = 10  # of prompts, of which one at a time is left out for errors
NAME_WORDS = "a name of 1 to 100 letters, digits, '-' and '_'"
NAME = name_pattern(r"^[A-Za-z0-9_-]{1,100}$", NAME_WORDS)
LABEL = name_pattern(
    r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}$", "a label of 1 to 100 letters, digits, '-', '_' and '.', not first"
)
DEVICE = name_pattern(r"^(cpu|cuda|mps|xpu)(:[0-9]+)?$", "cpu, cuda, cuda:1, mps or xpu")
UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE = name_pattern(r"^[0-9]+(\.[0-9]+)? ?(kB|MB|GB|TB|KiB|MiB|GiB|TiB)$", "a size, as 8GB, 500MB or 1.5GiB")
Dtype = Literal["float32", "float64", "float16", "bfloat16"]
Index = Annotated[int, Field(ge=0)]
LAYERS = "Only these layers; all where it is left out."
HEADS = "Only these heads; all where it is left out."
LIMIT = "Seconds that the plugin code of a step may take: a step that takes longer fails, the others go on; else none."
# Where a name of each kind belongs, when it is used in the wrong place.
BELONGS = {
    "analysis": "it belongs under analyses: {{use: {name}}}",
    "edit": "it belongs under variants: [{{edit: {name}}}]",
    "loader": "it belongs under model: {{loader: {name}}}",
    "source": "it belongs under prompts: {{source: {name}}}",
}


class Block(BaseModel):
    """A table of the host: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class ErrorsBlock(Block):
    """How errors over prompts are made."""

    groups: int = Field(
        GROUPS, ge=2, le=100, description="Prompts are dealt into so many groups, which are left out one at a time."
    )


class RunBlock(Block):
    """A whole run file."""

    gausslens: int = Field(description="The format of this file: 1.")
    name: str | None = Field(
        None, pattern=NAME, description="What the run is called in the store; else as the file is called."
    )
    seed: int = Field(0, ge=0, description="All randomness of the run comes from it.")
    model: dict[str, Any] = Field(description="The model: its path, and how to open it.")
    prompts: dict[str, Any] | None = Field(None, description="What the model reads: a source and its parameters.")
    variants: dict[str, Any] = Field(
        {"trained": []}, min_length=1, description="The model and its edited twins, by name: each a list of edits."
    )
    analyses: list[Any] = Field(min_length=1, description="What to compute.")
    against: Any = Field(
        None, description="The variant, or variants, of several draws that the others are compared with."
    )
    errors: ErrorsBlock | Literal[False] | None = Field(
        None, description="Errors over prompts of stream analyses: on where there are as many prompts; false: none."
    )
    limit: float | None = Field(None, gt=0, description=LIMIT)
    max_memory: str | None = Field(
        None,
        pattern=SIZE,
        description="What weights and streams between layers may take, as 8GB: models that are larger, or whose twins "
        "are, are read a layer at a time; else all are held.",
    )
    report: bool = Field(True, description="Write the report page after the run.")

    @property
    def memory_bytes(self) -> int | None:
        """``max_memory`` in bytes."""
        if self.max_memory is None:
            return None
        number, unit = re.fullmatch(r"([0-9.]+) ?(\w+)", self.max_memory).groups()  # type: ignore[union-attr]
        return int(float(number) * UNITS[unit])

    @field_validator("gausslens")
    @classmethod
    def _is_known(cls, value: int) -> int:
        if value > FORMAT:
            raise ValueError(
                f"this file is of format {value}, and this gausslens reads format {FORMAT}: update gausslens"
            )
        if value < FORMAT:
            raise ValueError(f"there is no format {value}: write {FORMAT}")
        return value


class ModelBlock(Block):
    """The host's keys of `model:`."""

    path: str = Field(min_length=1, description="A directory, or builtin:NAME, or hub:OWNER/NAME@REVISION.")
    loader: str = Field("auto", description="What opens it; auto takes the first that claims the path.")
    dtype: Dtype | None = Field(None, description="What to compute in; else the checkpoint's own.")
    device: str = Field("cpu", pattern=DEVICE, description="Where to compute.")


class PromptsBlock(Block):
    """The host's keys of `prompts:`."""

    source: str = Field(description="Where the prompts come from.")


class ShuffleBlock(Block):
    """The `prompts: {shuffle: ...}` of a variant: a null of the text."""

    shuffle: Literal["tokens", "words", "documents", "frequency"] = Field(
        description="tokens and words change places, documents swap stretches of text between prompts, frequency draws "
        "each token by how often it occurs."
    )
    within: Literal["segment", "prompt", "all"] | None = Field(
        None,
        description="Within what tokens and words change places, or frequencies are counted: each segment of a prompt, "
        "each prompt, or all prompts; else prompt, for frequency all.",
    )
    segments: list[str] = Field(
        [], description="Only text of these segments, with * as wildcard: [answer]; [] is all. documents needs some."
    )


class VariantBlock(Block):
    """A variant with draws."""

    edits: list[Any] = Field([], description="What is changed, in order.")
    prompts: dict[str, Any] | None = Field(
        None, description="What it reads in place of the run's prompts: a source, or a shuffle of those."
    )
    model: dict[str, Any] | None = Field(
        None, description="A model of its own in place of the run's; {name} in its path is filled by sweep or draws."
    )
    sweep: dict[str, list[Any] | Literal["all"]] = Field(
        {},
        description="What fills {name} in the path of its model, a dimension of the results; all: what is there.",
    )
    difference: list[str] | None = Field(
        None, min_length=2, max_length=2, description="[a, b]: the weights of variant a less those of variant b."
    )
    draws: Annotated[int, Field(ge=1, le=MOST_DRAWS)] | dict[str, list[Any] | Literal["all"]] | None = Field(
        None, description="How many random twins there are; or what fills {name} in the path: draws that are models."
    )


class EditBlock(Block):
    """The host's keys of an edit."""

    edit: str = Field(description="What is done to the weights.")
    layers: list[Index] | None = Field(None, min_length=1, description=LAYERS)
    heads: list[Index] | None = Field(None, min_length=1, description=HEADS)
    sweep: dict[str, list[Any]] = Field(
        {}, description="Parameters with the values that they take in turn; each becomes a dimension of the results."
    )


class AnalysisBlock(Block):
    """One entry of `analyses:`."""

    use: str = Field(description="Which analysis.")
    label: str | None = Field(
        None, alias="as", pattern=LABEL, description="What its results are called; else as the analysis is."
    )
    parameters: dict[str, Any] = Field({}, alias="with", description="Its parameters.")
    layers: list[Index] | None = Field(None, min_length=1, description=LAYERS)
    heads: list[Index] | None = Field(None, min_length=1, description=HEADS)
    variants: list[str] | None = Field(None, min_length=1, description="Only on these variants; else on all.")
    prompts: dict[str, Any] | None = Field(None, description="Its own prompts, in place of those of the run.")
    errors: ErrorsBlock | Literal[False] | None = Field(
        None, description="Its own errors over prompts, in place of those of the run; false: none."
    )
    limit: float | None = Field(None, gt=0, description="Its own limit of seconds, in place of that of the run.")

    @field_validator("label")
    @classmethod
    def _is_no_comparison(cls, value: str | None) -> str | None:
        if value is not None and ".against." in value:
            raise ValueError("'.against.' is kept for the labels of comparisons with a null")
        return value


def is_name(text: str) -> bool:
    """Whether a text can name a run or a variant."""
    return re.fullmatch(NAME, text) is not None and not text.endswith("\n")


def keys(block: type[Block]) -> tuple[str, ...]:
    """The keys of a block as they are written."""
    return tuple(info.alias or name for name, info in block.model_fields.items())


@dataclass(frozen=True)
class Reading:
    """What every part is read with: the plugins, the directory of the run file, and the problems found so far."""

    host: Host
    directory: Path
    problems: Problems
    live: str | None = None  # the class of a model passed from Python
    mapping: Mapping[str, Any] | None = None  # keys of `model:` that came with it

    def model(self, owned: Owned[Any], node: Node) -> type[Parameters] | None:
        """The parameter model of a descriptor; where it cannot be had, its plugin is blamed at the node."""
        whose = f"{owned.descriptor.name} ({owner_of(owned)})"
        try:
            model = Guard.of(owned.owner).call(resolve, owned.descriptor.parameters)
        except Exception as error:
            self.blame(owned, node, f"the parameters of {whose} cannot be imported: {in_one_line(error)}")
            return None
        if isinstance(model, type) and issubclass(model, Parameters):
            return model
        self.blame(owned, node, f"{owned.descriptor.parameters} of {whose} is no gausslens.Parameters")
        return None

    def parameters(self, owned: Owned[Any], table: Node, also: tuple[str, ...] = (), at: str = "") -> Parameters | None:
        """The parameters of a descriptor, checked by its own model."""
        model = self.model(owned, table)
        if model is None:
            return None
        former = (name for names in former_names(model).values() for name in names)
        hidden = sorted(set(also) & {*names_at(model, ()), *former})
        if hidden:
            whose = f"{owned.descriptor.name} ({owner_of(owned)})"
            self.blame(owned, table, f"the parameter {hidden[0]!r} of {whose} cannot be given: the host has that key")
            return None
        try:
            table = with_current_names(model, table, self.problems)
            found = Guard.of(owned.owner).call(self._checked, model, table, also, at)
        except RunFileErrors:
            raise
        except Exception as error:
            whose = f"{owned.descriptor.name} ({owner_of(owned)})"
            self.blame(owned, table, f"the parameters of {whose} cannot be checked: {in_one_line(error)}")
            return None
        return found if found is None or self._are_there(found, table) else None

    def _checked(self, model: type[Parameters], table: Node, also: tuple[str, ...], at: str) -> Parameters | None:
        found, _ = checked(model, table, self.problems, also, at)
        found = found.located(self.directory) if found is not None else None
        canonical(found.canonical() if found is not None else None)
        return found

    def _are_there(self, found: Parameters, table: Node) -> bool:
        """Whether every path that was given leads to something."""
        before = len(self.problems)
        for name in found.paths():
            place = getattr(found, name)
            if isinstance(place, str) and not place.startswith(NO_PATH) and not os.path.exists(place):  # noqa: PTH110
                node = table.get(name) or table
                self.problems.value(
                    node, f"there is nothing at {shortened(place, 200)}", "paths are relative to the run file"
                )
        return len(self.problems) == before

    def blame(self, owned: Owned[Any], node: Node, message: str) -> None:
        """Note what is a plugin's own fault."""
        self.problems.key(node, message, f"its plugin is at fault; --without {owned.owner.plugin} leaves it out")


def split_keys(
    table: Node, block: type[Block], problems: Problems, others: Collection[str] | None = None
) -> tuple[Any, Node, Node]:
    """The host's keys of a table checked, then these keys and the others, which are a plugin's, as tables.

    Where ``others``, the plugin's keys, are known, a misspelt key of the host is put right.
    """
    if not table.is_table:
        values, ours = checked(block, table, problems)
        return values, ours, table
    host_keys = keys(block)
    names: dict[str, str | None] = {}
    for key, node in table.value.items() if others is not None else ():
        known = [*host_keys, *(others or ())]
        meant = near(key, known, most=1) if key not in known else []
        if meant and meant[0] in host_keys and table.get(meant[0]) is None and meant[0] not in names.values():
            problems.key(node, "unknown key", instead(key, known))
            names[key] = meant[0]
    table = table.renamed((), names) if names else table
    values, ours = checked(block, table.only(host_keys), problems)
    return values, ours, table.but(host_keys)


def with_name(table: Node, block: type[Block], problems: Problems) -> Node:
    """The table with the key by which it names something of a plugin put right, where that is misspelt."""
    first, *rest = keys(block)
    if not table.is_table or table.get(first) is not None:
        return table
    meant = near(first, [key for key in table.value if key not in rest], most=1)
    if not meant:
        return table
    problems.key(table.value[meant[0]], "unknown key", f"did you mean {first}?")
    return table.renamed((), {meant[0]: first})


def find(kind: str, node: Node | None, host: Host, problems: Problems) -> Owned[Any] | None:
    """What a name stands for; a problem where nothing bears it."""
    if node is None or not isinstance(node.value, str):
        return None  # the check of the table that it is in says so
    name, found = node.value, host.find(kind, node.value)
    if found is None:
        problems.value(node, f"there is no {kind} {shortened(name)}", _hint(kind, name, host))
    elif name != found.descriptor.name:
        was = f"{name} is the name that {found.descriptor.name} had before"
        problems.warn(node.mark, node.path, was, f"write {found.descriptor.name}")
    return found


def owner_of(owned: Owned[Any]) -> str:
    """Whose something is, and how to do without it."""
    owner = owned.owner
    return f"plugin {owner.plugin} of {owner.distribution} {owner.version}".strip()


def _hint(kind: str, name: str, host: Host) -> str:
    for broken in host.would_provide(name):
        whose = f"plugin {broken.plugin} of {broken.distribution} {broken.version}".strip()
        return f"{whose} would provide it, but was set aside: {broken.cause}"
    for other in BELONGS:
        if other != kind and name in host.of(other):
            return f"{name} is {'an' if other[0] in 'aeiou' else 'a'} {other}: {BELONGS[other].format(name=name)}"
    if name.split(".")[0] in host.left_out:
        return f"plugin {name.split('.')[0]} was left out, by --without or GAUSSLENS_WITHOUT"
    hint = instead(name, host.of(kind))
    missing = {"left out": host.left_out, "set aside": [b.plugin for b in host.broken]}
    if not near(name, host.of(kind)):
        # A name without a prefix does not say which plugin it would come from.
        for how, plugins in missing.items():
            hint += f"; {how}: {', '.join(plugins)}" if plugins else ""
    return hint.lstrip("; ")
