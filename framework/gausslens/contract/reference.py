"""String references ``"package.module:name"``: resolved on use, so that a plugin's wiring stays light."""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import Any

_FORM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class BadReference(ValueError):
    """A string reference that does not have the form, or names nothing."""


def has_form(reference: str) -> bool:
    """Whether the text has the form ``"package.module:name"``; nothing is imported."""
    return _FORM.fullmatch(reference) is not None


@cache
def resolve(reference: str) -> Any:
    """The object that ``"package.module:name"`` names."""
    if not has_form(reference):
        raise BadReference(f"{reference!r} is not of the form 'package.module:name'")
    module, name = reference.split(":")
    loaded = importlib.import_module(module)
    try:
        return getattr(loaded, name)
    except AttributeError:
        raise BadReference(f"{reference!r}: the module {module} has no {name!r}") from None
