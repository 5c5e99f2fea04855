"""Names that a run file uses: found among what plugins contribute, or told with what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..contract.errors import near
from .problems import instead, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..plugins.host import Host, Owned
    from .nodes import Node
    from .problems import Problems

# What a name is called, and where it belongs when it is used in the wrong place.
KINDS = {
    "analysis": ("analyses", "it belongs under analyses: {{use: {name}}}"),
    "edit": ("edits", "it belongs under variants: [{{edit: {name}}}]"),
    "loader": ("loaders", "it belongs under model: {{loader: {name}}}"),
    "source": ("sources", "it belongs under prompts: {{source: {name}}}"),
}


def known(kind: str, host: Host) -> Mapping[str, Owned[Any]]:
    """All of a kind, by name."""
    found: Mapping[str, Owned[Any]] = getattr(host, KINDS[kind][0])
    return found


def find(kind: str, node: Node | None, host: Host, problems: Problems) -> Owned[Any] | None:
    """What a name stands for; a problem where nothing bears it."""
    if node is None or not isinstance(node.value, str):
        return None  # told by the check of the table that it is in
    name, names = node.value, known(kind, host)
    if name not in names:
        problems.value(node, f"there is no {kind} {shortened(name)}", _hint(kind, name, host))
        return None
    return names[name]


def owner_of(owned: Owned[Any]) -> str:
    """Whose something is, and how to do without it."""
    owner = owned.owner
    return f"plugin {owner.plugin} of {owner.distribution} {owner.version}".strip()


def _hint(kind: str, name: str, host: Host) -> str:
    for broken in host.would_provide(name):
        whose = f"plugin {broken.plugin} of {broken.distribution} {broken.version}".strip()
        return f"{whose} would provide it, but was set aside: {broken.cause}"
    for other in KINDS:
        if other != kind and name in known(other, host):
            return f"{name} is {'an' if other[0] in 'aeiou' else 'a'} {other}: {KINDS[other][1].format(name=name)}"
    if name.split(".")[0] in host.left_out:
        return f"plugin {name.split('.')[0]} was left out, by --without or GAUSSLENS_WITHOUT"
    hint = instead(name, known(kind, host))
    missing = {"left out": host.left_out, "set aside": [b.plugin for b in host.broken]}
    if not near(name, known(kind, host)):
        # A name without a prefix does not say which plugin it would come from.
        for how, plugins in missing.items():
            hint += f"; {how}: {', '.join(plugins)}" if plugins else ""
    return hint.lstrip("; ")
