"""JSON Schemas (draft 7) of run files and of parameters, from the models that check them.

An editor with a YAML language server completes a run file by ``run.v1.json``, parameters of plugins included: which
parameters there are follows from `use`, `edit`, `loader` and `source`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.errors import InputError
from ..contract.parameters import now_called
from ..contract.reference import resolve
from ..guard import settled
from . import blocks

if TYPE_CHECKING:
    from ..contract.descriptors import Owned
    from ..plugins.host import Host

DRAFT = "http://json-schema.org/draft-07/schema#"
Schema = dict[str, Any]
Definitions = Mapping[str, Schema]

# What a run file chooses from, of all KINDS.
CHOSEN = ("analysis", "edit", "loader", "source")
_LIST_OR_NAME = "The variant of several draws that the others are compared with, or a list of such variants."


def run_schema(host: Host) -> Schema:
    """The schema of a whole run file, with the parameters of every plugin of the host."""
    parameters = _parameter_definitions(host)
    blocks_of_plugins = {
        "model": _model(host, parameters),
        "prompts": _prompts(host, parameters),
        "edit": _edit(host, parameters),
        "analysis": _analysis(host, parameters),
        "errors": _of(blocks.ErrorsBlock),
    }
    run = _of(blocks.RunBlock)
    properties = run["properties"]
    properties["gausslens"] |= {"const": blocks.FORMAT}
    for key in ("model", "prompts"):
        properties[key] = _described({"$ref": f"#/$defs/{key}"}, properties[key])
    run |= _model_or_brought(host, run["required"])
    properties["analyses"]["items"] = {"$ref": "#/$defs/analysis"}
    properties["variants"] |= {
        "propertyNames": {"pattern": blocks.NAME, "not": {"const": blocks.WHOLE_RUN}},
        "additionalProperties": _variant(),
    }
    properties["against"] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}],
        "description": _LIST_OR_NAME,
    }
    title = {"$schema": DRAFT, "title": "A run file of gausslens", "description": "What to compute, and on what."}
    return title | run | {"$defs": blocks_of_plugins | parameters}


def parameter_schema(owned: Owned[Any]) -> Schema:
    """The schema of the parameters of one descriptor, alone."""
    descriptor = owned.descriptor
    schema = _tidied(resolve(descriptor.parameters).model_json_schema())
    return {"$schema": DRAFT, "title": descriptor.name} | schema | {"description": descriptor.summary}


def files(host: Host) -> dict[str, str]:
    """What `schemas/` holds, by the names of the files: the run file, and all parameters."""
    title = {"$schema": DRAFT, "title": "Parameters of the plugins of gausslens, by kind and name"}
    whole = {"run.v1.json": run_schema(host), "parameters.v1.json": title | {"$defs": _parameter_definitions(host)}}
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in whole.items()}


def ours() -> Host:
    """The host with the plugins of this distribution alone, all of which must work."""
    from ..plugins import load, loading_troubles
    from ..plugins.discover import candidates

    host = load(only=[candidate.plugin for candidate in candidates()[0] if candidate.ours])
    if host.broken or host.left_out:
        raise InputError(
            loading_troubles(host) or f"plugins are left out: {', '.join(host.left_out)}; unset GAUSSLENS_WITHOUT"
        )
    return host


def write(directory: Path) -> list[Path]:
    """Write the schemas of our own plugins into a directory; return the files."""
    if not directory.is_dir():
        raise InputError(f"{directory}: there is no such directory")
    written = []
    for name, text in files(ours()).items():
        (directory / name).write_text(text, encoding="utf-8")
        written.append(directory / name)
    return written


def _entries(host: Host) -> Iterable[tuple[str, str, Owned[Any]]]:
    for kind in CHOSEN:
        for name, owned in sorted(host.of(kind).items()):
            yield kind, name, owned


def _parameter_definitions(host: Host) -> dict[str, Schema]:
    """The schema of each descriptor's parameters as ``kind:name``; models within them as ``kind:name:Model``."""
    found: dict[str, Schema] = {}
    for kind, name, owned in _entries(host):
        try:
            model = resolve(owned.descriptor.parameters)
            schema = model.model_json_schema(ref_template=f"#/$defs/{kind}:{name}:{{model}}")
        except BaseException as error:  # a plugin's own trouble: `check` says so where it is used
            settled(error)
            schema = {}
        for inner, definition in schema.pop("$defs", {}).items():
            found[f"{kind}:{name}:{inner}"] = _tidied(definition)
        found[f"{kind}:{name}"] = _tidied(schema) | {"description": owned.descriptor.summary}
    return dict(sorted(found.items()))


