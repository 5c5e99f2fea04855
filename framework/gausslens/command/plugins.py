"""List plugins, or show what one offers."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields
from typing import TYPE_CHECKING, Any

from ..contract.errors import InputError, did_you_mean
from ..contract.reference import has_form, resolve
from ..plugins.host import KINDS
from ..plugins.outputs import outputs_of
from . import load_host

if TYPE_CHECKING:
    from ..contract.descriptors import Analysis, Descriptor, Owned
    from ..plugins.host import Host
    from ..runfile.wording import Parameter


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a plugin, or the name of an analysis, edit, loader, engine or source"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Namespace) -> int:
    """Print the list, or what NAME is."""
    from ..plugins import loading_troubles

    host = load_host(arguments, say=arguments.name is not None)
    if arguments.name is None:
        print(_as_json(host) if arguments.json else "\n".join(_listed(host)))
        if not arguments.json and loading_troubles(host):
            print(f"\n{loading_troubles(host, arguments.debug)}")
        return 0
    found = named(host, arguments.name)
    if arguments.json:
        print(json.dumps([as_data(kind, owned) for kind, owned in found], indent=2, ensure_ascii=False))
    else:
        width = min(_width() or 100, 100)
        print("\n\n".join(as_text(kind, owned, width) for kind, owned in found))
    return 0


def named(host: Host, name: str) -> list[tuple[str, Owned[Any]]]:
    """What a name means: all of a plugin, or each descriptor that bears it."""
    everything = list(host.contributed())
    found = [(k, o) for k, o in everything if name in (o.owner.plugin, *o.descriptor.every_name)]
    if found:
        return found
    for broken in host.would_provide(name):
        raise InputError(f"{name!r} would come from plugin {broken.plugin}, which was set aside: {broken.cause}")
    if name in [p.plugin for p in host.plugins]:
        raise InputError(f"plugin {name!r} offers nothing to use in a run file; see 'gausslens plugins' for its hooks")
    if name in host.left_out:
        raise InputError(f"plugin {name!r} was left out, by --without or GAUSSLENS_WITHOUT")
    known = dict.fromkeys([p.plugin for p in host.plugins] + [o.descriptor.name for _, o in everything])
    raise InputError(
        f"there is no plugin, analysis, edit, loader, engine or source {name!r}{did_you_mean(name, known)}"
    )


def _listed(host: Host) -> Iterator[str]:
    """One block for each plugin: whose it is, its hooks, and a line for each thing that it offers."""
    rows = [(owned.owner.plugin, kind, owned.descriptor) for kind, owned in host.contributed()]
    broad = max((len(d.name) for _, _, d in rows), default=0)
    for number, plugin in enumerate(host.plugins):
        hooks = ", ".join(plugin.hooks) or "none"
        yield from [""] * (number > 0)
        yield f"{plugin.plugin}   {plugin.distribution} {plugin.version}   hooks: {hooks}"
        for owner, kind, descriptor in rows:
            if owner == plugin.plugin:
                yield _cut(f"  {kind:<9} {descriptor.name:<{broad}}  {descriptor.summary}")
        if plugin.may_change:
            yield f"  note: {plugin.may_change} (HOOKS.md, Growing old)"
    if host.left_out:
        yield f"\nleft out: {', '.join(host.left_out)}"
    broken = f", {len(host.broken)} set aside" if host.broken else ""
    yield f"\n{len(host.plugins)} plugins{broken}. 'gausslens plugins NAME' shows parameters and outputs."


def _as_json(host: Host) -> str:
    plugins = []
    for plugin in host.plugins:
        record = asdict(plugin)
        for kind, kinds in KINDS.items():
            mine = [o.descriptor for o in host.of(kind).values() if o.owner.plugin == plugin.plugin]
            record[kinds] = [
                {"name": d.name, "version": d.version, "summary": d.summary}
                | ({"formerly": d.formerly} if d.formerly else {})
                for d in mine
            ]
        plugins.append(record)
    broken = [{name: value for name, value in vars(b).items() if name != "error"} for b in host.broken]
    whole = {"plugins": plugins, "broken": broken, "left_out": host.left_out, "warnings": host.warnings}
    return json.dumps(whole, indent=2, ensure_ascii=False)


def _width() -> int | None:
    """Columns of the terminal; None where the output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _cut(line: str) -> str:
    width = _width()
    return line if width is None or len(line) <= width else line[: width - 3].rstrip() + "..."


_SHOWN_ELSEWHERE = ("name", "version", "summary", "parameters")
# How a run file uses each kind; {more} are its parameters that must be given.
_USES = {
    "analysis": "analyses: [{{use: {name}{with_more}}}]",
    "edit": "variants: {{edited: [{{edit: {name}{more}}}]}}",
    "loader": "model: {{path: ..., loader: {name}{more}}}",
    "source": "prompts: {{source: {name}{more}}}",
}


