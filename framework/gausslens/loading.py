"""Loading plugins one by one: whatever one does wrong, it alone is set aside, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pluggy

from . import hookspecs
from .descriptors import Descriptor
from .discovery import Candidate, order
from .host import Broken, Host, Plugin, in_one_line
from .screening import HOOKS, MOST, problems
from .study import Owned, Owner
from .suggest import did_you_mean


@dataclass
class Loading:
    """The state of one ``load``: what is accepted so far, and what was set aside."""

    warnings: list[str]
    accepted: dict[str, Candidate] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    contributed: dict[str, dict[str, Sequence[Descriptor]]] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)
    manager: pluggy.PluginManager = field(default_factory=lambda: pluggy.PluginManager("gausslens"))

    def load(self, chosen: list[Candidate]) -> None:
        self.manager.add_hookspecs(hookspecs)
        ordered = sorted(chosen, key=order)
        for candidate in self._without_namesakes(ordered):
            self._attempt(candidate, self._import)
        # pluggy calls the last registered first: registered backwards, plugins are called in order.
        for step in (self._register, self._collect):
            for candidate in reversed(list(self.accepted.values())):
                self._attempt(candidate, step)
        self._settle_clashes()

    def _attempt(self, candidate: Candidate, step: Callable[[Candidate], str | None]) -> None:
        """One step of one plugin; whatever goes wrong, it is this plugin that is set aside."""
        try:
            cause, error = step(candidate), None
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # SystemExit too: a plugin may call sys.exit when it is imported
            cause, error = in_one_line(raised), raised
        if cause:
            self._set_aside(candidate, cause, error)

    def _without_namesakes(self, ordered: list[Candidate]) -> list[Candidate]:
        """Of plugins of one name ours stays; of two outside ones neither does."""
        kept = []
        for candidate in ordered:
            others = [c for c in ordered if c.plugin == candidate.plugin and c is not candidate]
            if others and not candidate.ours:
                names = " and ".join(sorted({f"{c.distribution} {c.version}".strip() for c in others}))
                self._set_aside(candidate, f"{names} has a plugin of the same name, {candidate.plugin!r}", None)
            else:
                kept.append(candidate)
        return kept

    def _import(self, candidate: Candidate) -> str | None:
        found = candidate.imported()
        same = [name for name, other in self.objects.items() if other is found]
        if same:
            return f"{candidate.entry_point} is the plugin {same[0]!r} already"
        declared = getattr(found, "api_version", hookspecs.API_VERSION)
        if type(declared) is not int:
            return f"its api_version is {declared!r}, not an integer"
        if declared > hookspecs.API_VERSION:
            return (
                f"it is written for version {declared} of the plugin interface, and this gausslens has "
                f"{hookspecs.API_VERSION}: install a newer gausslens"
            )
        if declared < hookspecs.API_VERSION:
            self.warnings.append(
                f"plugin {candidate.plugin} ({candidate.distribution} {candidate.version}) is written for version "
                f"{declared} of the plugin interface; this gausslens has {hookspecs.API_VERSION}"
            )
        self.accepted[candidate.plugin], self.objects[candidate.plugin] = candidate, found
        return None

    def _register(self, candidate: Candidate) -> str | None:
        found = self.objects[candidate.plugin]
        try:
            self.manager.register(found, candidate.plugin)
            self.manager.check_pending()
        except pluggy.PluginValidationError as error:
            return self._misfit(found, error)
        callers = self.manager.get_hookcallers(found) or []
        for caller in callers:
            if any(i.hookwrapper or i.wrapper for i in caller.get_hookimpls() if i.plugin is found):
                return f"{caller.name} is a hook wrapper; gausslens calls each plugin by itself"
        unmarked = [
            n for n in _hook_names() if callable(getattr(found, n, None)) and n not in {c.name for c in callers}
        ]
        if unmarked:
            return f"{unmarked[0]}() lacks the decorator @gausslens.hookimpl, so it would never be called"
        if not callers:
            self.warnings.append(f"plugin {candidate.plugin} ({candidate.distribution}) implements no hook")
        return None

    def _misfit(self, found: Any, error: pluggy.PluginValidationError) -> str:
        """What pluggy refuses, in our words where it is a misspelt hook."""
        unknown = [c.name for c in self.manager.get_hookcallers(found) or [] if not c.has_spec()]
        if unknown:
            return f"there is no hook {unknown[0]!r}{did_you_mean(unknown[0], _hook_names())}"
        return "; ".join(line.strip() for line in str(error).splitlines()[1:] if line.strip()) or str(error)

    def _collect(self, candidate: Candidate) -> str | None:
        found = self.objects[candidate.plugin]
        returned: dict[str, Sequence[Descriptor]] = {}
        for caller in self.manager.get_hookcallers(found) or []:
            if caller.name not in HOOKS:
                continue
            [implementation] = [i for i in caller.get_hookimpls() if i.plugin is found]
            value: Any = implementation.function()
            wrong = problems(caller.name, value, candidate.ours)
            if wrong:
                more = f"; and {len(wrong) - MOST} more" if len(wrong) > MOST else ""
                return "; ".join(wrong[:MOST]) + more
            returned[caller.name] = value
        self.contributed[candidate.plugin] = returned
        return None

    def _settle_clashes(self) -> None:
        """Equal names of descriptors: first whoever clashes with ours goes, then outside ones that clash do, all."""
        for rival_is_ours in (True, False):
            owners: dict[tuple[str, str], list[Candidate]] = {}
            for plugin, candidate in self.accepted.items():
                for hook, name in self._offered(plugin):
                    owners.setdefault((hook, name), []).append(candidate)
            for (hook, name), who in owners.items():
                for candidate in who:
                    rivals = [c for c in who if c is not candidate and c.ours == rival_is_ours]
                    if rivals and not candidate.ours and candidate.plugin in self.accepted:
                        names = " and ".join(sorted(f"{c.distribution} {c.version}".strip() for c in rivals))
                        kind = HOOKS[hook][0].__name__
                        self._set_aside(
                            candidate, f"{kind} {name!r} is also in {names}, plugin {rivals[0].plugin}", None
                        )

    def _offered(self, plugin: str) -> list[tuple[str, str]]:
        return [(hook, d.name) for hook, found in self.contributed.get(plugin, {}).items() for d in found]

    def _set_aside(self, candidate: Candidate, cause: str, error: BaseException | None) -> None:
        offers = tuple(sorted({name for _, name in self._offered(candidate.plugin)}))
        if self.accepted.get(candidate.plugin) is candidate:
            del self.accepted[candidate.plugin]
            self.contributed.pop(candidate.plugin, None)
            if self.manager.has_plugin(candidate.plugin):
                self.manager.unregister(name=candidate.plugin)
        self.broken.append(
            Broken(
                candidate.plugin,
                candidate.distribution,
                candidate.version,
                candidate.entry_point,
                cause,
                f"--without {candidate.plugin}",
                offers,
                error,
            )
        )

    def host(self, left_out: tuple[str, ...]) -> Host:
        """What was accepted, in order of name."""
        owned: dict[str, dict[str, Owned[Any]]] = {hook: {} for hook in HOOKS}
        for plugin, returned in self.contributed.items():
            owner = Owner(plugin, self.accepted[plugin].distribution, self.accepted[plugin].version)
            for hook, found in returned.items():
                owned[hook] |= {d.name: Owned(d, owner) for d in found}
        by_name = {hook: dict(sorted(each.items())) for hook, each in owned.items()}
        return Host(
            by_name["analyses"],
            by_name["edits"],
            by_name["loaders"],
            by_name["captures"],
            by_name["prompt_sources"],
            by_name["report_sections"],
            tuple(self._record(c) for c in self.accepted.values()),
            tuple(sorted(self.broken, key=lambda b: (b.plugin, b.distribution))),
            left_out,
            tuple(self.warnings),
            self.manager.hook,
        )

    def _record(self, candidate: Candidate) -> Plugin:
        callers = self.manager.get_hookcallers(self.objects[candidate.plugin]) or []
        hooks = tuple(sorted(c.name for c in callers))
        return Plugin(candidate.plugin, candidate.distribution, candidate.version, hooks)


def _hook_names() -> list[str]:
    return [name for name, value in vars(hookspecs).items() if hasattr(value, "gausslens_spec")]
