"""Loading plugins one by one: whatever one of them does wrong, it alone is set aside, with the reason."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pluggy

from . import hookspecs
from .descriptors import Descriptor
from .discovery import Candidate, order
from .host import Broken, Host, Plugin, in_one_line
from .owner import Owned, Owner
from .screening import HOOKS, MOST, problems
from .suggest import did_you_mean

SPECIFIED = tuple(name for name, value in vars(hookspecs).items() if hasattr(value, "gausslens_spec"))


class _Manager(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        """As pluggy does it, but names of a module that are not marked are passed over at once: it is most of them."""
        if isinstance(plugin, ModuleType) and not hasattr(vars(plugin).get(name), "gausslens_impl"):
            return None
        return super().parse_hookimpl_opts(plugin, name)


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
        self.manager.add_hookspecs(hookspecs)
        for candidate in self._without_namesakes(sorted(chosen, key=order)):
            self._attempt(candidate, self._import)
        # pluggy calls first whoever was registered last: registered backwards, plugins are called in order.
        for candidate in reversed(list(self.accepted.values())):
            self._attempt(candidate, self._register)
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
                Plugin(c.plugin, c.distribution, c.version, tuple(sorted(self.implemented[c.plugin])))
                for c in self.accepted.values()
            ),
            broken=tuple(sorted(self.broken, key=lambda b: (b.plugin, b.distribution, b.entry_point))),
            left_out=left_out,
            warnings=tuple(sorted(self.warnings)),
            hook=self.manager.hook,
        )

    def _attempt(self, candidate: Candidate, step: Callable[[Candidate], str | None]) -> None:
        try:
            cause, error = step(candidate), None
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # SystemExit too: a module may call sys.exit when it is imported
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
        ours, theirs = hookspecs.API_VERSION, getattr(found, "api_version", hookspecs.API_VERSION)
        if type(theirs) is not int:
            return f"api_version is {theirs!r}, not an integer"
        if theirs > ours:
            return f"it needs version {theirs} of the plugin interface, this gausslens has {ours}: upgrade gausslens"
        if theirs < ours:
            self.warnings.append(
                f"plugin {candidate.plugin} of {candidate.whose} was written for version {theirs} of the plugin "
                f"interface, this gausslens has {ours}: it may not work as it should"
            )
        self.accepted[candidate.plugin], self.objects[candidate.plugin] = candidate, found
        return None

    def _register(self, candidate: Candidate) -> str | None:
        found = self.objects[candidate.plugin]
        try:
            self.manager.register(found, candidate.plugin)
            self.manager.check_pending()
        except pluggy.PluginValidationError as error:
            return self._misfit(found, str(error))
        implemented: dict[str, pluggy.HookImpl] = {}
        for caller in self.manager.get_hookcallers(found) or []:
            mine = [i for i in caller.get_hookimpls() if i.plugin is found]
            if len(mine) > 1:
                return f"it implements {caller.name} {len(mine)} times"
            if mine[0].hookwrapper or mine[0].wrapper:
                return f"{caller.name} is a hook wrapper: gausslens calls each plugin by itself"
            if caller.has_spec():  # or it is an optional hook, of another version
                implemented[caller.name] = mine[0]
        for hook in SPECIFIED:
            if hook not in implemented and callable(getattr(found, hook, None)):
                return f"{hook} lacks the decorator @gausslens.hookimpl: it would never be called"
        if not implemented:
            self.warnings.append(f"plugin {candidate.plugin} of {candidate.whose} implements no hook")
        self.implemented[candidate.plugin] = implemented
        return None

    def _misfit(self, found: Any, message: str) -> str:
        """What pluggy refuses, in our words where they are better."""
        unknown = [c.name for c in self.manager.get_hookcallers(found) or [] if not c.has_spec()]
        if unknown:
            return f"there is no hook {unknown[0]!r}{did_you_mean(unknown[0], SPECIFIED)}"
        foreign = re.search(r"definition: (\w+)\(.*Argument\(s\) {(.*?)}", message, re.DOTALL)
        if foreign and foreign[1] in SPECIFIED:
            known = inspect.signature(getattr(hookspecs, foreign[1])).parameters
            may = f"it may ask for {', '.join(known)}" if known else "it takes no arguments"
            return f"{foreign[1]} asks for {foreign[2]}, which is not there: {may}"
        return " ".join(message.split())

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
                for descriptor in found:
                    owners.setdefault((hook, descriptor.name), []).append(candidate)
        told = set()
        for (hook, name), who in owners.items():
            for candidate in who:
                rivals = [c for c in who if c is not candidate and c.ours == rivals_are_ours]
                if rivals and not candidate.ours and candidate.plugin not in told:
                    told.add(candidate.plugin)
                    whose = " and ".join(f"{c.whose} (plugin {c.plugin})" for c in rivals)
                    yield candidate, f"{HOOKS[hook][0].__name__} {name!r} is in {whose} too"

    def _set_aside(
        self, candidate: Candidate, cause: str, error: BaseException | None = None, switch: str = ""
    ) -> None:
        offers: set[str] = set()
        if self.accepted.get(candidate.plugin) is candidate:
            del self.accepted[candidate.plugin]
            offers = {d.name for found in self.contributed.pop(candidate.plugin, {}).values() for d in found}
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
