"""The parts of a run file that call something a plugin contributes: model, prompts, and parameters of anything."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.errors import near
from ..contract.parameters import Parameters
from ..contract.reference import resolve
from ..contract.seeds import canonical
from ..plugins.host import in_one_line
from ..runs.study import ModelCall, PromptCall
from . import blocks
from .checking import checked
from .fields import names_at
from .names import find, owner_of
from .nodes import Node
from .problems import Problems, RunFileErrors, instead, shortened

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..plugins.host import Host, Owned

LIVE = "live:"
_REPOSITORY = r"[A-Za-z0-9][\w.-]*/[\w.-]+"
_HUB = re.compile(rf"hub:{_REPOSITORY}(@[\w./-]+)?")


@dataclass(frozen=True)
class Reading:
    """What every part is read with: the plugins, the directory of the run file, and the problems found so far."""

    host: Host
    directory: Path
    problems: Problems
    live: str | None = None  # the class of a model passed from Python

    def model(self, owned: Owned[Any], node: Node) -> type[Parameters] | None:
        """The parameter model of a descriptor; where it cannot be had, its plugin is blamed at the node."""
        whose = f"{owned.descriptor.name} ({owner_of(owned)})"
        try:
            model = resolve(owned.descriptor.parameters)
        except (Exception, SystemExit) as error:
            self._blame(owned, node, f"the parameters of {whose} cannot be imported: {in_one_line(error)}")
            return None
        if isinstance(model, type) and issubclass(model, Parameters):
            return model
        self._blame(owned, node, f"{owned.descriptor.parameters} of {whose} is no gausslens.Parameters")
        return None

    def parameters(self, owned: Owned[Any], table: Node, also: tuple[str, ...] = (), at: str = "") -> Parameters | None:
        """The parameters of a descriptor, checked by its own model."""
        model = self.model(owned, table)
        if model is None:
            return None
        hidden = sorted(set(also) & set(names_at(model, ())))
        if hidden:
            whose = f"{owned.descriptor.name} ({owner_of(owned)})"
            self._blame(owned, table, f"the parameter {hidden[0]!r} of {whose} cannot be given: the host has that key")
            return None
        try:
            found, _ = checked(model, table, self.problems, also, at)
            canonical(found.canonical() if found is not None else None)
        except RunFileErrors:
            raise
        except (Exception, SystemExit) as error:
            whose = f"{owned.descriptor.name} ({owner_of(owned)})"
            self._blame(owned, table, f"the parameters of {whose} cannot be checked: {in_one_line(error)}")
            return None
        return found

    def _blame(self, owned: Owned[Any], node: Node, message: str) -> None:
        self.problems.key(node, message, f"its plugin is at fault; --without {owned.owner.plugin} leaves it out")

    def claiming(self, path: Node, place: str) -> Owned[Any] | None:
        """The loader that ``auto`` stands for: of those that claim a path, highest rank, then first by name."""
        claims = []
        for owned in self.host.loaders.values():
            try:
                if resolve(owned.descriptor.claims)(place):
                    claims.append(owned)
            except (Exception, SystemExit) as error:
                whose = f"loader {owned.descriptor.name} ({owner_of(owned)})"
                self._blame(owned, path, f"the {whose} cannot say whether it opens this: {in_one_line(error)}")
                return None
        if claims:
            return min(claims, key=lambda o: (-o.descriptor.rank, o.descriptor.name))
        asked = ", ".join(sorted(self.host.loaders)) or "none"
        missing = [*(b.plugin for b in self.host.broken), *self.host.left_out]
        more = f"; plugins set aside or left out: {', '.join(missing)}" if missing else ""
        self.problems.value(path, f"no loader claims {shortened(place, 200)}", f"asked: {asked}{more}")
        return None


def part(
    table: Node, block: type[blocks.Block], problems: Problems, others: Collection[str] | None = None
) -> tuple[Any, Node, Node]:
    """The host's keys of a table checked, then these keys and the others, which are a plugin's, as tables.

    Where ``others``, the plugin's keys, are known, a misspelt key of the host is put right.
    """
    if not table.is_table:
        values, ours = checked(block, table, problems)
        return values, ours, table
    keys = blocks.keys(block)
    names: dict[str, str | None] = {}
    for key, node in table.value.items() if others is not None else ():
        known = [*keys, *(others or ())]
        meant = near(key, known, most=1) if key not in known else []
        if meant and meant[0] in keys and table.get(meant[0]) is None and meant[0] not in names.values():
            problems.key(node, "unknown key", instead(key, known))
            names[key] = meant[0]
    table = table.renamed((), names) if names else table
    values, ours = checked(block, table.only(keys), problems)
    return values, ours, table.but(keys)


def with_name(table: Node, block: type[blocks.Block], problems: Problems) -> Node:
    """The table with the key by which it names something of a plugin put right, where that is misspelt."""
    first, *rest = blocks.keys(block)
    if not table.is_table or table.get(first) is not None:
        return table
    meant = near(first, [key for key in table.value if key not in rest], most=1)
    if not meant:
        return table
    problems.key(table.value[meant[0]], "unknown key", f"did you mean {first}?")
    return table.renamed((), {meant[0]: first})


def read_model(reading: Reading, table: Node) -> ModelCall | None:
    """The `model:` block; `auto` is resolved."""
    if reading.live is not None and table.is_table:
        given = table.get("path")
        if given is None or not str(given.value).startswith(LIVE):
            made = Node(f"{LIVE}{reading.live}", table.mark, (*table.path, "path"), table.place)
            table = replace(table, value=table.value | {"path": made})
    table = with_name(table, blocks.ModelBlock, reading.problems)
    values, ours, rest = part(table, blocks.ModelBlock, reading.problems)
    path, named = ours.get("path"), ours.get("loader")
    place = _place(reading, path) if path is not None and isinstance(path.value, str) and path.value else None
    loader: Owned[Any] | None = None
    if named is not None and named.value != "auto":
        loader = find("loader", named, reading.host, reading.problems)
    elif path is not None and place is not None:
        loader = reading.claiming(path, place)
    if loader is None:
        return None
    parameters = reading.parameters(loader, rest, blocks.keys(blocks.ModelBlock))
    if values is None or place is None or parameters is None:
        return None
    return ModelCall(place, loader, parameters, values.dtype, values.device, table.place)


def read_prompts(reading: Reading, table: Node) -> PromptCall | None:
    """A `prompts:` block."""
    table = with_name(table, blocks.PromptsBlock, reading.problems)
    values, ours, rest = part(table, blocks.PromptsBlock, reading.problems)
    source = find("source", ours.get("source"), reading.host, reading.problems)
    if source is None:
        return None
    parameters = reading.parameters(source, rest, blocks.keys(blocks.PromptsBlock))
    if values is None or parameters is None:
        return None
    return PromptCall(source, parameters, table.place)


def _place(reading: Reading, path: Node) -> str | None:
    """Where the model is: absolute, or with one of the prefixes."""
    text = path.value
    if text.startswith(LIVE) and reading.live is None:
        reading.problems.value(path, "a live model is passed from Python", "gausslens.run(..., model=...)")
        return None
    if text.startswith("hub:") and not _HUB.fullmatch(text):
        reading.problems.value(path, f"{shortened(text)} is no model of the hub", "write hub:OWNER/NAME@REVISION")
        return None
    if text.startswith((LIVE, "builtin:", "hub:")):
        return str(text)
    home = text == "~" or text.startswith("~/")
    place = Path(os.path.normpath(reading.directory / (Path(text).expanduser() if home else text)))
    if not _exists(place):
        reading.problems.value(path, f"there is no directory {shortened(str(place), 200)}", _elsewhere(place, text))
        return None
    return str(place)


def _exists(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # a name too long, a directory that may not be looked into
        return False


def _elsewhere(place: Path, text: str) -> str:
    """Directories with a near name; or the prefix that was forgotten."""
    try:
        names = [entry.name for entry in os.scandir(place.parent) if entry.is_dir()]
    except OSError:
        names = []
    found = near(place.name, names)
    if found:
        return f"did you mean {' or '.join(str(Path(text).with_name(name)) for name in found)}?"
    if re.fullmatch(_REPOSITORY, text):
        return f"paths are relative to the run file; a model of the hub is hub:{text}"
    return "paths are relative to the run file"