def as_text(kind: str, owned: Owned[Any], width: int) -> str:
    """One descriptor in full: whose it is, what it does, its parameters, and how a run file uses it."""
    import textwrap

    descriptor, owner = owned.descriptor, owned.owner
    head = f"{descriptor.name}   {kind}, version {descriptor.version}"
    lines = [f"{head}, of plugin {owner.plugin} ({f'{owner.distribution} {owner.version}'.strip()})"]
    for text in (descriptor.summary, *_facts(descriptor)):
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
    from ..runfile.wording import parameters

    try:
        found = parameters(resolve(descriptor.parameters))
    except Exception as error:
        return "\n".join([*lines, f"  its parameters cannot be read: {type(error).__name__}: {error}"])
    lines += ["", *_table(found, width)] if found else ["  no parameters"]
    if kind == "analysis":
        lines += ["", *_gives(descriptor, width)]
    required = [p.name for p in found if p.default is None and "." not in p.name]
    if kind in _USES:
        lines += ["", f"  in a run file:  {_use(kind, descriptor.name, required)}"]
    return "\n".join(lines)


def as_data(kind: str, owned: Owned[Any]) -> dict[str, Any]:
    """The same as plain data, with the JSON Schema of the parameters."""
    descriptor, owner = owned.descriptor, owned.owner
    data: dict[str, Any] = {"kind": kind, **vars(descriptor), **vars(owner), "version": descriptor.version}
    data["distribution_version"] = owner.version
    try:
        data["schema"] = resolve(descriptor.parameters).model_json_schema()
    except Exception as error:
        data["schema"], data["trouble"] = None, f"{type(error).__name__}: {error}"
    if kind == "analysis":
        listed = outputs_of(descriptor)
        data["outputs"] = None if listed is None else {each.name: asdict(each) for each in listed}
    return data


def _facts(descriptor: Descriptor) -> Iterator[str]:
    """What else the descriptor declares, where it is not the default; then what stands behind it."""
    declared, behind = [], []
    for field in fields(descriptor):
        value = getattr(descriptor, field.name)
        if field.name in _SHOWN_ELSEWHERE or value == field.default or value is None:
            continue
        if isinstance(value, str) and has_form(value):
            behind += [value] * (field.default is MISSING)
        elif value is True:
            declared.append(field.name.replace("_", " "))
        else:
            text = ", ".join(value) if isinstance(value, tuple) else str(value)
            declared.append(f"{field.name} {text}")
    if declared:
        yield "; ".join(declared)
    yield f"code {', '.join(behind)}"


def _table(found: list[Parameter], width: int) -> Iterator[str]:
    """Names in one column; beside each its type and default, and beneath what it is for."""
    import textwrap

    name = max(len(p.name) for p in found)
    margin = " " * (name + 6)
    for parameter in found:
        default = "required" if parameter.default is None else f"default {parameter.default}"
        default += f"; formerly {', '.join(parameter.formerly)}" if parameter.formerly else ""
        first = f"    {parameter.name:<{name}}  "
        yield from textwrap.wrap(f"{parameter.type}; {default}", width, initial_indent=first, subsequent_indent=margin)
        yield from textwrap.wrap(parameter.text, width, initial_indent=margin, subsequent_indent=margin)


def _gives(analysis: Analysis, width: int) -> Iterator[str]:
    """The variables of its results: names in one column; beside each dimensions and unit, and beneath what it is."""
    import textwrap

    try:
        listed = outputs_of(analysis)
    except InputError as error:
        listed, said = None, str(error)
    else:
        said = f"what it gives is not listed; 'gausslens schema {analysis.name} --outputs STORE' lists it from results"
    if listed is None:
        yield from textwrap.wrap(said, width, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
        return
    yield "  gives"
    name = min(max((len(each.name) for each in listed), default=0), width // 3)
    margin = " " * (name + 6)
    for each in listed:
        units = "" if each.units in ("", "1") else f", in {each.units}"
        text = f"{each.shape}{units}"
        yield from textwrap.wrap(
            text, width, initial_indent=f"    {each.name:<{name}}  ", subsequent_indent=margin, break_long_words=False
        )
        yield from textwrap.wrap(each.meaning, width, initial_indent=margin, subsequent_indent=margin)


def _use(kind: str, name: str, required: list[str]) -> str:
    given = ", ".join(f"{r}: ..." for r in required)
    with_more = f", with: {{{given}}}" if given else ""
    return _USES[kind].format(name=name, more=f", {given}" if given else "", with_more=with_more)
