"""What runs and what it reads: the blocks `model:` and `prompts:`."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.errors import near
from ..contract.reference import resolve
from ..plugins.host import best, in_one_line
from ..runs.study import ModelCall, PromptCall
from . import blocks
from .blocks import find, owner_of, split_keys, with_name
from .nodes import Node, from_python
from .problems import Problems, shortened

if TYPE_CHECKING:
    from ..contract.descriptors import Analysis, Owned
    from .blocks import Reading

LIVE = "live:"
_REPOSITORY = r"[A-Za-z0-9][\w.-]*/[\w.-]+"
_HUB = re.compile(rf"hub:{_REPOSITORY}(@[\w./-]+)?")


def read_model_block(reading: Reading, table: Node) -> ModelCall | None:
    """The `model:` block; `auto` is resolved."""
    if reading.live is not None and table.is_table:
        given = table.get("path")
        if given is None or not str(given.value).startswith(LIVE):
            made = Node(f"{LIVE}{reading.live}", table.mark, (*table.path, "path"), table.place)
            table = replace(table, value=table.value | {"path": made})
    table = with_name(table, blocks.ModelBlock, reading.problems)
    values, ours, rest = split_keys(table, blocks.ModelBlock, reading.problems)
    path, named = ours.get("path"), ours.get("loader")
    place = _place(reading, path) if path is not None and isinstance(path.value, str) and path.value else None
    loader: Owned[Any] | None = None
    if named is not None and named.value != "auto":
        loader = find("loader", named, reading.host, reading.problems)
    elif path is not None and place is not None:
        loader = _claiming(reading, path, place)
    if loader is None:
        return None
    parameters = reading.parameters(loader, rest, blocks.keys(blocks.ModelBlock))
    if values is None or place is None or parameters is None:
        return None
    return ModelCall(place, loader, parameters, values.dtype, values.device, table.place)


def read_prompts_block(reading: Reading, table: Node) -> PromptCall | None:
    """A `prompts:` block."""
    table = with_name(table, blocks.PromptsBlock, reading.problems)
    values, ours, rest = split_keys(table, blocks.PromptsBlock, reading.problems)
    source = find("source", ours.get("source"), reading.host, reading.problems)
    if source is None:
        return None
    parameters = reading.parameters(source, rest, blocks.keys(blocks.PromptsBlock))
    if values is None or parameters is None:
        return None
    return PromptCall(source, parameters, table.place)


def _claiming(reading: Reading, path: Node, place: str) -> Owned[Any] | None:
    """The loader that ``auto`` stands for: the best of those that claim a path."""
    claims = []
    for owned in reading.host.loaders.values():
        try:
            if resolve(owned.descriptor.claims)(place):
                claims.append(owned)
        except (Exception, SystemExit) as error:
            whose = f"loader {owned.descriptor.name} ({owner_of(owned)})"
            reading.blame(owned, path, f"the {whose} cannot say whether it opens this: {in_one_line(error)}")
            return None
    if claims:
        return best(claims)
    asked = ", ".join(sorted(reading.host.loaders)) or "none"
    missing = [*(b.plugin for b in reading.host.broken), *reading.host.left_out]
    more = f"; plugins set aside or left out: {', '.join(missing)}" if missing else ""
    reading.problems.value(path, f"no loader claims {shortened(place, 200)}", f"asked: {asked}{more}")
    return None


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


def resolved_model(call: ModelCall) -> dict[str, Any]:
    """How the `model:` block reads with every default filled in."""
    host = {"path": call.path, "loader": call.loader.descriptor.name, "dtype": call.dtype, "device": call.device}
    return host | call.parameters.canonical()


def default_prompts(reading: Reading, entry: Node, analysis: Owned[Analysis]) -> PromptCall | None:
    """The prompts that a descriptor gives; a mistake in them is its plugin's."""
    apart = Problems(reading.problems.file)
    table = from_python(dict(analysis.descriptor.prompts or {}), apart, entry.place, ("prompts",))
    called = read_prompts_block(replace(reading, problems=apart), table)
    for problem in apart:
        message = f"the prompts that {analysis.descriptor.name} brings are wrong ({problem.path}: {problem.message})"
        reading.problems.key(entry, message, f"{owner_of(analysis)} is at fault; give prompts of your own")
    return called


def resolved_prompts(call: PromptCall | None) -> dict[str, Any] | None:
    """How a `prompts:` block reads with every default filled in."""
    return {"source": call.source.descriptor.name, **call.parameters.canonical()} if call is not None else None
