"""The variants of a run file: their edits and draws, and sweeps multiplied out into points."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..runs.study import Point, Variant
from . import blocks
from .checking import checked
from .edits import MOST_POINTS, EditRead, read_edit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .nodes import Node
    from .parts import Reading


def read_variant(reading: Reading, name: str, node: Node) -> tuple[Variant, Mapping[str, Any]] | None:
    """A variant, and how it reads with every default filled in; None where something in it is wrong."""
    problems = reading.problems
    before = len(problems)
    _check_name(reading, name, node)
    node = _as_block(reading, node)
    block, node = checked(blocks.VariantBlock, node, problems)
    edits = node.get("edits")
    entries = edits.value if edits is not None and edits.is_list else []
    _check_sweeps(reading, entries)
    read = [read_edit(reading, entry) for entry in entries]
    _check_draws(reading, node.get("draws"), read)
    points = math.prod(len(each.choices) for each in read)
    if points > MOST_POINTS:
        problems.key(node, f"its sweeps multiply to {points:,} points; there may be {MOST_POINTS:,}")
    if len(problems) > before or block is None:
        return None
    variant = Variant(name, block.draws, tuple(map(_point, itertools.product(*(r.choices for r in read)))), node.place)
    return variant, {"edits": [each.resolved for each in read], "draws": block.draws}


def _check_name(reading: Reading, name: str, node: Node) -> None:
    if not blocks.is_name(name):
        reading.problems.key(node, f"should be {blocks.NAME_WORDS}")
    elif name == blocks.WHOLE_RUN:
        reading.problems.key(node, "this name is kept for the results of a whole run", "give the variant another")


def _as_block(reading: Reading, node: Node) -> Node:
    """The variant as a table of edits and draws, which a list of edits stands for."""
    if node.is_table and node.get("edit") is not None and node.get("edits") is None:
        hint = "write {edits: [{edit: ...}], draws: ...}" if node.get("draws") is not None else "put it in [ ]"
        reading.problems.value(node, "should be a list of edits, is one edit alone", hint)
        edits = replace(node.but(["draws"]), value=[node.but(["draws"])])
        node = replace(node, value={"edits": edits} | node.only(["draws"]).value)
    elif not node.is_table and not node.is_list:
        hint = f"write [{{edit: {node.value}}}]" if isinstance(node.value, str) else "write [] for no edits"
        reading.problems.value(node, f"should be a list of edits, is {node.described()}", hint)
        node = replace(node, value=[])
    return node if node.is_table else replace(node, value={"edits": node})


def _check_sweeps(reading: Reading, entries: list[Node]) -> None:
    """A swept parameter becomes a dimension, so no two edits of a variant may sweep one of the same name."""
    first: dict[str, Node] = {}
    for entry in entries:
        sweep = entry.get("sweep")
        for name, values in sweep.value.items() if sweep is not None and sweep.is_table else ():
            if name in first:
                where = f", first on line {first[name].place.line}" if first[name].place.line else ""
                message = f"{name} is swept twice in this variant{where}"
                reading.problems.key(
                    values, message, "its values become a dimension of that name: sweep one of the two"
                )
            first.setdefault(name, values)


def _check_draws(reading: Reading, draws: Node | None, read: list[EditRead]) -> None:
    if draws is None or draws.value is None or any(each.edit is None for each in read):
        return
    if not any(each.edit.descriptor.random for each in read if each.edit is not None):
        random = [owned.descriptor.name for owned in reading.host.edits.values() if owned.descriptor.random]
        add = f", or add a random edit: {', '.join(sorted(random)[:6])}" if random else ""
        message = "no edit of this variant is random, so all draws would be equal"
        reading.problems.key(draws, message, f"leave draws out{add}")


def _point(chosen: tuple[Any, ...]) -> Point:
    values = tuple(pair for taken, _ in chosen for pair in taken)
    return Point(values, tuple(call for _, call in chosen))