def _model(host: Host, parameters: Definitions) -> Schema:
    schema = _open(_of(blocks.ModelBlock))
    loaders = dict(sorted(host.loaders.items()))
    schema["properties"]["loader"] |= _choice(loaders, auto="The loader of highest rank that claims the path.")
    every: dict[str, list[Schema]] = {}
    for name in loaders:
        for key, parameter in parameters[f"loader:{name}"].get("properties", {}).items():
            every.setdefault(key, [])
            every[key] += [parameter] if parameter not in every[key] else []
    merged = {key: found[0] if len(found) == 1 else {"anyOf": found} for key, found in every.items()}
    by_auto = {
        "if": {"properties": {"loader": {"const": "auto"}}},
        "then": _closed(blocks.ModelBlock, {"properties": merged}),
    }
    chosen = [
        _when("loader", owned, _closed(blocks.ModelBlock, parameters[f"loader:{name}"]))
        for name, owned in loaders.items()
    ]
    return schema | {"allOf": [by_auto, *chosen]}


def _model_or_brought(host: Host, required: list[str]) -> Schema:
    """What a run file must have: a model, or prompts that bring one."""
    brings = sorted(name for name, owned in host.sources.items() if owned.descriptor.model is not None)
    if not brings:
        return {}
    brought = {"type": "object", "properties": {"source": {"enum": brings}}, "required": ["source"]}
    either = [{"required": ["model"]}, {"properties": {"prompts": brought}, "required": ["prompts"]}]
    return {"required": [key for key in required if key != "model"], "anyOf": either}


def _prompts(host: Host, parameters: Definitions) -> Schema:
    schema = _open(_of(blocks.PromptsBlock))
    sources = dict(sorted(host.sources.items()))
    schema["properties"]["source"] |= _choice(sources)
    chosen = [
        _when("source", owned, _closed(blocks.PromptsBlock, parameters[f"source:{name}"]))
        for name, owned in sources.items()
    ]
    return schema | {"type": ["object", "null"], "allOf": chosen}


def _edit(host: Host, parameters: Definitions) -> Schema:
    schema = _open(_of(blocks.EditBlock))
    edits = dict(sorted(host.edits.items()))
    schema["properties"]["edit"] |= _choice(edits)
    chosen = [_when("edit", owned, _edited(parameters[f"edit:{name}"])) for name, owned in edits.items()]
    return schema | {"allOf": chosen}


def _edited(parameters: Schema) -> Schema:
    """An edit's parameters: each is given, or swept."""
    schema = _closed(blocks.EditBlock, parameters)
    required = schema.pop("required", [])
    swept = {name: _swept(each) for name, each in parameters.get("properties", {}).items()}
    schema["properties"]["sweep"] = {"properties": swept, "additionalProperties": False}
    if required:
        schema["allOf"] = [
            {"anyOf": [{"required": [name]}, {"required": ["sweep"], "properties": {"sweep": {"required": [name]}}}]}
            for name in required
        ]
    return schema


def _swept(parameter: Schema) -> Schema:
    """The values that one parameter takes in turn."""
    return _described({"type": "array", "minItems": 1, "items": parameter}, parameter)


