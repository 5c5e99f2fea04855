"""Near names for misspelt ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that look like this one, nearest first; case does not matter."""
    by_folded = {k.casefold(): k for k in known}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=most, cutoff=0.6)
    return [by_folded[f] for f in found]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``": did you mean x or y?"``; where nothing is near, the known names; nothing where there are none."""
    names = list(known)
    found = near(name, names)
    if found:
        return f": did you mean {' or '.join(found)}?"
    if not names:
        return ""
    shown = ", ".join(sorted(names)[:12]) + (", ..." if len(names) > 12 else "")
    return f"; there are {shown}"
