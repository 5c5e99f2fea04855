"""Loading the plugins one by one; each that does not fit is set aside whole, and why is told."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pluggy

from ..contract import hooks as hookspecs
from ..contract.descriptors import Descriptor, Owned, Owner
from ..contract.errors import InputError, did_you_mean
from ..guard import Guard
from .check_descriptors import HOOKS, MOST, problems
from .discover import GIVEN, Candidate, candidates, order
from .host import Broken, Host, Plugin, in_one_line


def load(
    without: Iterable[str] = (), only: Iterable[str] | None = None, extra: Mapping[str, Any] | None = None
) -> Host:
    """Load the installed plugins and return what they contribute.

    ``without`` leaves out plugins (by their name, or all of a distribution); so does GAUSSLENS_WITHOUT, with commas.
    ``only`` loads no others of the installed ones. ``extra`` adds modules or objects by name, from a test or a
    notebook; they stand in for installed plugins of the same name.
    """
    installed, unreadable = candidates()
    loading = Loading(warnings=unreadable)
    chosen, left_out = _chosen(installed, without, only, loading)
    given = [_given(name, what, installed) for name, what in (extra or {}).items()]
    chosen = [c for c in chosen if c.plugin not in (extra or {})] + given
    # A plugin that prints when it is imported must not corrupt what the command prints.
    with redirect_stdout(sys.stderr):
        loading.load(chosen)
    return loading.host(left_out)


def _given(name: str, what: Any, installed: list[Candidate]) -> Candidate:
    """A plugin passed from Python; one of our own modules stays ours, whatever name it is given."""
    module = getattr(what, "__name__", type(what).__name__)
    known = next((c for c in installed if c.ours and c.entry_point == module), None)
    if known is not None:
        return Candidate(name, known.distribution, known.version, module, what)
    return Candidate(name, GIVEN, "", module, what)


def _chosen(
    installed: list[Candidate], without: Iterable[str], only: Iterable[str] | None, loading: Loading
) -> tuple[list[Candidate], tuple[str, ...]]:
    plugins, distributions = {c.plugin for c in installed}, {c.distribution for c in installed}
    unwanted, wanted = list(without), None if only is None else list(only)
    for name in [*unwanted, *(wanted or ())]:
        if name not in plugins | distributions:
            raise InputError(f"there is no plugin {name!r}{did_you_mean(name, plugins)}")
    for name in filter(None, map(str.strip, os.environ.get("GAUSSLENS_WITHOUT", "").split(","))):
        if name in plugins | distributions:
            unwanted.append(name)
        else:
            loading.warnings.append(f"GAUSSLENS_WITHOUT: there is no plugin {name!r}{did_you_mean(name, plugins)}")
    out = [c for c in installed if {c.plugin, c.distribution} & set(unwanted)]
    kept = [c for c in installed if c not in out and (wanted is None or c.plugin in wanted)]
    return kept, tuple(sorted({c.plugin for c in out}))


def loading_troubles(host: Host, debug: bool = False) -> str:
    """What commands say of plugins that were set aside, and of warnings; empty where all is well."""
    return "\n".join([*(f"warning: {text}" for text in host.warnings), *(set_aside(b, debug) for b in host.broken)])


def set_aside(broken: Broken, debug: bool = False) -> str:
    """One paragraph: which plugin was set aside, why, and how to leave it out."""
    whose = f"{broken.distribution} {broken.version}".strip()
    lines = [f"set aside: plugin {broken.plugin} of {whose} (entry point {broken.entry_point})", f"  {broken.cause}"]
    if broken.switch:
        lines.append(f"  leave it out with {broken.switch} or GAUSSLENS_WITHOUT={broken.switch.split()[-1]}")
    if debug and broken.error is not None:
        import traceback

        lines += traceback.format_exception(broken.error)
    return "\n".join(lines)


# Every hook, and the arguments that it may ask for.
SPECIFIED = {
    name: tuple(inspect.signature(value).parameters)
    for name, value in vars(hookspecs).items()
    if hasattr(value, "gausslens_spec")
}


def _written_for(candidate: Candidate, found: Any) -> int:
    """The version of this interface that a plugin was written for; one that tells none is of the first."""
    version: int = getattr(found, "api_version", hookspecs.API_VERSION if candidate.ours else hookspecs.OLDEST)
    return version


class _Manager(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        """As pluggy does it, but names of a module that are not marked are passed over at once: it is most of them."""
        if isinstance(plugin, ModuleType) and not hasattr(vars(plugin).get(name), "gausslens_impl"):
            return None
        return super().parse_hookimpl_opts(plugin, name)


def _misfit(hook: str, marked: list[pluggy.HookImpl]) -> str | None:
    """Why the implementations of a hook cannot be called; None where there is one that can."""
    if hook not in SPECIFIED:
        optional = all(implementation.optionalhook for implementation in marked)
        return None if optional else f"there is no hook {hook!r}{did_you_mean(hook, SPECIFIED)}"
    known = SPECIFIED[hook]
    foreign = [name for implementation in marked for name in implementation.argnames if name not in known]
    if foreign:
        may = f"it may ask for {', '.join(known)}" if known else "it takes no arguments"
        return f"{hook} asks for {', '.join(map(repr, foreign))}, which is not there: {may}"
    if len(marked) > 1:
        return f"it implements {hook} {len(marked)} times"
    if marked[0].hookwrapper or marked[0].wrapper:
        return f"{hook} is a hook wrapper: gausslens calls each plugin by itself"
    return None


@dataclass
class Loading:
    """The state of one ``load``: the plugins accepted so far, what they contribute, and those set aside."""

    warnings: list[str]
    accepted: dict[str, Candidate] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    implemented: dict[str, dict[str, pluggy.HookImpl]] = field(default_factory=dict)
    contributed: dict[str, dict[str, list[Descriptor]]] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)
    manager: pluggy.PluginManager = field(default_factory=lambda: _Manager("gausslens"))

    def load(self, chosen: list[Candidate]) -> None:
        """Try each of them, in an order that depends on names alone."""
        for candidate in self._without_namesakes(sorted(chosen, key=order)):
            self._attempt(candidate, self._import)
        # pluggy calls first whoever was registered last: registered backwards, plugins are called in order.
        for candidate in reversed(list(self.accepted.values())):
            self._attempt(candidate, self._register)
        # Only now: what does not fit was found before, and is said in our own words.
        self.manager.add_hookspecs(hookspecs)
        for candidate in list(self.accepted.values()):
            self._attempt(candidate, self._collect)
        # First whoever clashes with ours goes; then, of those left, all that clash with each other.
        for rivals_are_ours in (True, False):
            for candidate, cause in list(self._clashes(rivals_are_ours)):
                self._set_aside(candidate, cause)

    def host(self, left_out: tuple[str, ...]) -> Host:
        """What was accepted, by name."""
        owned: dict[str, dict[str, Owned[Any]]] = {hook: {} for hook in HOOKS}
        for plugin, candidate in self.accepted.items():
            owner = Owner(plugin, candidate.distribution, candidate.version)
            for hook, found in self.contributed[plugin].items():
                owned[hook] |= {d.name: Owned(d, owner) for d in found}
        by_name = {hook: dict(sorted(each.items())) for hook, each in owned.items()}
        return Host(
            analyses=by_name["analyses"],
            edits=by_name["edits"],
            loaders=by_name["loaders"],
            engines=by_name["captures"],
            sources=by_name["prompt_sources"],
            sections=by_name["report_sections"],
            plugins=tuple(
                Plugin(c.plugin, c.distribution, c.version, tuple(sorted(self.implemented[c.plugin])), self._api(c))
                for c in self.accepted.values()
            ),
            broken=tuple(sorted(self.broken, key=lambda b: (b.plugin, b.distribution, b.entry_point))),
            left_out=left_out,
            warnings=tuple(sorted(self.warnings)),
            hook=self.manager.hook,
        )

    def _api(self, candidate: Candidate) -> int:
        return _written_for(candidate, self.objects[candidate.plugin])

    def _attempt(self, candidate: Candidate, step: Callable[[Candidate], str | None]) -> None:
        try:
            # A module may call sys.exit when it is imported, or go to another directory.
            cause, error = Guard.of(candidate).call(step, candidate), None
        except Exception as raised:
            cause, error = in_one_line(raised), raised
        if cause:
            self._set_aside(candidate, cause, error)

    def _without_namesakes(self, ordered: list[Candidate]) -> list[Candidate]:
        """Of plugins of one name ours stays; of outside ones none does."""
        kept = []
        for candidate in ordered:
            others = [c for c in ordered if c.plugin == candidate.plugin and c is not candidate]
            if others and not candidate.ours:
                whose = " and ".join(sorted({c.whose for c in others}))
                cause = f"another plugin is named {candidate.plugin!r} too, in {whose}"
                self._set_aside(candidate, cause, switch=candidate.distribution)
            else:
                kept.append(candidate)
        return kept

    def _import(self, candidate: Candidate) -> str | None:
        found = candidate.imported()
        for plugin, other in self.objects.items():
            if other is found:
                return f"{candidate.entry_point} is already loaded, as plugin {plugin!r}"
        ours, theirs = hookspecs.API_VERSION, _written_for(candidate, found)
        if type(theirs) is not int:
            return f"api_version is {theirs!r}, not an integer"
        if theirs > ours:
            return f"it needs version {theirs} of the plugin interface, this gausslens has {ours}: upgrade gausslens"
        if theirs < hookspecs.OLDEST:
            self.warnings.append(
                f"plugin {candidate.plugin} of {candidate.whose} was written for version {theirs} of the plugin "
                f"interface, this gausslens has {ours}: it may not work as it should"
            )
        self.accepted[candidate.plugin], self.objects[candidate.plugin] = candidate, found
        return None

    def _register(self, candidate: Candidate) -> str | None:
        found = self.objects[candidate.plugin]
        implemented: dict[str, pluggy.HookImpl] = {}
        self.manager.register(found, candidate.plugin)
        for caller in self.manager.get_hookcallers(found) or ():
            mine = [each for each in caller.get_hookimpls() if each.plugin is found]
            cause = _misfit(caller.name, mine)
            if cause:
                return cause
            if caller.name in SPECIFIED:  # or it is an optional hook, of another version
                implemented[caller.name] = mine[0]
        for hook in SPECIFIED:
            if hook not in implemented and callable(getattr(found, hook, None)):
                return f"{hook} lacks the decorator @gausslens.hookimpl: it would never be called"
        if not implemented:
            self.warnings.append(f"plugin {candidate.plugin} of {candidate.whose} implements no hook")
        self.implemented[candidate.plugin] = implemented
        return None

    def _collect(self, candidate: Candidate) -> str | None:
        returned: dict[str, list[Descriptor]] = {}
        wrong: list[str] = []
        for hook, implementation in self.implemented[candidate.plugin].items():
            if hook in HOOKS:
                value: Any = implementation.function()
                found = problems(hook, value, candidate.ours)
                wrong += found
                returned[hook] = [] if found else list(value)
        self.contributed[candidate.plugin] = returned
        more = f"; and {len(wrong) - MOST} more" if len(wrong) > MOST else ""
        return "; ".join(wrong[:MOST]) + more

    def _clashes(self, rivals_are_ours: bool) -> Iterator[tuple[Candidate, str]]:
        """The outside plugins of which a descriptor has the name of another's, and that other."""
        owners: dict[tuple[str, str], list[Candidate]] = {}
        for plugin, candidate in self.accepted.items():
            for hook, found in self.contributed[plugin].items():
                for name in dict.fromkeys(name for descriptor in found for name in descriptor.every_name):
                    owners.setdefault((hook, name), []).append(candidate)
        named = set()
        for (hook, name), who in owners.items():
            for candidate in who:
                rivals = [c for c in who if c is not candidate and c.ours == rivals_are_ours]
                if rivals and not candidate.ours and candidate.plugin not in named:
                    named.add(candidate.plugin)
                    whose = " and ".join(f"{c.whose} (plugin {c.plugin})" for c in rivals)
                    yield candidate, f"{HOOKS[hook][0].__name__} {name!r} is in {whose} too"

    def _set_aside(
        self, candidate: Candidate, cause: str, error: BaseException | None = None, switch: str = ""
    ) -> None:
        offers: set[str] = set()
        if self.accepted.get(candidate.plugin) is candidate:
            del self.accepted[candidate.plugin]
            mine = [d for found in self.contributed.pop(candidate.plugin, {}).values() for d in found]
            offers = {name for descriptor in mine for name in descriptor.every_name}
            if self.manager.has_plugin(candidate.plugin):  # with all that it half registered
                self.manager.unregister(name=candidate.plugin)
        self.broken.append(
            Broken(
                candidate.plugin,
                candidate.distribution,
                candidate.version,
                candidate.entry_point,
                cause,
                "" if candidate.given is not None else f"--without {switch or candidate.plugin}",
                tuple(sorted(offers)),
                error,
            )
        )