def _analysis(host: Host, parameters: Definitions) -> Schema:
    schema = _of(blocks.AnalysisBlock)
    analyses = dict(sorted(host.analyses.items()))
    properties = schema["properties"]
    properties["use"] |= _choice(analyses)
    properties["as"] |= {"not": {"pattern": r"\.against\."}}
    properties["prompts"] = _described({"$ref": "#/$defs/prompts"}, properties["prompts"])
    chosen = []
    for name, owned in analyses.items():
        then: Schema = {"properties": {"with": {"$ref": f"#/$defs/analysis:{name}"}}}
        if parameters[f"analysis:{name}"].get("required"):
            then["required"] = ["with"]
        chosen.append(_when("use", owned, then))
    return schema | {"allOf": chosen}


def _variant() -> Schema:
    edits = {"type": "array", "items": {"$ref": "#/$defs/edit"}}
    block = _of(blocks.VariantBlock)
    properties = block["properties"]
    properties["edits"] = _described(edits, properties["edits"])
    shuffle = _of(blocks.ShuffleBlock)
    properties["prompts"] = _described(
        {"if": {"type": "object", "required": ["shuffle"]}, "then": shuffle, "else": {"$ref": "#/$defs/prompts"}},
        properties["prompts"],
    )
    return {"anyOf": [edits, block]}


def _when(key: str, owned: Owned[Any], then: Schema) -> Schema:
    names = list(owned.descriptor.every_name)
    named = {"const": names[0]} if len(names) == 1 else {"enum": names}
    return {"if": {"properties": {key: named}, "required": [key]}, "then": then}


def _choice(known: Mapping[str, Owned[Any]], **more: str) -> Schema:
    """Names to choose from, each with its summary, as editors show them; names of before are deprecated."""
    summaries = more | {name: owned.descriptor.summary for name, owned in known.items()}
    now = {"enum": list(summaries), "enumDescriptions": list(summaries.values())}
    former = {old: now_called(name) for name, owned in known.items() for old in owned.descriptor.formerly}
    if not former:
        return now
    before = {"enum": list(former), "enumDescriptions": list(former.values()), "deprecated": True}
    return {"anyOf": [now, before]}


def _closed(block: type[blocks.Block], parameters: Schema) -> Schema:
    """A table that holds the host's keys and these parameters, and no others."""
    host_keys: Schema = dict.fromkeys(blocks.keys(block), True)
    schema = {"properties": host_keys | parameters.get("properties", {}), "additionalProperties": False}
    return schema | ({"required": parameters["required"]} if parameters.get("required") else {})


def _open(schema: Schema) -> Schema:
    """A table whose other keys are elsewhere."""
    schema.pop("additionalProperties", None)
    return schema


def _described(schema: Schema, like: Schema) -> Schema:
    """A schema with the description of another; beside a reference, draft 7 wants it apart."""
    description = {"description": like["description"]} if "description" in like else {}
    return ({"allOf": [schema]} if "$ref" in schema else schema) | description


def _of(block: type[blocks.Block]) -> Schema:
    schema = _tidied(block.model_json_schema())
    schema.pop("description", None)
    if schema.pop("$defs", None):
        # Of the host's blocks, these alone hold another: it is defined once, for all.
        schema["properties"]["errors"]["anyOf"][0] = {"$ref": "#/$defs/errors"}
    return schema


def _tidied(schema: Schema) -> Schema:
    """A schema of pydantic as draft 7 writes it, without the titles that repeat the names of fields."""
    found: Schema = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties"):
            found[key] = {name: _tidied(each) for name, each in value.items()}
        elif key == "prefixItems":
            found |= {"items": [_tidied(each) for each in value], "additionalItems": False}
        elif key in ("default", "const", "enum", "examples"):
            found[key] = value
        elif key not in ("title", "discriminator"):
            found[key] = _within(value)
    return found


def _within(value: Any) -> Any:
    """A value of a schema: a schema, a list of them, or plain."""
    if isinstance(value, dict):
        return _tidied(value)
    return [_within(each) for each in value] if isinstance(value, list) else value
