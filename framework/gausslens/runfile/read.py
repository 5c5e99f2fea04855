"""A run file, or a dict from Python, to a study: text, nodes, settings, then block by block."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.errors import Mark
from ..runs.study import Errors, ModelCall, Study, Variant
from . import blocks
from .analyses import errors_of, read_uses, resolved, resolved_errors
from .blocks import Reading
from .check_parameters import checked
from .model_and_prompts import (
    LIVE,
    brought_model,
    read_model_block,
    read_prompts_block,
    resolved_model,
    resolved_prompts,
)
from .nodes import FILE, Node, from_python
from .problems import Problems, shortened
from .settings import with_settings
from .text import compose, read_text
from .variants import read_against, read_variants, variants_by_name

if TYPE_CHECKING:
    from ..plugins.host import Host

Source = str | os.PathLike[str] | Mapping[str, Any]


def read(
    source: Source,
    host: Host,
    settings: Sequence[str] = (),
    live: str | None = None,
    mapping: Mapping[str, Any] | None = None,
) -> Study:
    """A study from a run file or a dict; raises RunFileErrors, which holds everything that is wrong with it.

    ``settings`` are those of `--set`, as ``analyses.values.with.site=v``. ``live`` is the class of a model that is
    passed from Python, in place of `model: {path: ...}`; ``mapping`` are keys of `model:` that came with it.
    """
    problems = Problems(FILE if isinstance(source, Mapping) else os.fspath(source))
    root = with_settings(_tree(source, problems), settings, problems)
    directory = Path.cwd() if isinstance(source, Mapping) else Path(source).parent.absolute()
    study = _study(Reading(host, directory, problems, live, mapping), root, _default_name(source))
    problems.settle()
    assert study is not None
    return study


def read_model(block: Mapping[str, Any], host: Host) -> ModelCall:
    """The `model:` block alone, from Python; ``live:CLASS`` as path stands for a model in memory."""
    problems = Problems(FILE)
    live = str(block.get("path", "")).removeprefix(LIVE) if str(block.get("path")).startswith(LIVE) else None
    table = from_python(block, problems, path=("model",))
    call = read_model_block(Reading(host, Path.cwd(), problems, live), table)
    problems.settle()
    assert call is not None
    return call


def read_variant(block: Mapping[str, Any], host: Host, name: str = "variant") -> Variant:
    """One variant's block alone, ``{"edits": [...], "draws": 8}``, from Python."""
    problems = Problems(FILE)
    table = from_python({name: block}, problems, path=("variants",))
    read = read_variants(Reading(host, Path.cwd(), problems), dict(table.value), None)
    problems.settle()
    return read[name][0]


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


def _study(reading: Reading, root: Node, default_name: str) -> Study | None:
    problems = reading.problems
    if reading.live is not None and root.get("model") is None:
        root = Node({**root.value, "model": Node({}, root.mark, ("model",), root.mark)}, root.mark)
    brought = brought_model(reading, root.get("prompts")) if root.get("model") is None else None
    if brought is not None:
        root = replace(root, value={**root.value, "model": brought})
    for key, first in (("model", "path"), ("prompts", "source")):
        node = root.get(key)
        if node is not None and isinstance(node.value, str):
            hint = f"write {{{first}: {shortened(node.value)[1:-1]}}}"
            problems.value(node, f"should be a table, is {node.described()}", hint)
    top, root = checked(blocks.RunBlock, root, problems)
    model = prompts = None
    if (table := root.get("model")) is not None and table.is_table and (table.value or brought is None):
        model = read_model_block(reading, table)
    given = root.get("prompts")
    if given is not None and given.is_table:
        prompts = read_prompts_block(reading, given)
    named = variants_by_name(root)
    variants = read_variants(reading, named or {}, root.get("model"))
    analyses = root.get("analyses")
    has_prompts = given is not None and given.value is not None
    entries = analyses.value if analyses is not None and analyses.is_list else []
    errors = errors_of(top.errors if top is not None else None, "run", Errors(blocks.GROUPS))
    uses = read_uses(reading, entries, named, prompts, has_prompts, errors)
    against = read_against(reading, root.get("against"), named, {name: found[0] for name, found in variants.items()})
    if len(problems) or top is None or model is None:
        return None
    uses = [replace(use, limit=top.limit) if use.limit is None else use for use in uses]
    name = top.name or default_name
    whole = {
        "gausslens": blocks.FORMAT,
        "name": name,
        "seed": top.seed,
        "model": resolved_model(model),
        "prompts": resolved_prompts(prompts),
        "variants": {name: found[1] for name, found in variants.items()},
        "analyses": [resolved(use, prompts, errors) for use in uses],
        "against": list(against),
        "errors": resolved_errors(errors),
        "report": top.report,
    }
    if top.limit is not None:
        whole["limit"] = top.limit
    if top.max_memory is not None:
        whole["max_memory"] = top.max_memory
    ordered = tuple(found[0] for found in variants.values())
    told = (name, top.seed, model, prompts, ordered, tuple(uses), against, top.report, reading.directory, whole)
    return Study(*told, warnings=tuple(problems.warnings), limit=top.limit, max_memory=top.memory_bytes)
