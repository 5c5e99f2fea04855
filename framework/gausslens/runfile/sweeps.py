"""The values of a sweep, and the dimensions that it may not be called by."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .blocks import Reading
    from .nodes import Node

MOST_POINTS = 10_000
# Dimensions that results have already: a sweep must not make a second one.
DIMENSIONS = ("draw", "layer", "head", "kv_head", "query", "key", "position", "token", "prompt", "feature", "d_model")
Values = tuple[tuple[str, Any], ...]


def checked_values(reading: Reading, node: Node) -> list[Node]:
    """The values of one sweep that can be a dimension: scalars of one sort, all different."""
    if not node.is_list:
        return [node]  # noted already; it is checked as the one value
    if not node.value:
        reading.problems.value(node, "a sweep needs at least one value")
    sorts = Counter(_sort(item.value) for item in node.value)
    seen: set[Any] = set()
    found = []
    for item in node.value:
        if item.value is None or isinstance(item.value, dict | list):
            wanted = "a swept value is a number, a text, true or false"
            reading.problems.value(item, f"{wanted}; this is {item.described()}")
        elif _sort(item.value) is not sorts.most_common(1)[0][0]:
            reading.problems.value(item, f"the values of a sweep are of one sort, and this is {item.described()}")
        elif item.value in seen:
            reading.problems.value(item, f"{item.described()} is swept twice", "keep one")
        else:
            seen.add(item.value)
            found.append(item)
    return found or node.value[:1]


def _sort(value: Any) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)
