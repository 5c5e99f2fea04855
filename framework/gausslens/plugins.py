"""The plugins that there are: ``load()`` is all that the rest of the host calls.

discovery.py finds them by metadata, loading.py loads them one by one, screening.py looks at what they return; host.py
is what comes out. Nothing here imports a plugin by name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from typing import Any

from .discovery import GIVEN, Candidate, candidates
from .errors import InputError
from .host import Broken as Broken
from .host import Host as Host
from .host import Plugin as Plugin
from .loading import Loading
from .suggest import did_you_mean


def load(
    without: Iterable[str] = (), only: Iterable[str] | None = None, extra: Mapping[str, Any] | None = None
) -> Host:
    """Load the installed plugins and return what they contribute.

    ``without`` leaves out plugins (by their name, or all of a distribution); so does GAUSSLENS_WITHOUT, with commas.
    ``only`` loads no others of the installed ones. ``extra`` adds modules or objects by name, from a test or a
    notebook; they stand in for installed plugins of the same name.
    """
    installed, troubles = candidates()
    loading = Loading(warnings=troubles)
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


def told(host: Host, debug: bool = False) -> str:
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
