"""List plugins, or show what one offers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from . import load_host


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("name", nargs="?", help="a plugin, or an analysis, edit, loader, engine or source")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: Namespace) -> int:
    """List what is there."""
    host = load_host(arguments)
    for plugin in host.plugins:
        print(plugin.plugin, plugin.distribution, plugin.version, *plugin.hooks)
    return 0
