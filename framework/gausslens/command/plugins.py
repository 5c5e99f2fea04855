"""List plugins, or show what one offers."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..suggest import did_you_mean
from . import load_host

if TYPE_CHECKING:
    from ..host import Host
    from ..owner import Owned

# The mappings of the host, and what one entry of each is called.
KINDS = {
    "analyses": "analysis",
    "edits": "edit",
    "loaders": "loader",
    "engines": "engine",
    "sources": "source",
    "sections": "section",
}


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a plugin, or the name of an analysis, edit, loader, engine or source"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Namespace) -> int:
    """Print the list, or what NAME is."""
    from ..plugins import told

    host = load_host(arguments, tell=arguments.name is not None)
    if arguments.name is None:
        print(_as_json(host) if arguments.json else "\n".join(_listed(host)))
        if not arguments.json and told(host):
            print(f"\n{told(host, arguments.debug)}")
        return 0
    found = named(host, arguments.name)
    if arguments.json:
        from ..describe import as_data

        print(json.dumps([as_data(kind, owned) for kind, owned in found], indent=2, ensure_ascii=False))
    else:
        from ..describe import as_text

        width = min(_width() or 100, 100)
        print("\n\n".join(as_text(kind, owned, width) for kind, owned in found))
    return 0


def named(host: Host, name: str) -> list[tuple[str, Owned[Any]]]:
    """What a name means: all of a plugin, or each descriptor that bears it."""
    everything = [(kind, owned) for kinds, kind in KINDS.items() for owned in getattr(host, kinds).values()]
    found = [(k, o) for k, o in everything if name in (o.owner.plugin, o.descriptor.name)]
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
    rows = [
        (o.owner.plugin, kind, o.descriptor) for kinds, kind in KINDS.items() for o in getattr(host, kinds).values()
    ]
    broad = max((len(d.name) for _, _, d in rows), default=0)
    for number, plugin in enumerate(host.plugins):
        hooks = ", ".join(plugin.hooks) or "none"
        yield from [""] * (number > 0)
        yield f"{plugin.plugin}   {plugin.distribution} {plugin.version}   hooks: {hooks}"
        for owner, kind, descriptor in rows:
            if owner == plugin.plugin:
                yield _cut(f"  {kind:<9} {descriptor.name:<{broad}}  {descriptor.summary}")
    if host.left_out:
        yield f"\nleft out: {', '.join(host.left_out)}"
    broken = f", {len(host.broken)} set aside" if host.broken else ""
    yield f"\n{len(host.plugins)} plugins{broken}. 'gausslens plugins NAME' shows parameters."


def _as_json(host: Host) -> str:
    plugins = []
    for plugin in host.plugins:
        record = asdict(plugin)
        for kinds in KINDS:
            mine = [o.descriptor for o in getattr(host, kinds).values() if o.owner.plugin == plugin.plugin]
            record[kinds] = [{"name": d.name, "version": d.version, "summary": d.summary} for d in mine]
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
