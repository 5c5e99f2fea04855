"""What runs and what it reads: the blocks `model:` and `prompts:`."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.errors import near
from ..contract.reference import resolve
from ..guard import Guard
from ..plugins.host import best, in_one_line
from ..runs.study import ModelCall, PromptCall, Shuffle
from . import blocks
from .blocks import find, owner_of, split_keys, with_name
from .check_parameters import checked
from .nodes import Node, from_python
from .problems import Problems, shortened

if TYPE_CHECKING:
    from ..contract.descriptors import Analysis, Owned
    from .blocks import Reading

LIVE = "live:"
# Paths that are no place on this disk.
ELSEWHERE = (LIVE, "builtin:", "hub:")
_REPOSITORY = r"[A-Za-z0-9][\w.-]*/[\w.-]+"
_HUB = re.compile(rf"hub:{_REPOSITORY}(@[\w./-]+)?")


def read_model_block(reading: Reading, table: Node) -> ModelCall | None:
    """The `model:` block; `auto` is resolved."""
    if reading.live is not None and table.is_table:
        given = table.get("path")
        if given is None or not str(given.value).startswith(LIVE) or reading.mapping is not None:
            made = Node(f"{LIVE}{reading.live}", table.mark, (*table.path, "path"), table.place)
            table = replace(table, value=table.value | {"path": made})
        if reading.mapping is not None:
            mapped = from_python(reading.mapping, reading.problems, path=table.path)
            table = replace(table, value=table.value | mapped.value)
    table = with_name(table, blocks.ModelBlock, reading.problems)
    values, ours, rest = split_keys(table, blocks.ModelBlock, reading.problems)
    path, named = ours.get("path"), ours.get("loader")
    known = reading.host.find("loader", named.value) if named is not None and isinstance(named.value, str) else None
    opens = f"it should be {known.descriptor.summary}" if known is not None else "it is a model"
    place = _place(reading, path, opens) if path is not None and isinstance(path.value, str) and path.value else None
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


def brought_model(reading: Reading, table: Node | None) -> Node | None:
    """The `model:` block that the source of the run's prompts brings, for a run file without one; None: it brings none.

    It is empty where the prompts are wrong, which is told where they are read.
    """
    if table is None or not table.is_table:
        return None
    named = table.get("source")
    source = reading.host.find("source", named.value) if named is not None and isinstance(named.value, str) else None
    if source is None or source.descriptor.model is None:
        return None
    call = read_prompts_block(replace(reading, problems=Problems(reading.problems.file)), table)
    if call is None:
        return Node({}, table.mark, ("model",), table.place)
    try:
        block = Guard.of(source.owner).call(lambda: resolve(str(source.descriptor.model))(call.parameters))
    except Exception as error:
        whose = f"{source.descriptor.name} ({owner_of(source)})"
        reading.blame(source, table, f"{whose} cannot say which model its prompts bring: {in_one_line(error)}")
        return Node({}, table.mark, ("model",), table.place)
    if block is None:
        return None
    made = from_python(block, reading.problems, table.place, ("prompts",))
    # A mistake in what the prompts say too is told where they say it.
    said = {key: replace(node, mark=table.value[key].mark) for key, node in made.value.items() if key in table.value}
    return replace(made, value=made.value | said)


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


def read_variant_prompts(reading: Reading, table: Node) -> PromptCall | Shuffle | None:
    """The `prompts:` of a variant: a source in place of the run's, or a shuffle of what a step reads anyway."""
    if table.get("source") is not None and (shuffle := table.get("shuffle")) is not None:
        message = "the prompts of a variant are a source of their own, or a shuffle of the run's"
        reading.problems.key(shuffle, message, "keep one; to shuffle other prompts, give them to the run")
        return None
    is_shuffle = with_name(table, blocks.ShuffleBlock, Problems(reading.problems.file)).get("shuffle") is not None
    if table.get("source") is not None or not is_shuffle:
        return read_prompts_block(reading, table)
    return _read_shuffle(reading, with_name(table, blocks.ShuffleBlock, reading.problems))


