"""What the report shows of attention approximation. Means leave out what is missing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gausslens import figures

if TYPE_CHECKING:
    from gausslens import Result

averaged = partial(figures.averaged, skip_missing=True)


def too_short(*several: Result) -> str:
    """The sentence on prompts that left a fit without data; nothing where none did."""
    told = dict.fromkeys(str(result.data.attrs["too_short"]) for result in several if "too_short" in result.data.attrs)
    return f" Too short: {'; '.join(told)}." if told else ""


def other_keys(*several: Result) -> str:
    """The sentence on keys that are other tokens than queries; nothing where they are the same."""
    told = dict.fromkeys(str(result.data.attrs["keys"]) for result in several if "keys" in result.data.attrs)
    return f" Keys are {'; '.join(told)}." if told else ""
