"""The host as the rest sees it: what plugins contribute, which were set aside, and the announcements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ..contract.hooks import API_VERSION
from ..guard import Guard, Stopped

if TYPE_CHECKING:
    import pluggy

    from ..contract.descriptors import Analysis, Edit, Engine, Loader, Owned, PromptSource, ReportSection

R = TypeVar("R", "Loader", "Engine")

# What plugins contribute: what one of a kind is called, and the mapping of the host that holds them.
KINDS = {
    "analysis": "analyses",
    "edit": "edits",
    "loader": "loaders",
    "engine": "engines",
    "source": "sources",
    "section": "sections",
}

# What plugins of version 1 may have to change, by hook; HOOKS.md says how.
CHANGED = {
    "edits": "its edits: with heads, tensors without a head axis are refused",
    "captures": "its engines: runners take interventions",
}


@dataclass(frozen=True)
class Plugin:
    """A plugin that is loaded, the hooks that it implements, and the version of the interface it was written for."""

    plugin: str
    distribution: str
    version: str
    hooks: tuple[str, ...]
    api_version: int = API_VERSION

    @property
    def may_change(self) -> str:
        """What its author should look at, where it was written for version 1 and offers what version 2 changed."""
        looked_at = [what for hook, what in CHANGED.items() if hook in self.hooks and self.api_version < API_VERSION]
        if not looked_at:
            return ""
        return (
            f"written for version {self.api_version} of the interface; it works, but look at {' and '.join(looked_at)}"
        )


@dataclass(frozen=True)
class Broken:
    """A plugin that was set aside: whose it is, why, and the switch that leaves it out.

    ``offers`` are the names of its descriptors, where it came so far as to tell them.
    """

    plugin: str
    distribution: str
    version: str
    entry_point: str
    cause: str
    switch: str
    offers: tuple[str, ...] = ()
    error: BaseException | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Host:
    """All that plugins contribute, by name, each with its owner."""

    analyses: Mapping[str, Owned[Analysis]]
    edits: Mapping[str, Owned[Edit]]
    loaders: Mapping[str, Owned[Loader]]
    engines: Mapping[str, Owned[Engine]]
    sources: Mapping[str, Owned[PromptSource]]
    sections: Mapping[str, Owned[ReportSection]]
    plugins: tuple[Plugin, ...]
    broken: tuple[Broken, ...]
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]
    hook: pluggy.HookRelay = field(repr=False, compare=False)
    warned: set[tuple[str, str]] = field(default_factory=set, repr=False, compare=False)

    def of(self, kind: str) -> Mapping[str, Owned[Any]]:
        """All of one of the KINDS, by name."""
        found: Mapping[str, Owned[Any]] = getattr(self, KINDS[kind])
        return found

    def find(self, kind: str, name: str) -> Owned[Any] | None:
        """What bears a name, or bore it before; None where nothing does."""
        known = self.of(kind)
        return known.get(name) or next((o for o in known.values() if name in o.descriptor.formerly), None)

    def first_names(self) -> dict[str, str]:
        """For every name of an analysis, of now and of before, the one under which its results are stored."""
        known = [owned.descriptor for owned in self.analyses.values()]
        return {name: each.first_name for each in known for name in each.every_name}

    def contributed(self) -> Iterator[tuple[str, Owned[Any]]]:
        """Everything that there is, each with its kind."""
        for kind in KINDS:
            for owned in self.of(kind).values():
                yield kind, owned

    def would_provide(self, name: str) -> tuple[Broken, ...]:
        """The plugins set aside that offer this name, or, where they did not come so far, bear its prefix."""
        prefix = name.split(".")[0]
        return tuple(b for b in self.broken if name in b.offers or (not b.offers and b.plugin == prefix))

    def announce(self, name: str, **news: Any) -> list[str]:
        """Call each implementation of an announcement, in order of plugin; return what those that raised said.

        An announcement is a courtesy: whatever one listener does, the others hear it and the run goes on. A listener
        that raises is named once, by a warning in the log ``gausslens``, which Python shows on stderr.
        """
        caller: pluggy.HookCaller = getattr(self.hook, name)
        failures = []
        owners = {plugin.plugin: plugin for plugin in self.plugins}
        for listener in sorted(caller.get_hookimpls(), key=lambda i: i.plugin_name):
            guard = Guard.of(owners[listener.plugin_name]) if listener.plugin_name in owners else Guard()
            try:
                guard.call(_told, listener, news)
            except Exception as raised:
                failures.append(f"plugin {listener.plugin_name}, {name}: {in_one_line(raised)}")
                if (listener.plugin_name, name) not in self.warned:
                    self.warned.add((listener.plugin_name, name))
                    _warn(failures[-1])
        return failures


def best(owned: Iterable[Owned[R]]) -> Owned[R] | None:
    """Of loaders that claim a model, or engines that serve it: highest rank, then first by name; None where none."""
    return min(owned, key=lambda each: (-each.descriptor.rank, each.descriptor.name), default=None)


def _told(listener: pluggy.HookImpl, news: Mapping[str, Any]) -> None:
    """Tell one listener: what it changes of the news, the next one hears as it was."""
    error = news.get("error")
    arguments = error.args if isinstance(error, BaseException) else ()
    try:
        own = {name: value if value is error else deepcopy(value) for name, value in news.items()}
        listener.function(*(own[argument] for argument in listener.argnames))
    finally:
        if isinstance(error, BaseException):
            error.args = arguments


def _warn(text: str) -> None:
    import logging

    logging.getLogger("gausslens").warning("warning: %s", text)


def in_one_line(error: BaseException) -> str:
    """An exception in one line, with the place outside the host that it came from; of what was stopped what it was."""
    if isinstance(error, Stopped) and error.__cause__ is not None:
        error = error.__cause__
    try:
        text = " ".join(str(error).split())
    except BaseException:  # a class of a plugin's own
        text = ""
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    place, at = "", error.__traceback__
    while at is not None:
        module, file = at.tb_frame.f_globals.get("__name__", ""), at.tb_frame.f_code.co_filename
        if not file.startswith("<") and not module.startswith(("gausslens.", "importlib")):
            place = f" ({file}:{at.tb_lineno})"
        at = at.tb_next
    return what + place