def _read_shuffle(reading: Reading, table: Node) -> Shuffle | None:
    before = len(reading.problems)
    block, table = checked(blocks.ShuffleBlock, table, reading.problems)
    how = table.get("shuffle")
    if how is not None and how.value == "documents":
        within, segments = table.get("within"), table.get("segments")
        if within is not None and within.value is not None:
            reading.problems.key(within, "documents are swapped between prompts, not within them", "leave it out")
        if segments is None or not segments.value:
            message = "swapping whole prompts gives the same prompts in another order: say which segments are swapped"
            reading.problems.key(how, message, "add segments, as `segments: [answer]`")
    if block is None or len(reading.problems) > before:
        return None
    default = {"frequency": "all", "documents": None}.get(block.shuffle, "prompt")
    return Shuffle(block.shuffle, block.within or default, tuple(block.segments), table.place)


def _claims(owned: Owned[Any], place: str) -> bool:
    return bool(resolve(owned.descriptor.claims)(place))


def _claiming(reading: Reading, path: Node, place: str) -> Owned[Any] | None:
    """The loader that ``auto`` stands for: the best of those that claim a path."""
    claims = []
    for owned in reading.host.loaders.values():
        try:
            if Guard.of(owned.owner).call(_claims, owned, place):
                claims.append(owned)
        except Exception as error:
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


def _place(reading: Reading, path: Node, opens: str) -> str | None:
    """Where the model is: absolute, or with one of the prefixes; ``opens`` says what its loader opens."""
    text = path.value
    if text.startswith(LIVE) and reading.live is None:
        reading.problems.value(path, "a live model is passed from Python", "gausslens.run(..., model=...)")
        return None
    if text.startswith("hub:") and not _HUB.fullmatch(text):
        reading.problems.value(path, f"{shortened(text)} is no model of the hub", "write hub:OWNER/NAME@REVISION")
        return None
    if text.startswith(ELSEWHERE):
        return str(text)
    place = local_place(reading, text)
    if not exists(place) and path.path[:1] == ("prompts",):  # a source brings it, which opens what it says
        near_by = _near_by(place, text, files=True) or "paths are relative to the run file"
        reading.problems.value(path, f"there is nothing at {shortened(str(place), 200)}", f"{opens}; {near_by}")
        return None
    if not exists(place):
        reading.problems.value(path, f"there is no directory {shortened(str(place), 200)}", _elsewhere(place, text))
        return None
    return str(place)


def local_place(reading: Reading, text: str) -> Path:
    """A path of the run file, absolute: relative ones begin at its directory."""
    home = text == "~" or text.startswith("~/")
    return Path(os.path.normpath(reading.directory / (Path(text).expanduser() if home else text)))


def exists(place: Path) -> bool:
    """Whether there is something at a path."""
    try:
        return place.exists()
    except OSError:  # a name too long, a directory that may not be looked into
        return False


def _elsewhere(place: Path, text: str) -> str:
    """Directories with a near name; or the prefix that was forgotten."""
    if re.search(r"\{\w+\}", text):
        return "names in braces are filled in for the models of variants, by their sweep or draws, and nowhere else"
    found = _near_by(place, text)
    if found is not None:
        return found
    if re.fullmatch(_REPOSITORY, text):
        return f"paths are relative to the run file; a model of the hub is hub:{text}"
    return "paths are relative to the run file"


def _near_by(place: Path, text: str, files: bool = False) -> str | None:
    """Directories (and files) with a near name, as a question."""
    try:
        names = [entry.name for entry in os.scandir(place.parent) if files or entry.is_dir()]
    except OSError:
        return None
    found = near(place.name, names)
    return f"did you mean {' or '.join(str(Path(text).with_name(name)) for name in found)}?" if found else None


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


def resolved_prompts(call: PromptCall | Shuffle | None) -> dict[str, Any] | None:
    """How a `prompts:` block reads with every default filled in."""
    if isinstance(call, Shuffle):
        return call.canonical()
    return {"source": call.source.descriptor.name, **call.parameters.canonical()} if call is not None else None
