"""A run file, or a dict from Python, to a study: this module reads top to bottom."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs.study import Mark, ModelCall, Study, Variant
from . import blocks, parts, sets
from .checking import checked
from .compose import compose
from .filetext import read_text
from .nodes import Node
from .plaindata import FILE, from_python
from .problems import Problems, instead, shortened
from .uses import read_uses, resolved, resolved_prompts
from .variants import read_variant

if TYPE_CHECKING:
    from ..plugins.host import Host

Source = str | os.PathLike[str] | Mapping[str, Any]


def read(source: Source, host: Host, settings: Sequence[str] = (), live: str | None = None) -> Study:
    """A study from a run file or a dict; raises RunFileErrors, which holds everything that is wrong with it.

    ``settings`` are those of `--set`, as ``analyses.values.with.site=v``. ``live`` is the class of a model that is
    passed from Python, in place of `model: {path: ...}`.
    """
    problems = Problems(FILE if isinstance(source, Mapping) else os.fspath(source))
    root = sets.apply(_tree(source, problems), settings, problems)
    directory = Path.cwd() if isinstance(source, Mapping) else Path(source).parent.absolute()
    study = _study(parts.Reading(host, directory, problems, live), root, _default_name(source))
    problems.settle()
    assert study is not None
    return study


def read_model(block: Mapping[str, Any], host: Host) -> ModelCall:
    """The `model:` block alone, from Python; ``live:CLASS`` as path stands for a model in memory."""
    problems = Problems(FILE)
    live = (
        str(block.get("path", "")).removeprefix(parts.LIVE) if str(block.get("path")).startswith(parts.LIVE) else None
    )
    table = from_python(block, problems, path=("model",))
    call = parts.read_model(parts.Reading(host, Path.cwd(), problems, live), table)
    problems.settle()
    assert call is not None
    return call


def _tree(source: Source, problems: Problems) -> Node:
    """The source as nodes; only a table goes on."""
    if isinstance(source, Mapping):
        # A dict is written for the gausslens that reads it; a file may outlive it.
        return from_python({"gausslens": blocks.FORMAT, **source}, problems)
    root = compose(read_text(Path(source), problems), problems.file, problems)
    if root is None:
        problems.add(Mark(problems.file, 1, 1), (), "the file is empty", "`gausslens example` shows run files")
    elif not root.is_table:
        problems.value(root, f"a run file is a table of keys, this is {root.described()}")
    if root is None or not root.is_table:
        problems.stop()
    return root


def _default_name(source: Source) -> str:
    if isinstance(source, Mapping):
        return "run"
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(source).stem).strip("-")[:100] or "run"


def _study(reading: parts.Reading, root: Node, default_name: str) -> Study | None:
    problems = reading.problems
    if reading.live is not None and root.get("model") is None:
        root = Node({**root.value, "model": Node({}, root.mark, ("model",), root.mark)}, root.mark)
    for key, first in (("model", "path"), ("prompts", "source")):
        node = root.get(key)
        if node is not None and isinstance(node.value, str):
            hint = f"write {{{first}: {shortened(node.value)[1:-1]}}}"
            problems.value(node, f"should be a table, is {node.described()}", hint)
    top, root = checked(blocks.RunBlock, root, problems)
    model = prompts = None
    if (table := root.get("model")) is not None and table.is_table:
        model = parts.read_model(reading, table)
    given = root.get("prompts")
    if given is not None and given.is_table:
        prompts = parts.read_prompts(reading, given)
    named = _variants(root)
    read = [read_variant(reading, name, node) for name, node in (named or {}).items()]
    analyses = root.get("analyses")
    has_prompts = given is not None and given.value is not None
    entries = analyses.value if analyses is not None and analyses.is_list else []
    uses = read_uses(reading, entries, named, prompts, has_prompts)
    variants = {found[0].name: found for found in read if found is not None}
    against = _against(reading, root.get("against"), named, {name: found[0] for name, found in variants.items()})
    if len(problems) or top is None or model is None:
        return None
    name = top.name or default_name
    whole = {
        "gausslens": blocks.FORMAT,
        "name": name,
        "seed": top.seed,
        "model": _resolved_model(model),
        "prompts": resolved_prompts(prompts),
        "variants": {name: found[1] for name, found in variants.items()},
        "analyses": [resolved(use, prompts) for use in uses],
        "against": list(against),
        "report": top.report,
    }
    ordered = tuple(found[0] for found in variants.values())
    return Study(name, top.seed, model, prompts, ordered, tuple(uses), against, top.report, reading.directory, whole)


def _variants(root: Node) -> dict[str, Node] | None:
    """The variants by name; None where they are no table."""
    node = root.get("variants")
    if node is None:
        trained = Node([], root.mark, ("variants", "trained"), root.mark)
        return {"trained": trained}
    return dict(node.value) if node.is_table else None


def _against(
    reading: parts.Reading, node: Node | None, named: Mapping[str, Node] | None, variants: Mapping[str, Variant]
) -> tuple[str, ...]:
    """The null variants: each has several draws and no sweep, and there is something to compare with it."""
    found: list[str] = []
    problems = reading.problems
    for item in [] if node is None or node.value is None else node.nodes if node.is_list else [node]:
        name = item.value
        if not isinstance(name, str):
            problems.value(item, f"should be the name of a variant, is {item.described()}")
        elif named is None:
            continue  # told already: the variants are no table
        elif name not in named:
            problems.value(item, f"there is no variant {shortened(name)}", instead(name, named))
        elif name in found:
            problems.value(item, f"the variant {name} is named twice", "keep one")
        elif name in variants:
            _check_null(problems, item, variants[name])
            found.append(name)
            if len(named) == 1:
                message = f"there is no variant to compare with {name}"
                problems.value(item, message, "add the model itself to variants, as `trained: []`")
    return tuple(found)


def _check_null(problems: Problems, item: Node, variant: Variant) -> None:
    where = f" (line {variant.mark.line})" if variant.mark.line else ""
    if variant.draws is None or variant.draws < 2:
        has = "no draws" if variant.draws is None else "one draw"
        message = f"a null has 2 draws or more, and the variant {variant.name}{where} has {has}"
        edits = any(point.edits for point in variant.points)
        write = f"`{variant.name}: {{edits: [...], draws: 8}}`"
        problems.value(item, message, f"write {write}" if edits else f"write {write} with a random edit")
    if any(point.values for point in variant.points):
        message = f"a null has no sweep, and the variant {variant.name}{where} sweeps"
        problems.value(item, message, "make a variant of its own for each value")


def _resolved_model(call: ModelCall) -> dict[str, Any]:
    host = {"path": call.path, "loader": call.loader.descriptor.name, "dtype": call.dtype, "device": call.device}
    return host | call.parameters.canonical()
